//! Vision mixtures of experts behind HTTP.
//!
//! Three rings, each of which knows only the one inside it:
//!
//! | place | ring |
//! |---|---|
//! | `predictor.rs`, `experts.rs` | a model on a thread of its own, which runs batches |
//! | `queue.rs`, `model.rs`, `server.rs` | a bounded queue per model; models by name, replaced while they are asked |
//! | `routes/`, `protocol/` | addresses: images in and answers out, and the Open Inference Protocol |
//!
//! | file | beside these |
//! |---|---|
//! | `listen.rs`, `write_timeout.rs` | connections: how many, how long, how they end |
//! | `body.rs`, `multipart.rs`, `wishes.rs` | what a request holds and asks for |
//! | `guard.rs` | who may ask |
//! | `access.rs`, `metrics.rs`, `drift.rs` | what is seen from outside |
//! | `error.rs` | why there is no answer, and the one place that knows what HTTP calls it |
//! | `options.rs` | limits, each with its reason |
//! | `page.html`, `openapi.json` | what people and programs read first |
//!
//! Invariant: an image has the same answer, bit for bit, alone and in any batch. Models whose routers look at several
//! images at once are given one image at a time.

#![forbid(unsafe_code)]

mod access;
mod body;
mod drift;
mod error;
mod experts;
mod guard;
mod listen;
mod metrics;
mod model;
mod multipart;
mod options;
mod predictor;
mod protocol;
mod queue;
mod routes;
mod search;
mod server;
mod wishes;
mod write_timeout;

pub use access::AccessLog;
pub use drift::{ExpertLoad, RecentLoad, load_drift};
pub use error::{Result, ServeError};
pub use listen::serve;
pub use model::{Load, Subject};
pub use options::Options;
pub use queue::Batching;
pub use search::Photos;
pub use server::Server;
