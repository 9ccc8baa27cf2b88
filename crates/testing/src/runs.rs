//! Trained runs that several tests read: each is trained once per build of the program.

use std::{
    collections::hash_map::DefaultHasher,
    fs::{self, File},
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use crate::copy_folder;

/// Age after which the runs of another build of the program are removed.
const STALE: Duration = Duration::from_secs(3600);

/// Runs beside a program, in `fixtures/BUILD/RUN` of its folder.
///
/// `BUILD` identifies the program's file by its size and its time of modification, and `RUN` the
/// arguments of the training. Processes that need the same run wait for the one that trains it.
#[derive(Debug)]
pub struct RunCache {
    program: PathBuf,
    folder: PathBuf,
}

impl RunCache {
    /// Opens the cache of a program such as `target/debug/omma`.
    ///
    /// # Panics
    ///
    /// Panics if the program does not exist or its folder cannot be written to.
    pub fn new(program: &Path) -> Self {
        let metadata = fs::metadata(program).expect("the program exists");
        let modified = metadata.modified().expect("files have a time of modification");
        let all = program.with_file_name("fixtures");
        let folder = all.join(key(&(metadata.len(), modified)));
        if !folder.is_dir() {
            fs::create_dir_all(&folder).expect("the folder of fixtures can be created");
            remove_stale(&all, &folder);
        }
        Self { program: program.to_owned(), folder }
    }

    /// Returns the folder of `omma train ARGUMENTS`, and trains the run first if no test has.
    ///
    /// Tests only read it; [`RunCache::copy`] is for tests that change the run. The arguments must
    /// not name files, and the training must be a function of them alone.
    ///
    /// # Panics
    ///
    /// Panics with the program's standard error if the training fails.
    pub fn run(&self, arguments: &[&str]) -> PathBuf {
        self.run_made_by(&key(&arguments), |run| self.train(arguments, run))
    }

    /// Copies [`RunCache::run`] to `to`.
    pub fn copy(&self, arguments: &[&str], to: &Path) {
        copy_folder(&self.run(arguments), to);
    }

    /// Returns the folder that `make` fills, and calls it if no test has for this name.
    ///
    /// # Panics
    ///
    /// Panics if the folder cannot be written to.
    pub fn run_made_by(&self, name: &str, make: impl FnOnce(&Path)) -> PathBuf {
        let run = self.folder.join(name);
        if !run.is_dir() {
            let lock = self.folder.join(format!("{name}.lock"));
            let lock = File::create(lock).expect("a lock can be created");
            lock.lock().expect("a lock can be taken");
            if !run.is_dir() {
                let unfinished = tempfile::tempdir_in(&self.folder).expect("a folder is created");
                let made = unfinished.path().join("run");
                make(&made);
                fs::rename(made, &run).expect("a run can be renamed");
            }
        }
        run
    }

    fn train(&self, arguments: &[&str], run: &Path) {
        let output = Command::new(&self.program)
            .arg("train")
            .args(arguments)
            .arg("--run")
            .arg(run)
            .stdin(Stdio::null())
            .output()
            .expect("the program can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn key(value: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Removes the runs of builds that are older than [`STALE`].
fn remove_stale(all: &Path, current: &Path) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|time| SystemTime::now().duration_since(time).ok());
        if entry.path() != current && age.is_some_and(|age| age > STALE) {
            // Another process may have removed it first.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program that writes its arguments into the folder of the run and counts its starts.
    fn program(folder: &Path) -> PathBuf {
        let path = folder.join("omma");
        let text = "#!/bin/sh\necho . >> \"$0.starts\"\n\
                    for folder; do :; done\nmkdir \"$folder\"\necho \"$*\" > \"$folder/arguments\"\n";
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn run_with_same_arguments_is_trained_once_and_copies_are_independent() {
        let folder = tempfile::tempdir().unwrap();
        let program = program(folder.path());
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        RunCache::new(&program).copy(&["vmoe", "--set", "x=1"], &a);
        fs::write(a.join("arguments"), "changed").unwrap();
        let cache = RunCache::new(&program);
        cache.copy(&["vmoe", "--set", "x=1"], &b);
        assert!(
            fs::read_to_string(b.join("arguments")).unwrap().starts_with("train vmoe --set x=1")
        );
        cache.run(&["vmoe", "--set", "x=2"]);
        let starts = fs::read_to_string(folder.path().join("omma.starts")).unwrap();
        assert_eq!(starts.lines().count(), 2);
    }
}
