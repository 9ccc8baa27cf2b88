//! How much frozen features know about classes, from a few images of each (paper 000 App. A.5).
//!
//! | file | room for |
//! |---|---|
//! | `probe.rs` | ridge regression in closed form |
//! | `protocol.rs` | which images, how many, joint and disjoint ensembles, standard errors |

mod probe;
mod protocol;

pub use self::{
    probe::{Probe, ProbeError, Support},
    protocol::{FewShot, FewShotProtocol, Shots, few_shot},
};
