//! What was damaged is found, named and set aside; what is healthy is not.

use std::{
    fs,
    path::{Path, PathBuf},
};

use omma_testing::files_below as files;

use crate::kill::{
    STEPS, checkpoints, lines, model, refusal, resume, said, start, steps, stopped, whole,
    with_fault,
};

struct Stopped {
    _folder: tempfile::TempDir,
    run: PathBuf,
    whole: PathBuf,
}

/// A stopped run with several checkpoints, and the same run to its end.
fn example() -> Stopped {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    stopped(&run);
    Stopped { _folder: folder, run, whole: whole() }
}

fn turn(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn set_aside(run: &Path) -> usize {
    let names = fs::read_dir(run.join("checkpoints")).unwrap().flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with("damaged-")).count()
}

/// Resumes to the end, with the same bits as a run that was not damaged.
fn goes_on(Stopped { run, whole, .. }: &Stopped, warning: &str) {
    let output = said(&mut resume(run));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains(warning), "{text}");
    assert!(model(run) == model(whole), "it ends with the same bits");
    assert_eq!(lines(run), lines(whole));
}

#[test]
fn one_bit_of_a_state_is_noticed() {
    let example = example();
    let newest = steps(&example.run).pop().unwrap();
    let state = newest.join("state.safetensors");
    // The number of the step, in what the file says of itself.
    let bytes = fs::read(&state).unwrap();
    let mark = b"\\\"step\\\":";
    let place = bytes.windows(mark.len()).position(|part| part == mark).unwrap();
    turn(&state, place + mark.len());
    goes_on(&example, "does not have its checksum");
    assert_eq!(set_aside(&example.run), 1);
}

#[test]
fn the_state_of_another_step_is_noticed() {
    let example = example();
    let all = steps(&example.run);
    let [.., older, newest] = all.as_slice() else { panic!("two checkpoints") };
    fs::copy(older.join("state.safetensors"), newest.join("state.safetensors")).unwrap();
    goes_on(&example, "lies in the folder of");
}

#[test]
fn the_model_of_another_step_is_noticed() {
    let example = example();
    let all = steps(&example.run);
    let [.., older, newest] = all.as_slice() else { panic!("two checkpoints") };
    fs::copy(older.join("model.safetensors"), newest.join("model.safetensors")).unwrap();
    goes_on(&example, "belongs to other weights");
}

#[test]
fn one_bad_byte_in_the_log_costs_one_line() {
    let example = example();
    let log = example.run.join("metrics.jsonl");
    let mut bytes = fs::read(&log).unwrap();
    bytes[3] = 0xff;
    fs::write(&log, [&bytes[..], b"{\"kind\":\"tr"].concat()).unwrap();
    let output = said(&mut resume(&example.run));
    assert!(output.status.success());
    let whole = fs::read(example.whole.join("metrics.jsonl")).unwrap();
    let count = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(count(&fs::read(&log).unwrap()), count(&whole));
}

#[test]
fn a_recipe_that_was_changed_is_noticed() {
    let example = example();
    let path = example.run.join("recipe.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("seed = 7", "seed = 6")).unwrap();
    let before = files(&example.run);
    let message = refusal(&mut resume(&example.run));
    assert!(message.contains("seed is 6 and was 7"), "{message}");
    assert!(files(&example.run) == before, "nothing was touched");
    assert!(resume(&example.run).arg("--accept-changes").status().unwrap().success());
}

#[test]
fn starting_over_takes_a_word() {
    let example = example();
    let before = checkpoints(&example.run);
    for checkpoint in steps(&example.run) {
        turn(&checkpoint.join("model.safetensors"), 5_000);
    }
    let damaged = checkpoints(&example.run);
    for _ in 0..2 {
        let message = refusal(&mut resume(&example.run));
        assert!(message.contains("--from-start"), "{message}");
        assert!(checkpoints(&example.run) == damaged, "nothing was renamed");
    }
    // Healthy again: everything is still there.
    before.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    for checkpoint in steps(&example.run) {
        fs::remove_dir_all(checkpoint).unwrap();
    }
    let message = refusal(&mut resume(&example.run));
    assert!(message.contains("they are gone"), "{message}");
    assert!(resume(&example.run).arg("--from-start").status().unwrap().success());
    assert!(model(&example.run) == model(&example.whole));
}

#[test]
fn images_that_were_added_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (run, data) = (folder.path().join("run"), folder.path().join("data"));
    let image = |class: &str, name: usize| {
        fs::create_dir_all(data.join(class)).unwrap();
        let picture = image::RgbImage::from_pixel(8, 8, image::Rgb([name as u8; 3]));
        picture.save(data.join(class).join(format!("{name}.png"))).unwrap();
    };
    (0..60).for_each(|name| ["a", "b"].iter().for_each(|class| image(class, name)));
    let name = format!("data.name={}", data.display());
    let mut command = start(&run, STEPS, &[&name]);
    let status = with_fault(&mut command, "term:5:metrics.jsonl:append").status().unwrap();
    assert_eq!(status.code(), Some(143));
    let before = files(&run);
    image("b", 60);
    let message = refusal(&mut resume(&run));
    assert!(
        message.contains("the images have changed") && message.contains("87 images"),
        "{message}"
    );
    assert!(files(&run) == before, "nothing was touched");
    fs::remove_file(data.join("b/60.png")).unwrap();
    assert!(resume(&run).status().unwrap().success());
}

#[test]
fn a_changed_recipe_does_not_make_checkpoints_damaged() {
    let example = example();
    let path = example.run.join("recipe.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("kind = \"adam-w\"", "kind = \"lamb\"").replace("ema = 0.9", "ema = 0.0"),
    )
    .unwrap();
    let before = checkpoints(&example.run);
    assert!(refusal(&mut resume(&example.run)).contains("optimiser.kind"));
    assert!(checkpoints(&example.run) == before, "a resume that is refused touches nothing");
    let output = said(resume(&example.run).arg("--accept-changes"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("damaged"), "{text}");
    assert_eq!(set_aside(&example.run), 0);
    let after = checkpoints(&example.run);
    let path = |path: &PathBuf| path.to_string_lossy().into_owned();
    assert!(after.keys().map(path).all(|path| !path.contains("damaged")));
    let kept = after.iter().filter(|(path, _)| before.contains_key(*path));
    assert!(
        kept.into_iter().all(|(path, bytes)| path.ends_with("best.json") || before[path] == *bytes)
    );
    let last = format!("step-{STEPS:08}");
    assert!(steps(&example.run).pop().is_some_and(|path| path.ends_with(&last)));
}

#[test]
fn the_model_of_a_run_cannot_be_changed() {
    let example = example();
    let path = example.run.join("recipe.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("noise = 1.0", "noise = 2.0")).unwrap();
    let before = files(&example.run);
    assert!(refusal(&mut resume(&example.run)).contains("model.moe.noise is 2.0 and was 1.0"));
    let message = refusal(resume(&example.run).arg("--accept-changes"));
    assert!(message.contains("settings of the model"), "{message}");
    let after = files(&example.run);
    assert!(before.iter().all(|(path, bytes)| after.get(path) == Some(bytes)));
    fs::write(&path, text).unwrap();
    goes_on(&example, "");
}
