//! Integration tests of `omma-model`, one module per topic.

mod checkpoint;
mod cost;
mod golden;
mod interop;
mod moe_layer;
mod precision;
mod single_layer;
mod spread;
mod systems;
