//! Golden cases: reference vectors that the tests of this workspace compare with.
//!
//! The cases lie in `tests/golden` of the repository, or in the folder that the environment variable
//! `OMMA_GOLDEN` names. What a case is about is read from its own description. This crate is for
//! tests alone: it panics with a message where a library would return an error.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "tests report what they compared")]

mod case;
mod kind;

use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
};

pub use case::{Case, values};
pub use kind::Kind;

/// All cases of the folder, by name.
pub fn cases() -> Vec<Case> {
    // Tests run in their package's folder; a relative path is meant from the repository's.
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let folder = root.join(env::var_os("OMMA_GOLDEN").unwrap_or_else(|| "tests/golden".into()));
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> =
        files.map(|file| file.expect("a folder can be read").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(!files.is_empty(), "{} has no cases", folder.display());
    files.iter().map(|file| Case::load(file)).collect()
}

/// Runs `check` on every case whose kind `select` takes, and fails with the names of all that fail.
/// A case of no known kind fails too.
pub fn check_cases(select: impl Fn(Kind) -> bool, check: impl Fn(Kind, &Case)) {
    let (mut agree, mut others, mut failed) = (0, 0, Vec::new());
    for case in cases() {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let kind = Kind::of(&case);
            let selected = select(kind);
            if selected {
                check(kind, &case);
                case.finish();
            }
            selected
        }));
        match outcome {
            Ok(true) => agree += 1,
            Ok(false) => others += 1,
            Err(_) => {
                eprintln!("in case {}", case.name());
                failed.push(case.name().to_owned());
            }
        }
    }
    println!("{agree} cases agree, {others} are not of this test");
    assert!(failed.is_empty(), "cases that do not agree: {failed:?}");
    assert!(agree > 0 || env::var_os("OMMA_GOLDEN").is_some(), "no case is of this test");
}
