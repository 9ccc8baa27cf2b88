//! Integration tests of `omma-kernels`, one module per topic.

mod half;
mod twins;
