//! Parity of layers and whole models with reference implementations, through the fused kernels and the
//! importers.

mod layers;
mod models;

use omma_golden::{Case, Kind, check_cases};
use omma_routing::{Loss, LossTerm};

/// All auxiliary losses that a case names; importance alone where it names none.
fn losses(case: &Case) -> Vec<LossTerm> {
    let Some(weights) = case.json()["config"]["loss_weights"].as_object() else {
        return vec![LossTerm::new(Loss::Importance, 1.0)];
    };
    let term = |(name, weight): (&String, &serde_json::Value)| {
        let loss = match name.as_str() {
            "importance" => Loss::Importance,
            "load" => Loss::Load,
            "gshard" => Loss::Balance,
            other => panic!("unknown loss {other}"),
        };
        LossTerm::new(loss, weight.as_f64().unwrap())
    };
    weights.iter().map(term).collect()
}

#[test]
fn layers_agree_with_their_references() {
    let kinds = [Kind::MoeLayer, Kind::ExpertChoice, Kind::SoftMoe, Kind::Ensemble];
    check_cases(|kind| kinds.contains(&kind), layers::check);
}

#[test]
fn models_agree_with_their_references() {
    let kinds = [Kind::VisionMoe, Kind::EnsembleModel, Kind::Timm];
    check_cases(
        |kind| kinds.contains(&kind),
        |kind, case| match kind {
            Kind::Timm => models::timm(case),
            _ => models::vmoe(case),
        },
    );
}
