//! A folder that nobody else has.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Makes `NAME-1` below a folder, or `NAME-2` if that is there, and so on. Of two processes that want the
/// same name, one gets the next.
pub fn fresh_folder(below: &Path, name: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(below)?;
    let mut number = 1_u64;
    loop {
        let path = below.join(format!("{name}-{number}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            result => return result.map(|()| path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caller_gets_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("runs");
        let made: Vec<PathBuf> = std::thread::scope(|scope| {
            let make = || fresh_folder(&below, "x").unwrap();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut names = made.clone();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8);
        assert!(below.join("x-8").is_dir());
    }
}
