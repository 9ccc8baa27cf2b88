//! Test support for the workspace: settings of small models, trained runs that are made once, and
//! the tier that tests run in.
//!
//! This crate depends on no other crate of the workspace. Runs are trained by a program that the
//! caller names, so tests of every crate can use it without linking the trainer.

#![forbid(unsafe_code)]

mod files;
mod runs;
mod settings;

pub use files::{copy_folder, files_below};
pub use runs::RunCache;
pub use settings::{SMALL_EXPERTS, SMALL_MODEL, SMALL_RUN, model_settings};

/// Returns whether the long variants of tests run, as in `.ci/nightly` (`OMMA_TESTS=nightly`).
pub fn is_nightly() -> bool {
    std::env::var("OMMA_TESTS").is_ok_and(|tier| tier == "nightly")
}

/// Returns `nightly` in the nightly tier and `usual` otherwise.
pub fn by_tier<T>(usual: T, nightly: T) -> T {
    if is_nightly() { nightly } else { usual }
}

/// Reports that a test, or a part of it, cannot run on this machine.
///
/// `.ci/run` shows these lines beside the results.
#[allow(clippy::print_stdout)]
pub fn skipped(reason: &str) {
    println!("skipped: {reason}");
}
