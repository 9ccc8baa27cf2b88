//! The recipes that come with the program.

use omma_base::nearest;

use crate::error::{Result, TrainError};

/// Names and texts of the recipes in `recipes/`.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("default", include_str!("../../recipes/default.toml")),
    ("vit", include_str!("../../recipes/vit.toml")),
    ("vmoe", include_str!("../../recipes/vmoe.toml")),
    ("e3", include_str!("../../recipes/e3.toml")),
    ("segment", include_str!("../../recipes/segment.toml")),
    ("finetune-segment", include_str!("../../recipes/finetune-segment.toml")),
    ("limoe", include_str!("../../recipes/limoe.toml")),
    ("limoe-dense", include_str!("../../recipes/limoe-dense.toml")),
    ("soft-moe", include_str!("../../recipes/soft-moe.toml")),
    ("soft-mnist", include_str!("../../recipes/soft-mnist.toml")),
    ("soft-cifar10", include_str!("../../recipes/soft-cifar10.toml")),
    ("softmax-token-choice", include_str!("../../recipes/routers/softmax-token-choice.toml")),
    ("sinkhorn-token-choice", include_str!("../../recipes/routers/sinkhorn-token-choice.toml")),
    ("softmax-expert-choice", include_str!("../../recipes/routers/softmax-expert-choice.toml")),
    ("sinkhorn-expert-choice", include_str!("../../recipes/routers/sinkhorn-expert-choice.toml")),
    ("sparse-expert-choice", include_str!("../../recipes/routers/sparse-expert-choice.toml")),
    ("soft", include_str!("../../recipes/routers/soft.toml")),
    ("fashion-vmoe", include_str!("../../recipes/fashion-vmoe.toml")),
    ("fashion-vit", include_str!("../../recipes/fashion-vit.toml")),
    ("cifar10-vmoe", include_str!("../../recipes/cifar10-vmoe.toml")),
    ("cifar10-vit", include_str!("../../recipes/cifar10-vit.toml")),
    ("finetune", include_str!("../../recipes/finetune.toml")),
    ("finetune-last", include_str!("../../recipes/finetune-last.toml")),
    ("finetune-vmoe", include_str!("../../recipes/finetune-vmoe.toml")),
    ("finetune-vimoe", include_str!("../../recipes/finetune-vimoe.toml")),
    ("imagenet-scratch", include_str!("../../recipes/imagenet-scratch.toml")),
    ("imagenet-scratch-e3", include_str!("../../recipes/imagenet-scratch-e3.toml")),
];

/// The text of a recipe by its name.
pub fn built_in(name: &str) -> Result<&'static str> {
    let found = BUILT_IN.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let names = BUILT_IN.iter().map(|(name, _)| *name);
        let hint = match nearest(name, names.clone()) {
            hint if hint.is_empty() => {
                format!("; there are {}", names.collect::<Vec<_>>().join(", "))
            }
            hint => hint,
        };
        TrainError::UnknownRecipe { name: name.to_owned(), hint }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use omma_model::Placement;
    use omma_routing::{Allocation, Capacity, Order, ROUTERS, Rounding, RouterConfig};

    use super::*;
    use crate::{
        optimiser::{OptimiserConfig, ScheduleKind},
        recipe::{Recipe, Request},
    };

    #[test]
    fn every_recipe_is_whole() {
        for (name, _) in BUILT_IN {
            let recipe = match name.starts_with("finetune") {
                // These take the model from a checkpoint.
                true => Recipe::find(name, &Request::of(&["model.preset=vmoe-tiny"])),
                false => Recipe::find(name, &Request::default()),
            };
            let recipe = recipe.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(recipe.name, *name);
            assert!(!recipe.about.is_empty());
        }
    }

    /// Paper 002 App. A (every other block, K = 1) and B.1; its dense twin differs in nothing else.
    #[test]
    fn limoe_routes_as_paper_002_does() {
        let limoe = Recipe::find("limoe", &Request::default()).unwrap();
        let moe = limoe.model.moe().unwrap();
        assert_eq!((moe.placement.clone(), moe.k()), (Placement::Every(2), Some(1)));
        assert_eq!(moe.router, RouterConfig::limoe(8, 3.0, 5.0));
        let mut dense = Recipe::find("limoe-dense", &Request::default()).unwrap();
        assert!(dense.model.moe().is_none());
        (dense.name, dense.about) = (limoe.name.clone(), limoe.about.clone());
        dense.model.encoder.moe = limoe.model.encoder.moe.clone();
        assert_eq!(dense, limoe);
    }

    /// Paper 004 Tables 4 and 5: batches of 256, 15 epochs, Adam with its default parameters, a constant learning rate
    /// of 1e-3, all 60,000 training images.
    #[test]
    fn a_soft_layer_learns_mnist_as_paper_004_says() {
        for (experts, hidden) in [(2, 392), (16, 49), (512, 1)] {
            let preset = format!("model.preset=softlayer-{experts}");
            let recipe = Recipe::find("soft-mnist", &Request::of(&[preset.as_str()])).unwrap();
            assert_eq!(recipe.model, omma_model::preset(&format!("softlayer-{experts}")).unwrap());
            assert_eq!(recipe.model.moe().unwrap().hidden, Some(hidden));
            assert_eq!((recipe.train.batch, recipe.train.epochs), (256, 15.0));
            assert_eq!(recipe.total_steps(60_000), 3_516);
            assert_eq!(recipe.data.validation, 0.0);
            let OptimiserConfig { learning_rate, weight_decay, clip_norm, .. } = recipe.optimiser;
            assert_eq!((learning_rate, weight_decay, clip_norm), (1e-3, 0.0, 0.0));
            assert_eq!((recipe.optimiser.beta1, recipe.optimiser.beta2), (0.9, 0.999));
            assert_eq!(recipe.schedule.kind, ScheduleKind::Constant);
            assert_eq!((recipe.schedule.warmup, recipe.train.label_smoothing), (0.0, 0.0));
        }
    }

    /// Paper 004 E.2: Soft MoE layers in the last two blocks, nothing skips them, a fixed total of hidden units.
    #[test]
    fn a_small_soft_moe_stands_for_astroformer() {
        let recipe = Recipe::find("soft-cifar10", &Request::default()).unwrap();
        let moe = recipe.model.moe().unwrap();
        assert_eq!((moe.placement.clone(), moe.residual), (Placement::Tail(2), false));
        assert_eq!((moe.slots(), moe.router.experts * moe.hidden.unwrap()), (Some(1), 1_024));
        let Allocation::Soft(soft) = moe.router.allocation else { panic!("{moe:?}") };
        assert!(!soft.normalised, "Definition 1");
    }

    #[test]
    fn a_wrong_name_finds_the_right_one() {
        let message = Recipe::find("fashion-vmeo", &Request::default()).unwrap_err().to_string();
        assert!(message.contains("fashion-vmoe"), "{message}");
    }

    /// The recipe of a router with what `c` experts per token cost, `k` or `c` of paper 001 §3.1.
    fn router_recipe(name: &str, c: usize) -> Recipe {
        let more = match Recipe::find(name, &Request::default()).unwrap().model.moe().unwrap() {
            moe if moe.k().is_some() => format!("model.moe.k={c}"),
            moe if moe.slots().is_some() => format!("model.moe.slots={}", 8 * c),
            _ => format!("model.moe.capacity_ratio={c}"),
        };
        Recipe::find(name, &Request::of(&[more.as_str()])).unwrap()
    }

    /// Paper 001 §3.1: six routers over the same experts in every other block, with k or c of 1 and 2; a
    /// recipe is its router's constructor, and differs from the others in nothing else.
    #[test]
    fn the_recipes_of_routers_are_the_comparison_of_paper_001() {
        let first = router_recipe("softmax-token-choice", 1);
        assert_eq!(first.model.moe().unwrap().placement, Placement::Every(2));
        for (c, (name, make)) in
            [1, 2].into_iter().flat_map(|c| ROUTERS.iter().map(move |r| (c, r)))
        {
            let recipe = router_recipe(name, c);
            let mut router = make(8, c);
            match &mut router.allocation {
                // V-MoE's own capacity is that of paper 000; here it is C = round(k · T / E).
                Allocation::TokenChoice(choice) => {
                    let capacity = Capacity { rounding: Rounding::Round, ..Capacity::factor(1.0) };
                    choice.capacity = Some(capacity);
                    assert_eq!((choice.k, choice.order), (c, Order::Arrival), "Algorithm 1");
                }
                // As many slots in all as tokens, or twice as many.
                Allocation::Soft(soft) => soft.slots = 8 * c,
                Allocation::ExpertChoice(choice) => assert_eq!(choice.capacity.factor, c as f64),
            }
            let moe = recipe.model.moe().unwrap();
            assert_eq!(moe.router, router, "{name}");
            // §2.1 balances by auxiliary losses, with noise (App. A); §2.2 on does without.
            let balanced = *name == "softmax-token-choice";
            assert_eq!(
                !moe.router.losses.is_empty() && moe.router.noise == 1.0,
                balanced,
                "{name}"
            );
            let mut model = recipe.model.clone();
            let own = model.encoder.moe.as_mut().unwrap();
            own.router = first.model.moe().unwrap().router.clone();
            assert_eq!(model, first.model, "{name}");
            assert_eq!((recipe.train, recipe.optimiser), (first.train.clone(), first.optimiser));
        }
    }

    /// Paper 001 §3.1: the capacities of token choice, expert choice and soft routing match each other, so
    /// that experts have the same parameters and do the same work. What differs is routing itself: a column
    /// per expert to multiply with, or one per slot, and then two mixtures.
    #[test]
    fn routers_are_compared_at_the_same_parameters_and_work() {
        for c in [1, 2] {
            let cost = |name: &str| {
                let model = router_recipe(name, c).model;
                let cost = model.cost(model.image.resolution).unwrap();
                (cost.params_total, cost.forward_macs)
            };
            let (parameters, work) = cost("softmax-token-choice");
            let (layers, width, tokens, experts) = (2, 96, 64, 8);
            for (name, _) in ROUTERS {
                let expected = match *name {
                    "soft" => {
                        let slots = experts * 8 * c as u64;
                        let columns = width * (slots - experts) + 1; // and the factor of its logits
                        let mixing = tokens * width * (3 * slots - experts);
                        (parameters + layers * columns, work + layers * mixing)
                    }
                    _ => (parameters, work),
                };
                assert_eq!(cost(name), expected, "{name} at {c}");
            }
        }
    }

    /// Paper 000 App. K: "the optimal V-MoE setting was medium2, i.e., mixup ratio 0.5 and RandAugment (…)
    /// parameters 2 and 15 (2 augmentations applied of magnitude 15), alongside expert dropout 0.2. For E³,
    /// these regularization-related hyperparameters were kept fixed"; Table 16: V-MoE with K = 2, E³ with
    /// K = 1 and M = 2.
    #[test]
    fn imagenet_from_scratch_has_the_values_of_appendix_k() {
        use omma_data::augment::Policy;
        let [vmoe, e3] = ["imagenet-scratch", "imagenet-scratch-e3"]
            .map(|name| Recipe::find(name, &Request::default()).unwrap());
        for (recipe, k, members) in [(&vmoe, 2, 1), (&e3, 1, 2)] {
            assert_eq!((recipe.mixing.mixup, recipe.mixing.cutmix), (0.5, 0.0));
            assert_eq!(recipe.augment.policy, Policy::BigVision);
            assert_eq!((recipe.augment.operations, recipe.augment.magnitude), (2, 15.0));
            let moe = recipe.model.moe().unwrap();
            assert_eq!((moe.dropout, moe.k(), moe.members()), (0.2, Some(k), members));
            assert_eq!((moe.router.experts, moe.capacity_factor()), (8, Some(1.05)));
            assert!([0.001, 0.003].contains(&recipe.optimiser.learning_rate));
            assert!(recipe.optimiser.weight_decay > 0.0);
        }
        let pool = ["router.pool.kind", "router.pool.members", "overlap"];
        let pool = pool.map(|key| format!("model.moe.{key}"));
        let others = ["about", "model.moe.k", "name"].map(str::to_owned);
        let differ: BTreeSet<String> =
            vmoe.differences(&e3).into_iter().map(|(key, _, _)| key).collect();
        assert_eq!(differ, pool.into_iter().chain(others).collect());
    }

    #[test]
    fn every_recipe_begins_with_its_command_and_what_it_takes() {
        for (name, text) in BUILT_IN {
            let lines: Vec<&str> = text.lines().take(2).collect();
            let command =
                if *name == "default" { "# omma train" } else { &format!("# omma train {name}") };
            assert!(lines[0].starts_with(command), "{name}: {}", lines[0]);
            assert!(lines[1].starts_with("# ") && lines[1].len() > 20, "{name}: {}", lines[1]);
        }
    }
}
