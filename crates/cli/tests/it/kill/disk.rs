//! A disk that is full, and a process that may not open more files: an error, and nothing is touched.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use omma_testing::skipped;

use crate::{
    kill::{checkpoints, model, refusal, resume, stopped, whole, with_fault},
    support,
};

/// A small file system of its own, where the test may mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=4m", "none"];
        let mounted = Command::new("mount").args(mount).arg(at).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()))
    }

    /// Takes all the room there is.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        for size in [65_536, 4096, 1] {
            while file.write_all(&vec![7; size]).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn resume_on_full_disk_fails_and_keeps_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk")) else {
        return skipped("a full disk: only root can mount a file system; injected faults remain");
    };
    let run = disk.0.join("run");
    stopped(&run);
    let before = checkpoints(&run);
    disk.fill();
    for _ in 0..2 {
        let message = refusal(&mut resume(&run));
        assert!(message.contains("No space left"), "{message}");
        assert!(checkpoints(&run) == before, "a full disk is no damage");
    }
    disk.free();
    assert!(resume(&run).status().unwrap().success());
    assert!(model(&run) == model(&whole()), "it ends with the same bits");
}

#[test]
fn disk_that_fills_up_at_any_write_costs_only_time() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    stopped(&run);
    for point in [
        "1:state.safetensors:create",
        "2:state.safetensors:rename",
        "2:model.safetensors:rename",
        "2:checkpoint:rename",
        "2:newest.json:rename",
        "3:metrics.jsonl:append",
        "1:best.json:rename",
        "1:result.json:rename",
    ] {
        let mut command = resume(&run);
        let message = refusal(with_fault(&mut command, &format!("full:{point}")));
        assert!(message.contains("no storage space"), "{point}: {message}");
        let damaged = |path: &PathBuf| path.to_string_lossy().contains("damaged");
        assert!(!checkpoints(&run).keys().any(damaged), "{point}");
    }
    assert!(resume(&run).status().unwrap().success());
    assert!(model(&run) == model(&whole()), "it ends with the same bits");
}

/// As on a full disk, wherever nothing can be mounted: the system ends a process whose files grow too large.
#[test]
fn files_that_may_not_grow_cost_nothing_but_time() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    stopped(&run);
    let before = checkpoints(&run);
    for blocks in [0, 1, 4, 40] {
        assert!(!limited(&format!("ulimit -f {blocks}"), &run).success());
        let now = checkpoints(&run);
        assert!(before.iter().all(|(path, bytes)| now.get(path) == Some(bytes)), "{blocks}");
    }
    assert!(resume(&run).status().unwrap().success());
    assert!(model(&run) == model(&whole()), "it ends with the same bits");
}

fn limited(limit: &str, run: &Path) -> std::process::ExitStatus {
    let omma = support::program().get_program().to_owned();
    Command::new("sh")
        .args(["-c", &format!("{limit}; exec \"$0\" train --resume \"$1\"")])
        .arg(omma)
        .arg(run)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn too_many_open_files_cost_nothing_but_time() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    stopped(&run);
    let before = checkpoints(&run);
    let mut refused = 0;
    for files in 3..64 {
        if limited(&format!("ulimit -n {files}"), &run).success() {
            break;
        }
        refused += 1;
        assert!(checkpoints(&run).keys().all(|path| !path.to_string_lossy().contains("damaged")));
        let kept = before.iter().all(|(path, bytes)| checkpoints(&run).get(path) == Some(bytes));
        assert!(kept || run.join("newest.json").exists(), "{files} files");
    }
    assert!(refused > 2, "only {refused} limits were too low");
    if !run.join("result.json").exists() {
        assert!(resume(&run).status().unwrap().success());
    }
    assert!(model(&run) == model(&whole()), "it ends with the same bits");
}
