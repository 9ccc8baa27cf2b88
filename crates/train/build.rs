//! Tells the crate which commit it is built from, where there is one.

use std::{path::Path, process::Command};

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    println!("cargo::rustc-env=OMMA_COMMIT={commit}");
    // HEAD's log grows with every commit, so a new commit is seen and nothing else rebuilds.
    if let Some(log) =
        git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|l| Path::new(l).exists())
    {
        println!("cargo::rerun-if-changed={log}");
    } else {
        println!("cargo::rerun-if-changed=build.rs");
    }
}
