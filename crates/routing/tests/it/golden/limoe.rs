//! LIMoE's losses by modality, with gradients.

use burn::tensor::{Tensor, activation::softmax};
use omma_routing::losses::{
    global_entropy_loss, global_entropy_loss_of, information_loss, local_entropy_loss, marginal,
    target_entropy_loss, z_loss,
};

use omma_golden::{Case, values};

pub(crate) fn check(case: &Case) {
    let logits = case.matrix("input/logits");
    let probabilities = softmax(logits.clone(), 1);
    case.expect("output/probs", &probabilities);
    let entropies = (0..logits.dims()[0]).flat_map(|token| {
        let token = logits.clone().narrow(0, token, 1).unsqueeze_dim(0);
        values(&local_entropy_loss(token))
    });
    case.expect_values("output/token_entropy", &entropies.collect::<Vec<_>>());

    let names: Vec<&str> =
        case.names().filter_map(|name| name.strip_prefix("grad/logits.")).collect();
    for name in names {
        let loss = loss(case, name, &logits);
        case.expect(&format!("output/{name}"), &loss);
        let gradients = loss.backward();
        case.expect(&format!("grad/logits.{name}"), &logits.grad(&gradients).unwrap());
    }
}

/// The loss that the case calls `name`, `[1]`.
fn loss(case: &Case, name: &str, logits: &Tensor<2>) -> Tensor<1> {
    let modalities = case.config("modality_ids").as_object().unwrap();
    let id_of = |name: &str| {
        let found = modalities.iter().find(|(_, modality)| modality.as_str() == Some(name));
        found.map(|(id, _)| id.parse::<i32>().unwrap())
    };
    let of_modality = |id: i32| -> Tensor<3> {
        let ids = case.ints("input/modality").iter().enumerate();
        let rows: Vec<i32> = ids.filter(|(_, m)| **m == id).map(|(row, _)| row as i32).collect();
        let rows = Tensor::from_data(rows.as_slice(), &logits.device());
        logits.clone().select(0, rows).unsqueeze_dim(0)
    };
    let everything = || logits.clone().unsqueeze_dim::<3>(0);
    let (kind, tokens) =
        match name.rsplit_once('_').and_then(|(kind, modality)| Some((kind, id_of(modality)?))) {
            Some((kind, id)) => (kind, of_modality(id)),
            None => (name, everything()),
        };
    match kind {
        "z_loss" => z_loss(tokens),
        "local_entropy" | "merged_local_entropy" => local_entropy_loss(tokens),
        "global_entropy" | "merged_global_entropy_tokens" => global_entropy_loss(tokens, None),
        "merged_global_entropy_tokens_tau" => {
            global_entropy_loss(tokens, case.config("merged_tau").as_f64())
        }
        "merged_global_entropy_modalities" => {
            let marginals = modalities.keys().map(|id| marginal(of_modality(id.parse().unwrap())));
            let sum = marginals.reduce(|sum, marginal| sum + marginal).unwrap();
            global_entropy_loss_of(sum / modalities.len() as f64, None)
        }
        "mi_loss" | "merged_mi_loss" => information_loss(tokens),
        "target_entropy" => target_entropy_loss(tokens, case.size("K")),
        other => {
            let index = other.strip_prefix("global_entropy_tau").expect("a loss of the case");
            let threshold = case.config("tau")[index.parse::<usize>().unwrap()].as_f64();
            assert!(threshold.is_some(), "{name}: no threshold {index}");
            global_entropy_loss(tokens, threshold)
        }
    }
}
