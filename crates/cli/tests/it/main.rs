//! Integration tests of `omma`, one module per topic.

mod commands;
mod eval;
mod frozen;
#[cfg(feature = "wgpu")]
mod gpu;
mod hostile;
mod kill;
mod memory;
mod predict;
mod predictions;
mod prune;
#[cfg(feature = "mpi")]
mod ranks;
mod routes;
mod search;
mod segment;
mod serve;
mod soup;
mod study;
mod support;
mod sweep;
mod terminal;
mod train;

#[cfg(not(feature = "mpi"))]
#[test]
#[ignore = "needs an MPI library, clang and --features omma/mpi"]
fn ranks() {}

#[cfg(not(feature = "wgpu"))]
#[test]
#[ignore = "needs a device and --features omma/wgpu: tests/gpu/run"]
fn gpu() {}
