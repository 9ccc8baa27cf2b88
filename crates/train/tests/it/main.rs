//! Integration tests of `omma-train`, one module per topic.

mod golden;
mod runs;
mod settings;
mod several_ranks;
