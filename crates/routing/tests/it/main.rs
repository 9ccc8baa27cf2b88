//! Integration tests of `omma-routing`, one module per topic.

mod errors;
mod golden;
mod losses;
mod normalised;
mod precision;
mod properties;
