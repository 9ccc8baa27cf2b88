//! Processes that train one model together.
//!
//! | place | room for |
//! |---|---|
//! | `world.rs` | [`World`]: what ranks say to each other, and what that costs |
//! | `sum.rs` | sums over shards in one order, however these are spread over ranks |
//! | `owners.rs` | who sums which elements |
//! | `launch.rs` | whether a launcher started this process as one of several, and which cores are its own |
//! | `link.rs` | what a [`World`] needs of whatever connects its ranks |
//! | `threads.rs` | ranks that are threads of one process, for tests; alone, one of them |
//! | `mpi.rs` | ranks that `mpirun` started (feature `mpi`) |
//!
//! Rank 0 leads: it reads and writes the run, and says what is done next.

#![forbid(unsafe_code)]

mod launch;
mod link;
#[cfg(feature = "mpi")]
mod mpi;
mod owners;
mod sum;
mod threads;
mod world;

pub use launch::{LaunchError, connect, launched};
pub use owners::Owners;
pub use sum::{Share, sum_over_shards, sum_own_parts};
pub use threads::threads;
pub use world::{Traffic, World};
