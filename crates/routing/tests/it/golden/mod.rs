//! Parity of routing with reference implementations: every case of `tests/golden` (or of the folder
//! that the environment variable `OMMA_GOLDEN` names), values and gradients, at the case's own
//! tolerance. A case of a kind that nothing answers for is a failure.

mod layer;
mod limoe;
mod tables;
mod token_choice;
mod transport;

use omma_golden::{Kind, check_cases};

#[test]
fn every_case_agrees_with_its_reference() {
    check_cases(
        |kind| kind.is_routing(),
        |kind, case| match kind {
            Kind::Capacity => tables::capacity(case),
            Kind::TieOrder => tables::tie_order(case),
            Kind::Simplex => tables::simplex(case),
            Kind::TokenChoice => token_choice::check(case),
            Kind::MoeLayer => layer::token_choice(case),
            Kind::ExpertChoice => layer::expert_choice(case),
            Kind::SoftMoe => layer::soft(case),
            Kind::Ensemble => layer::ensemble(case),
            Kind::Sinkhorn => transport::sinkhorn(case),
            Kind::SparseTransport => transport::sparse(case),
            Kind::LimoeLosses => limoe::check(case),
            other => unreachable!("{other:?} was not selected"),
        },
    );
}
