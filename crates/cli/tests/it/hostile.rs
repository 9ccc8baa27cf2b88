//! Files, names and paths that are not what they should be.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use image::{ImageFormat, RgbImage};
use omma_testing::by_tier;

use crate::support::program;

/// Runs a command that must not hang; what it said, and the most memory that it held.
fn watched(command: &mut Command) -> (Output, u64) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let (began, mut peak) = (Instant::now(), 0);
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "it hangs");
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        peak = peak.max(kilobytes.unwrap_or(0) * 1024);
        std::thread::sleep(Duration::from_millis(1));
    }
    (child.wait_with_output().unwrap(), peak)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command that must fail says: one line, exit code 1. Quiet, for progress where it takes long.
fn refusal(command: &mut Command) -> String {
    let (output, _) = watched(command.arg("--quiet"));
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    message
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name)
}

/// A small model that tells ten classes apart.
fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/run-1/finished.safetensors")
}

fn image(path: &Path) {
    RgbImage::from_pixel(20, 10, image::Rgb([9, 9, 9])).save(path).unwrap();
}

#[cfg(unix)]
#[test]
fn folders_with_links_pipes_and_devices_are_read_to_their_end() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    image(&here.join("a.png"));
    for link in ["one", "two"] {
        symlink(".", here.join(link)).unwrap();
    }
    symlink("/dev/zero", here.join("zero.png")).unwrap();
    assert!(Command::new("mkfifo").arg(here.join("pipe.png")).status().unwrap().success());
    let (output, _) = watched(program().arg("predict").arg(model()).arg(here));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 1);
    for name in ["pipe.png", "zero.png"] {
        let (output, _) = watched(program().arg("predict").arg(model()).arg(here.join(name)));
        let message = text(&output.stderr);
        assert!(!output.status.success() && message.contains("not a file"), "{message}");
    }
    for (class, name) in [("x", "pipe.png"), ("y", "zero.png")] {
        fs::create_dir_all(here.join("data").join(class)).unwrap();
        (0..20).for_each(|i| image(&here.join("data").join(class).join(format!("{i}.png"))));
        fs::rename(here.join(name), here.join("data").join(class).join(name)).unwrap();
    }
    let mut train = program();
    train.current_dir(here).args(["train", "vmoe", "--data", "data", "--set", "train.steps=2"]);
    let (output, _) =
        watched(train.args(["--set", "train.batch=4", "--set", "data.validation=0.2"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn large_pictures_are_held_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    // In the usual tier two pictures of 36 MiB, each a third of what a process may hold.
    let (side, count, most) = by_tier((3500, 3, 200 << 20), (7000, 8, 800 << 20));
    let picture = RgbImage::from_pixel(side, side, image::Rgb([250, 250, 250]));
    let first = folder.path().join("0.png");
    picture.save_with_format(&first, ImageFormat::Png).unwrap();
    for i in 1..count {
        fs::copy(&first, folder.path().join(format!("{i}.png"))).unwrap();
    }
    let (output, peak) = watched(program().arg("predict").arg(model()).arg(folder.path()));
    assert_eq!(text(&output.stdout).lines().count(), count);
    let size = (side * side * 3) >> 20;
    assert!(peak < most, "{} MiB for {count} pictures of {size} MiB", peak >> 20);
    let mut narrow = program();
    narrow.args(["--max-pixels", "1000000", "predict"]).arg(model()).arg(folder.path());
    let (output, _) = watched(&mut narrow);
    let message = text(&output.stderr);
    assert!(!output.status.success() && message.contains("--max-pixels"), "{message}");
}

#[test]
fn a_picture_is_turned_as_viewers_turn_it() {
    let folder = tempfile::tempdir().unwrap();
    // Dark above, light below; the note says that it was taken upside down.
    let picture = RgbImage::from_fn(64, 64, |_, y| image::Rgb([if y < 32 { 0 } else { 250 }; 3]));
    let turned = image::imageops::rotate180(&picture);
    let (plain, noted) = (folder.path().join("plain.jpg"), folder.path().join("noted.jpg"));
    turned.save(&plain).unwrap();
    picture.save(&noted).unwrap();
    let exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x03\0\0\0\0\0\0\0";
    let jpeg = fs::read(&noted).unwrap();
    let length = (exif.len() as u16 + 2).to_be_bytes();
    fs::write(&noted, [&jpeg[..2], &[0xff, 0xe1], &length, exif, &jpeg[2..]].concat()).unwrap();
    let predict = |path: &Path| {
        let (output, _) = watched(program().arg("predict").arg(model()).arg(path));
        let line = text(&output.stdout);
        line.split_once(": ").map(|(_, said)| said.to_owned()).unwrap()
    };
    assert_eq!(predict(&plain), predict(&noted));
}

#[test]
fn names_of_classes_must_be_those_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/run-1/unfinished");
    let copied = Command::new("cp").arg("-r").arg(old).arg(&run).status().unwrap();
    assert!(copied.success());
    for (names, why) in [("[\"a\", \"b\"]", "names 2 classes"), ("[\"a\"", "not a list")] {
        fs::write(run.join("classes.json"), names).unwrap();
        let (output, _) = watched(program().arg("eval").arg(&run).args(["--limit", "5"]));
        let message = text(&output.stderr);
        let last = message.lines().last().unwrap();
        assert!(!output.status.success(), "{message}");
        assert!(last.contains("classes.json") && last.contains(why), "{message}");
    }
}

#[test]
fn a_message_cannot_do_anything_to_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let name = "\u{1b}[2Jx\u{9b}31m.png";
    image(&folder.path().join(name));
    for json in [false, true] {
        let mut command = program();
        command.arg("predict").arg(model()).arg(folder.path());
        let (output, _) = watched(if json { command.arg("--json") } else { &mut command });
        let said = text(&output.stdout);
        assert!(output.status.success() && !said.trim_end().contains(char::is_control), "{said:?}");
        if json {
            let line: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert!(line["image"].as_str().unwrap().ends_with(name));
        }
    }
    let message = refusal(program().args(["inspect", "no\u{1b}[2Jfile"]));
    assert!(!message.trim_end().contains(char::is_control), "{message:?}");
}

#[test]
fn a_cause_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let message = refusal(program().args(["train", "no/such.toml"]));
    assert_eq!(message.matches("No such file").count(), 1, "{message}");
    assert!(message.contains("no/such.toml"), "{message}");
    fs::write(folder.path().join("eval.json"), "{}").unwrap();
    let message = refusal(program().arg("compare").arg(folder.path()));
    assert!(message.contains("eval.json"), "{message}");
    assert_eq!(message.matches("missing field").count(), 1, "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn paths_need_not_be_text() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join(OsStr::from_bytes(b"caf\xe9"));
    let mut train = program();
    train.current_dir(folder.path()).args(["train", "vmoe", "--run"]).arg(&odd);
    for setting in
        ["train.steps=2", "train.batch=4", "data.train_samples=50", "data.test_samples=20"]
    {
        train.args(["--set", setting]);
    }
    let (output, _) = watched(&mut train);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (output, _) = watched(program().arg("inspect").arg(&odd));
    assert!(output.status.success());
    let mut train = program();
    train.current_dir(folder.path()).args(["train", "vmoe", "--run", "x", "--init"]).arg(&odd);
    let message = refusal(&mut train);
    assert!(message.contains("UTF-8") && !folder.path().join("x").exists(), "{message}");
}

#[test]
fn damaged_and_hostile_archives_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    // One bit of a stored array: only its checksum tells.
    let mut bytes = fs::read(data("google.npz")).unwrap();
    let place = bytes.windows(6).position(|part| part == b"NUMPY\x01").unwrap() + 400;
    bytes[place] ^= 1;
    let damaged = folder.path().join("x.npz");
    fs::write(&damaged, bytes).unwrap();
    let out = folder.path().join("out");
    let message = refusal(program().arg("convert").arg(&damaged).arg(&out));
    assert!(message.contains("damaged"), "{message}");
    let hostile = folder.path().join("x.pth");
    fs::write(&hostile, b"\x80\x02cposix\nsystem\nq\x00X\x02\0\0\0idq\x01\x85q\x02Rq\x03.")
        .unwrap();
    let message = refusal(program().arg("convert").arg(&hostile).arg(&out));
    assert!(message.contains("posix.system"), "{message}");
    assert!(!out.exists());
}

#[test]
fn a_fine_tuned_run_outlives_the_checkpoint_it_began_with() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let begin = here.join("begin");
    fs::create_dir(&begin).unwrap();
    fs::copy(model(), begin.join("model.safetensors")).unwrap();
    let mut train = program();
    train.current_dir(here).args(["train", "finetune-vmoe", "--init", "begin", "--run", "run"]);
    let settings = ["train.steps=4", "train.batch=4", "data.name=world", "data.train_samples=50"];
    for setting in settings.iter().chain(&["data.test_samples=20", "model.resolution=32"]) {
        train.args(["--set", setting]);
    }
    let (output, _) = watched(&mut train);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::remove_dir_all(&begin).unwrap();
    let (output, _) = watched(program().current_dir(here).args(["eval", "run", "--limit", "10"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::remove_file(here.join("run/result.json")).unwrap();
    let (output, _) = watched(program().current_dir(here).args(["train", "--resume", "run"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A run of two steps.
fn tiny(here: &Path, run: &str, settings: &[&str]) -> Command {
    let mut train = program();
    train.current_dir(here).args(["train", "vmoe", "--run", run]);
    let small = ["train.steps=2", "train.batch=4", "data.train_samples=50", "data.test_samples=20"];
    for setting in small.iter().chain(&["train.linear_baseline=false"]).chain(settings) {
        train.args(["--set", setting]);
    }
    train
}

#[test]
fn a_new_run_does_not_write_over_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for file in ["model.safetensors", "report.html", "checkpoints/step-00000005/x", "metrics.jsonl"]
    {
        let run = here.join("run");
        fs::create_dir_all(run.join(file).parent().unwrap()).unwrap();
        fs::write(run.join(file), "mine").unwrap();
        let message = refusal(&mut tiny(here, "run", &[]));
        assert!(message.contains("write over"), "{message}");
        assert_eq!(fs::read_to_string(run.join(file)).unwrap(), "mine");
        assert!(!run.join("recipe.toml").exists());
        fs::remove_dir_all(run).unwrap();
    }
    fs::create_dir(here.join("run")).unwrap();
    fs::write(here.join("run/.notes.txt.backup"), "mine").unwrap();
    let (output, _) = watched(&mut tiny(here, "run", &[]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::remove_file(here.join("run/result.json")).unwrap();
    let (output, _) = watched(program().current_dir(here).args(["train", "--resume", "run"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(here.join("run/.notes.txt.backup").exists(), "somebody's file");
}

#[test]
fn a_run_without_its_checkpoints_is_not_taken_for_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert!(watched(&mut tiny(here, "run", &[])).0.status.success());
    fs::remove_dir_all(here.join("run/checkpoints")).unwrap();
    fs::remove_file(here.join("run/result.json")).unwrap();
    let message = refusal(program().current_dir(here).args(["train", "--resume", "run"]));
    assert!(message.contains("--from-start"), "{message}");
}

#[test]
fn other_classes_cannot_be_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for class in ["a", "b", "c"] {
        fs::create_dir_all(here.join("data").join(class)).unwrap();
        (0..20).for_each(|i| image(&here.join(format!("data/{class}/{i}.png"))));
    }
    let name = format!("data.name={}", here.join("data").display());
    assert!(watched(&mut tiny(here, "run", &[&name])).0.status.success());
    fs::remove_file(here.join("run/result.json")).unwrap();
    fs::rename(here.join("data/c"), here.join("elsewhere")).unwrap();
    for flag in [None, Some("--accept-changes")] {
        let mut resume = program();
        resume.current_dir(here).args(["train", "--resume", "run"]).args(flag);
        let message = refusal(&mut resume);
        assert!(message.contains("2 classes now"), "{message}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn nobody_needs_to_listen_to_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for class in ["a", "b"] {
        fs::create_dir_all(here.join("data").join(class)).unwrap();
        (0..20).for_each(|i| image(&here.join(format!("data/{class}/{i}.png"))));
    }
    fs::write(here.join("data/a/empty.png"), "").unwrap();
    let name = format!("data.name={}", here.join("data").display());
    let mut train = tiny(here, "run", &[&name, "data.bad_share=0.5", "data.validation=0.1"]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let status = train.stdout(Stdio::null()).stderr(full).status().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn one_run_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert!(watched(&mut tiny(here, "run", &[])).0.status.success());
    let message = refusal(program().current_dir(here).args(["eval", "run", "./run"]));
    assert!(message.contains("named twice"), "{message}");
    assert!(watched(program().current_dir(here).args(["eval", "run"])).0.status.success());
    let message =
        refusal(program().current_dir(here).args(["compare", "run", "run/evals/world/eval.json"]));
    assert!(message.contains("named twice"), "{message}");
    // What was judged before the run went on is judged again.
    let recipe = fs::read_to_string(here.join("run/recipe.toml")).unwrap();
    fs::write(here.join("run/recipe.toml"), recipe.replace("steps = 2", "steps = 6")).unwrap();
    fs::remove_file(here.join("run/result.json")).unwrap();
    let resume = ["train", "--resume", "run", "--accept-changes"];
    assert!(watched(program().current_dir(here).args(resume)).0.status.success());
    let (output, _) = watched(program().current_dir(here).args(["compare", "run", "--out", "out"]));
    let message = text(&output.stderr);
    assert!(output.status.success() && message.contains("another recipe"), "{message}");
    let message =
        refusal(program().current_dir(here).args(["eval", "run", "--out", "run/recipe.toml/x"]));
    assert!(message.contains("cannot be made"), "{message}");
}
