//! How good predictions are, and how much they know about that.
//!
//! | place | room for |
//! |---|---|
//! | `metrics/` | numbers from predictions: one file per question |
//! | `fewshot.rs` | a linear probe in closed form |
//!
//! Everything here is `f64` arithmetic over plain slices, summed as predictions come.

#![forbid(unsafe_code)]

pub mod fewshot;
pub mod metrics;
