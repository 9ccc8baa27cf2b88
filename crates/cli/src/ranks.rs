//! Commands that several ranks run together. All of them compute; rank 0 alone speaks and writes.

use std::time::Duration;

use anyhow::{Result, anyhow};
use omma_ranks::World;

use crate::{screen, table::complain};

/// What rank 0 may take to say a fault that another has too, before the other ends all.
const LEADER_FIRST: Duration = Duration::from_secs(3);

/// This process among those that a launcher has started with it.
pub(crate) fn connect() -> Result<World> {
    let world = omma_ranks::connect()?;
    if !world.leads() {
        screen::set_quiet(true);
    }
    Ok(world)
}

/// Refuses to do the same several times.
///
/// - `command`: what was asked for, such as "predict"
pub(crate) fn expect_one(command: &str) -> Result<()> {
    match omma_ranks::launched() {
        None | Some(1) => Ok(()),
        Some(ranks) => Err(anyhow!(
            "omma {command} runs in one process, and {ranks} were started; train, eval and routes share their work \
             among ranks (docs/scaling.md)"
        )),
    }
}

/// What this rank has, if all ranks have theirs; else its own fault, or the first of another.
pub(crate) fn agree<T>(world: &World, own: Result<T>) -> Result<T> {
    let fault = own.as_ref().err().map(|error| (world.machine(), format!("{error:#}")));
    let others = world.shared(fault).into_iter().enumerate();
    let mut faults = others.filter_map(|(rank, fault)| {
        fault.map(|(machine, what)| anyhow!("rank {rank} on {machine}: {what}"))
    });
    own.and_then(|own| faults.next().map_or(Ok(own), Err))
}

/// What rank 0 has done; where it has failed, all ranks end, or they would wait for it.
pub(crate) fn led<T>(world: &World, done: Result<T>) -> Result<T> {
    match done {
        Err(error) if !world.is_alone() => {
            complain(&error);
            world.abort(1)
        }
        done => done,
    }
}

/// Ends another rank than the first. What went wrong on rank 0 too is said there; anything else ends all, or they would
/// wait for this one.
pub(crate) fn ended<T>(world: &World, done: Result<T>) -> Result<()> {
    let Err(error) = done else { return Ok(()) };
    std::thread::sleep(LEADER_FIRST);
    complain(&error.context(format!("rank {} on {}", world.rank(), world.machine())));
    world.abort(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_one_rank_is_said_with_its_machine_and_ends_all() {
        let found = omma_ranks::threads(3, |world| {
            let well = agree(&world, Ok(world.rank())).unwrap();
            let own = match world.rank() {
                2 => Err(anyhow!("no such file").context("photos/")),
                _ => Ok(()),
            };
            (well, agree(&world, own).unwrap_err().to_string())
        });
        let others = "rank 2 on this machine: photos/: no such file".to_owned();
        assert_eq!(found, [(0, others.clone()), (1, others), (2, "photos/".to_owned())]);
    }
}
