//! Faults of one rank, which end what all are doing.

use omma_model::ModelError;
use omma_ranks::World;
use omma_routing::RoutingError;
use serde::{Deserialize, Serialize};

use crate::error::{Result, TrainError};

/// What went wrong on a rank, as others hear of it.
#[derive(Serialize, Deserialize)]
struct Fault {
    machine: String,
    what: String,
    diverged: bool,
    /// Whether this is nothing but having heard of another's.
    heard: bool,
}

/// What this rank has, if all ranks have theirs. If not, its own fault, or else the first of the others; one that has
/// only heard of a fault has none of its own.
pub(crate) fn agree<T>(world: &World, own: Result<T>) -> Result<T> {
    if world.is_alone() {
        return own;
    }
    let fault = own.as_ref().err().map(|error| Fault {
        machine: world.machine(),
        what: error.to_string(),
        diverged: is_divergence(error),
        heard: is_heard(error),
    });
    let all = world.shared(fault).into_iter().enumerate();
    let mut faults = all.filter_map(|(rank, fault)| {
        let Fault { machine, what, diverged, .. } = fault.filter(|fault| !fault.heard)?;
        Some(TrainError::OnRank { what: format!("rank {rank} on {machine}: {what}"), diverged })
    });
    match own {
        Err(error) if is_heard(&error) => Err(faults.next().unwrap_or(error)),
        Err(error) => Err(error),
        Ok(own) => faults.next().map_or(Ok(own), Err),
    }
}

/// Whether an error is nothing but having heard of another rank's.
pub(super) fn is_heard(error: &TrainError) -> bool {
    matches!(error, TrainError::Model(ModelError::Elsewhere))
}

/// A router that meets a logit that is not finite is how an MoE diverges first, and outputs that are not are how
/// others do.
pub(super) fn is_divergence(error: &TrainError) -> bool {
    match error {
        TrainError::Model(ModelError::Routing(RoutingError::NonFiniteLogit { .. })) => true,
        TrainError::Judging(error) => error.is_not_finite(),
        TrainError::OnRank { diverged, .. } => *diverged,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::recipe_error;

    #[test]
    fn a_fault_of_one_rank_is_one_of_all() {
        let found = omma_ranks::threads(3, |world| {
            let rank = world.rank();
            let all_well = agree(&world, Ok(rank)).unwrap();
            let own = match rank {
                0 => Ok(()),
                _ => Err(recipe_error(format!("fault {rank}"))),
            };
            let said = agree(&world, own).unwrap_err().to_string();
            // Rank 0 has heard of what went wrong on rank 2.
            let own = match rank {
                0 => Err(ModelError::Elsewhere.into()),
                1 => Ok(()),
                _ => Err(recipe_error("no more".to_owned())),
            };
            let heard = agree(&world, own).unwrap_err().to_string();
            assert_eq!(
                heard,
                if rank == 2 { "no more" } else { "rank 2 on this machine: no more" }
            );
            (all_well, said)
        });
        let first = "rank 1 on this machine: fault 1".to_owned();
        assert_eq!(found, [(0, first), (1, "fault 1".to_owned()), (2, "fault 2".to_owned())]);
    }
}
