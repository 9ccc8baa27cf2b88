//! How a router's loss terms apply to groups, gates and modalities.

use burn::tensor::{Device, Tensor, TensorData, activation::softmax};
use omma_routing::{
    Allocation, Context, Grouping, Layout, Loss, LossTerm, Pool, RouterConfig, Seed, TokenChoice,
    losses::{importance_loss, local_entropy_loss, marginal, modality_information_loss},
};
use rand::RngExt;

const TOKENS: usize = 10;
const WIDTH: usize = 3;
const EXPERTS: usize = 4;

fn random(name: &str, shape: [usize; 2]) -> Tensor<2> {
    let mut rng = Seed::new(3).named(name).rng();
    let values = (0..shape[0] * shape[1]).map(|_| rng.random_range(-2.0..2.0_f32));
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), &Device::flex())
}

fn config(losses: Vec<LossTerm>, grouping: Grouping) -> RouterConfig {
    let choice = Allocation::TokenChoice(TokenChoice::dropless(1));
    RouterConfig { losses, grouping, ..RouterConfig::new(EXPERTS, choice) }
}

/// The unweighted values of a term, `[G, M]`, and the weighted total.
fn losses(config: RouterConfig, modality: Option<Vec<usize>>) -> (Vec<Vec<f32>>, Option<f32>) {
    let columns = config.columns().unwrap();
    let router = config.init_with(random("weight", [WIDTH, columns])).unwrap();
    let mut context = Context::training(Layout::new(1, TOKENS), Seed::new(0));
    context.modality = modality;
    let losses = router.route(random("tokens", [TOKENS, WIDTH]), &context).unwrap().losses;
    let values = losses.terms.iter().map(|value| value.values.try_to_vec_as().unwrap());
    (values.collect(), losses.total().map(Tensor::into_scalar))
}

fn logits() -> Tensor<2> {
    random("tokens", [TOKENS, WIDTH]).matmul(random("weight", [WIDTH, EXPERTS]))
}

fn rows(rows: std::ops::Range<usize>) -> Tensor<3> {
    logits().narrow(0, rows.start, rows.len()).unsqueeze_dim(0)
}

fn assert_close(a: f32, b: f32) {
    assert!((a - b).abs() < 1e-5, "{a} {b}");
}

#[test]
fn a_short_last_group_counts_as_a_group() {
    let (values, total) =
        losses(config(vec![LossTerm::new(Loss::Importance, 2.0)], Grouping::Tokens(4)), None);
    let expected = [0..4, 4..8, 8..10]
        .map(|group| importance_loss(softmax(rows(group), 2)).into_scalar::<f32>());
    values[0].iter().zip(expected).for_each(|(a, b)| assert_close(*a, b));
    assert_close(total.unwrap(), 2.0 * expected.iter().sum::<f32>() / 3.0);
}

#[test]
fn a_term_of_one_modality_sees_its_tokens_only() {
    // Tokens 0 to 5 are images, 6 to 9 are texts; the first group has no text.
    let modality: Vec<usize> = (0..TOKENS).map(|token| usize::from(token >= 6)).collect();
    let term = LossTerm::new(Loss::LocalEntropy, 1.0).on_modality(1);
    let (values, _) = losses(config(vec![term], Grouping::Tokens(5)), Some(modality));
    assert_eq!(values[0][0], 0.0);
    assert_close(values[0][1], local_entropy_loss(rows(6..10)).into_scalar());
}

/// A gate that nobody of a modality asks does not thin out that modality's loss.
#[test]
fn a_term_weighs_the_same_whatever_the_pool() {
    let modality: Vec<usize> = (0..TOKENS).map(|token| usize::from(token >= 6)).collect();
    let term = LossTerm::new(Loss::LocalEntropy, 1.0).on_modality(1);
    let total = |pool: Pool| {
        let config = RouterConfig { pool, ..config(vec![term], Grouping::Batch) };
        let width = config.columns().unwrap() / EXPERTS;
        // Every gate has the same weights.
        let weight = random("weight", [WIDTH, EXPERTS]).repeat_dim(1, width);
        let context = Context::training(Layout::new(1, TOKENS), Seed::new(0));
        let router = config.init_with(weight).unwrap();
        let routing = router
            .route(random("tokens", [TOKENS, WIDTH]), &context.with_modality(modality.clone()));
        routing.unwrap().losses.total().unwrap().into_scalar::<f32>()
    };
    assert_close(total(Pool::All), total(Pool::GatePerModality { modalities: 2 }));
}

#[test]
fn modalities_are_compared_across_their_gates() {
    let modality: Vec<usize> = (0..TOKENS).map(|token| usize::from(token >= 6)).collect();
    let terms = vec![LossTerm::new(Loss::ModalityInformation, 1.0)];
    let (one, _) = losses(config(terms.clone(), Grouping::Batch), Some(modality.clone()));
    let marginals = [marginal(rows(0..6)), marginal(rows(6..10))];
    assert_close(one[0][0], modality_information_loss(&marginals).into_scalar());
    let pool = Pool::GatePerModality { modalities: 2 };
    let per_modality = RouterConfig { pool, ..config(terms, Grouping::Batch) };
    let (apart, _) = losses(per_modality, Some(modality));
    let weight = random("weight", [WIDTH, 2 * EXPERTS]);
    let of_gate = |gate: usize, rows: std::ops::Range<usize>| {
        let tokens = random("tokens", [TOKENS, WIDTH]).narrow(0, rows.start, rows.len());
        let logits = tokens.matmul(weight.clone().narrow(1, gate * EXPERTS, EXPERTS));
        marginal(logits.unsqueeze_dim(0))
    };
    let marginals = [of_gate(0, 0..6), of_gate(1, 6..10)];
    assert_close(apart[0][0], modality_information_loss(&marginals).into_scalar());
}

#[test]
fn group_that_lacks_a_modality_compares_those_it_has() {
    // Tokens 0 to 5 are images, 6 to 9 are texts; the first group has no text.
    let modality: Vec<usize> = (0..TOKENS).map(|token| usize::from(token >= 6)).collect();
    let terms = vec![LossTerm::new(Loss::ModalityInformation, 1.0)];
    let (values, _) = losses(config(terms, Grouping::Tokens(5)), Some(modality));
    assert_close(values[0][0], modality_information_loss(&[marginal(rows(0..5))]).into_scalar());
    let both = [marginal(rows(5..6)), marginal(rows(6..10))];
    assert_close(values[0][1], modality_information_loss(&both).into_scalar());
}

#[test]
fn subsets_are_averaged() {
    let pool = Pool::Partition { subsets: 2 };
    let terms = vec![LossTerm::new(Loss::Importance, 1.0)];
    let (values, total) = losses(RouterConfig { pool, ..config(terms, Grouping::Batch) }, None);
    let of_subset = |subset: usize| {
        let logits = rows(0..TOKENS).narrow(2, subset * 2, 2);
        importance_loss(softmax(logits, 2)).into_scalar::<f32>()
    };
    assert_close(values[0][0], of_subset(0));
    assert_close(values[0][1], of_subset(1));
    assert_close(total.unwrap(), (of_subset(0) + of_subset(1)) / 2.0);
}

#[test]
fn terms_without_weight_are_not_computed() {
    let terms = vec![LossTerm::new(Loss::Importance, 0.0), LossTerm::new(Loss::Load, 0.0)];
    let (values, total) = losses(config(terms, Grouping::Batch), None);
    assert!(values.is_empty() && total.is_none());
}

#[test]
fn the_load_loss_exists_only_with_noise() {
    let noisy = |training: bool| {
        let config = RouterConfig { noise: 1.0, ..config(LossTerm::vmoe(), Grouping::Batch) };
        let router = config.init_with(random("weight", [WIDTH, EXPERTS])).unwrap();
        let layout = Layout::new(1, TOKENS);
        let context = match training {
            true => Context::training(layout, Seed::new(0)),
            false => Context::inference(layout),
        };
        router.route(random("tokens", [TOKENS, WIDTH]), &context).unwrap().losses.terms.len()
    };
    assert_eq!((noisy(true), noisy(false)), (2, 1));
}
