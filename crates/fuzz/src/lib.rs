//! Damaged and hostile input for every parser of this workspace.
//!
//! A target begins with files that are right, takes them apart ([`container`]), changes the parts
//! ([`mutation`]), puts them together again with the checksums and lengths that belong to them, and hands the
//! result to a parser. The parser must accept the files that are right; it may refuse the others. It may
//! not panic, abort, take longer than
//! [`SLOWEST`] or hold more than [`MOST_MEMORY`].
//!
//! `cargo test --workspace` tries a few hundred inputs per target; as many as one likes:
//!
//! ```sh
//! PROPTEST_CASES=1000000 cargo test --release --package omma-fuzz
//! ```
//!
//! A failing input is made smaller by proptest, and the file itself is kept, named in the message.

#![forbid(unsafe_code)]

pub mod container;
pub mod mutation;
mod watch;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use proptest::{
    collection::vec,
    test_runner::{Config, TestCaseError, TestRunner},
};

pub use self::{
    container::Container,
    mutation::Mutation,
    watch::{MOST_MEMORY, SLOWEST},
};

/// A parser, and right files for it.
pub struct Target<'a> {
    /// What it is called, and what its files end with.
    pub name: &'a str,
    /// Right input to begin with.
    pub seeds: Vec<Vec<u8>>,
    /// How files are taken apart; the bytes themselves are always changed too.
    pub containers: &'a [Container],
    /// Inputs that are tried where `PROPTEST_CASES` does not say how many.
    pub cases: u32,
}

/// Result of a parser: the file was accepted or refused.
pub trait ParserOutcome {
    /// Returns whether the file was accepted.
    fn is_accepted(&self) -> bool;
}

impl ParserOutcome for bool {
    fn is_accepted(&self) -> bool {
        *self
    }
}

/// Opts out: a parser that returns nothing may refuse every seed.
impl ParserOutcome for () {
    fn is_accepted(&self) -> bool {
        true
    }
}

impl Target<'_> {
    /// Tries the parser, which gets the path of a file and returns whether it accepts it.
    ///
    /// # Panics
    ///
    /// Panics if the parser refuses an unchanged seed or fails on a changed one.
    pub fn run<T: ParserOutcome>(&self, parser: impl Fn(&Path) -> T) {
        let _alone = watch::alone();
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::tempdir_in(folder).expect("a folder for inputs");
        let file = folder.path().join(self.name);
        for (number, seed) in self.seeds.iter().enumerate() {
            fs::write(&file, seed).expect("inputs can be written");
            assert!(parser(&file).is_accepted(), "{}: seed {number} is refused", self.name);
        }
        let mut config = Config { failure_persistence: None, ..Config::default() };
        if std::env::var_os("PROPTEST_CASES").is_none() {
            config.cases = self.cases;
        }
        let input = (0..self.seeds.len(), 0..=self.containers.len(), vec(mutation::any(), 1..6));
        let result = TestRunner::new(config).run(&input, |(seed, container, mutations)| {
            let bytes = self.changed(seed, container, &mutations);
            fs::write(&file, &bytes).expect("inputs can be written");
            let kept = || keep(&file, self.name);
            let watched = watch::begin(&file);
            let outcome = catch_unwind(AssertUnwindSafe(|| parser(&file)));
            match (outcome, watched.end()) {
                (Ok(_), Ok(())) => Ok(()),
                (Ok(_), Err(why)) => {
                    Err(TestCaseError::fail(format!("{why}: {}", kept().display())))
                }
                (Err(_), _) => Err(TestCaseError::fail(format!("it panics: {}", kept().display()))),
            }
        });
        if let Err(error) = result {
            panic!("{}: {error}", self.name);
        }
    }

    fn changed(&self, seed: usize, container: usize, mutations: &[Mutation]) -> Vec<u8> {
        let others = &self.seeds;
        let bytes = &self.seeds[seed];
        match self.containers.get(container) {
            None => mutation::all(mutations, bytes.clone(), others),
            Some(container) => {
                container.changed(bytes, |part| mutation::all(mutations, part, others))
            }
        }
    }
}

/// Copies a failing input to where it stays.
fn keep(file: &Path, name: &str) -> PathBuf {
    let bytes = fs::read(file).unwrap_or_default();
    let name = format!("omma-fuzz-{:08x}-{name}", crc32fast::hash(&bytes));
    let path = std::env::temp_dir().join(name);
    let _ = fs::write(&path, bytes);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target<'static> {
        Target { name: "x", seeds: vec![b"right".to_vec()], containers: &[], cases: 1 }
    }

    #[test]
    #[should_panic(expected = "x: seed 0 is refused")]
    fn parser_that_refuses_every_file_fails() {
        target().run(|_| false);
    }

    #[test]
    fn parser_may_refuse_changed_seeds() {
        target().run(|path| fs::read(path).unwrap() == b"right");
    }
}
