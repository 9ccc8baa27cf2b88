//! Parity of layers and whole models with reference implementations, through the fused kernels and the
//! importers.

mod contrast;
mod layers;
mod models;
mod segmentation;

use omma_golden::{Kind, check_cases};

#[test]
fn layers_agree_with_their_references() {
    let kinds = [Kind::MoeLayer, Kind::ExpertChoice, Kind::SoftMoe, Kind::Ensemble];
    check_cases(|kind| kinds.contains(&kind), layers::check);
}

#[test]
fn subsets_of_soft_experts_agree_with_their_reference() {
    check_cases(|kind| kind == Kind::SoftSubset, |_, case| layers::check_subset(case));
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

#[test]
fn images_and_texts_agree_with_their_references() {
    let kinds = [Kind::TwoTowers, Kind::OneTower, Kind::Contrast];
    check_cases(|kind| kinds.contains(&kind), contrast::check);
}

#[test]
fn pixels_agree_with_their_references() {
    check_cases(|kind| kind == Kind::Segmentation, |_, case| segmentation::check(case));
}
