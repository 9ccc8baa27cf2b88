//! Every parser of the workspace, on damaged and hostile input.
//!
//! `PROPTEST_CASES=1000000 cargo test --release --package omma-fuzz -- NAME` tries one for as long as one
//! likes.

mod data;
mod models;
mod runs;

use std::{
    alloc::System,
    fs,
    path::{Path, PathBuf},
};

use cap::Cap;
use omma_fuzz::MOST_MEMORY;

/// Counts what is held. An allocation beyond the limit fails, which ends the process; the input that did it
/// is still in its folder below `/dev/shm` or the folder of temporary files.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, MOST_MEMORY);

/// A file of the workspace's tests.
fn file(path: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A file for a parser that takes two.
fn beside(input: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = input.with_file_name(name);
    if !path.exists() {
        fs::write(&path, bytes).expect("inputs can be written");
    }
    path
}
