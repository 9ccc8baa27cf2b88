//! The recipes that come with the program.

use omma_base::nearest;

use crate::error::{Result, TrainError};

/// Names and texts of the recipes in `recipes/`.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("default", include_str!("../../recipes/default.toml")),
    ("vit", include_str!("../../recipes/vit.toml")),
    ("vmoe", include_str!("../../recipes/vmoe.toml")),
    ("e3", include_str!("../../recipes/e3.toml")),
    ("soft-moe", include_str!("../../recipes/soft-moe.toml")),
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

    use super::*;
    use crate::recipe::{Recipe, Request};

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

    #[test]
    fn a_wrong_name_finds_the_right_one() {
        let message = Recipe::find("fashion-vmeo", &Request::default()).unwrap_err().to_string();
        assert!(message.contains("fashion-vmoe"), "{message}");
    }

    /// Paper 001 compares six routers; a recipe is its constructor with 8 experts and one expert's worth of
    /// work per token, and differs from the others in nothing else.
    #[test]
    fn the_recipes_of_routers_are_their_constructors() {
        use omma_routing::{Allocation, ROUTERS};
        let first = Recipe::find("softmax-token-choice", &Request::default()).unwrap();
        for (name, make) in ROUTERS {
            let recipe = Recipe::find(name, &Request::default()).unwrap();
            let mut router = make(8, 1);
            match &mut router.allocation {
                // §3.1: as many places as tokens.
                Allocation::TokenChoice(choice) if router.affinity == Default::default() => {
                    choice.capacity.as_mut().unwrap().factor = 1.0;
                }
                // 8 slots of 8 experts for 64 tokens.
                Allocation::Soft(soft) => soft.slots = 8,
                _ => {}
            }
            assert_eq!(recipe.model.moe().unwrap().router, router, "{name}");
            let mut model = recipe.model;
            model.encoder.moe = first.model.encoder.moe.clone();
            assert_eq!(model, first.model, "{name}");
            assert_eq!((recipe.train, recipe.optimiser), (first.train.clone(), first.optimiser));
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
