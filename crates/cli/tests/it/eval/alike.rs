//! Evaluations side by side: none takes the place of another, and `omma compare` finds those that were judged
//! alike.

use std::{fs, path::Path};

use serde_json::Value;

use super::{error, evaluated, json, number, omma, text, trained};

fn names(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("evals")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn said(folder: &Path, arguments: &[&str]) -> (String, String) {
    let output = omma(folder, arguments).env("COLUMNS", "80").assert().success();
    let output = output.get_output();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn an_evaluation_takes_no_others_place_and_its_own_when_it_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "a", "vit", &[]);
    let (stdout, _) = said(folder, &["eval", text(&run)]);
    let plain = run.join("evals/world");
    assert!(stdout.contains(&format!("report: {}", plain.join("eval.html").display())), "{stdout}");
    let mut table = stdout.lines().filter(|line| line.starts_with('│'));
    assert!(table.all(|line| line.chars().count() <= 80), "{stdout}");
    // Fifty images: intervals, and no more digits than they bear.
    assert!(stdout.contains("95 % interval") && stdout.contains("top-5 error"), "{stdout}");
    assert!(stdout.contains("most often taken:"), "{stdout}");
    let before = fs::read(plain.join("eval.json")).unwrap();
    let record: Value = serde_json::from_slice(&before).unwrap();
    let interval = &record["intervals"]["error"];
    let (low, high) = (number(&interval["low"]), number(&interval["high"]));
    assert!(low < number(&record["error"]) && number(&record["error"]) < high, "{interval}");
    assert!((0.1..0.4).contains(&(high - low)), "of fifty images: {interval}");
    let percent = format!("{:.0} %", 100.0 * number(&record["error"]));
    assert!(stdout.contains(&percent), "{percent}: {stdout}");
    assert!(number(&record["top5_error"]) <= number(&record["error"]));
    let matrix = record["confusion"]["matrix"].as_array().unwrap();
    let images: u64 =
        matrix.iter().flat_map(|row| row.as_array().unwrap()).map(|n| n.as_u64().unwrap()).sum();
    assert_eq!((matrix.len(), images), (10, 50));
    let page = fs::read_to_string(plain.join("eval.html")).unwrap();
    assert!(page.contains("95 % interval") && page.contains("Confusions"));

    omma(folder, &["eval", text(&run), "--limit", "20"]).assert().success();
    omma(folder, &["eval", text(&run), "--ood", "world-far-ood"]).assert().success();
    assert_eq!(fs::read(plain.join("eval.json")).unwrap(), before, "others have other places");
    assert_eq!(names(&run).len(), 3, "{:?}", names(&run));
    omma(folder, &["eval", text(&run), "--limit", "20"]).assert().success();
    assert_eq!(names(&run).len(), 3, "the same takes its own place: {:?}", names(&run));
    for name in names(&run) {
        assert!(run.join("evals").join(name).join("images.safetensors").exists());
    }
}

#[test]
fn compare_takes_what_was_judged_alike_and_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let a = trained(folder, "a", "vit", &[]);
    let b = trained(folder, "b", "vit", &["model.mlp=48"]);
    omma(folder, &["eval", text(&a), "--ood", "far=world-far-ood"]).assert().success();
    // The one that was not judged yet is judged; the other is there, with more than both have.
    let both = ["compare", text(&a), text(&b), "--out", "out"];
    let (stdout, stderr) = said(folder, &both);
    assert!(stderr.contains(&format!("judging {}", text(&b))), "{stderr}");
    let command = format!("make it with: omma eval {} --ood far=world-far-ood", text(&b));
    assert!(stderr.contains(&command), "{stderr}");
    assert!(stdout.contains("on 50 images") && !stdout.contains("against far"), "{stdout}");
    let tables = stdout.lines().filter(|line| line.starts_with(['│', '┌', '└', '╞']));
    assert!(tables.clone().count() > 10, "{stdout}");
    assert!(tables.clone().all(|line| line.chars().count() <= 80), "{stdout}");
    // What it says to do does it.
    let words: Vec<&str> = command.split(' ').skip(4).collect();
    omma(folder, &words).assert().success();
    let (stdout, stderr) = said(folder, &both);
    assert!(stdout.contains("against far") && !stderr.contains("make it with"), "{stderr}");
    let found = json({
        let mut command = omma(folder, &both);
        command.arg("--json");
        command
    });
    let paired = &found["gains"][0]["paired"];
    assert_eq!((&paired["images"], &paired["pairs"]), (&50.into(), &1.into()));
    let nll = |row: usize| number(&found["rows"][row]["nll"]["mean"]);
    assert!((number(&paired["nll"]["mean"]) - (nll(1) - nll(0))).abs() < 1e-6, "{paired}");

    // Nothing in common.
    fs::remove_dir_all(a.join("evals")).unwrap();
    omma(folder, &["eval", text(&a), "--limit", "20"]).assert().success();
    let message = error(omma(folder, &["compare", text(&a), text(&b)]));
    assert!(message.contains("20 images of world") && message.contains("50 images of world"));
    assert!(message.contains(&format!("omma eval {}", text(&a))), "{message}");
}

#[test]
fn a_record_beside_the_runs_files_is_still_found() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "a", "vit", &[]);
    omma(folder, &["eval", text(&run)]).assert().success();
    // As earlier versions left it: one record, nothing of single images.
    let place = run.join("evals/world/eval.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&place).unwrap()).unwrap();
    for key in ["images_seal", "options", "intervals", "confusion"] {
        record.as_object_mut().unwrap().remove(key);
    }
    fs::write(run.join("eval.json"), record.to_string()).unwrap();
    fs::remove_dir_all(run.join("evals")).unwrap();
    let other = trained(folder, "b", "vit", &["model.mlp=48"]);
    let (stdout, stderr) = said(folder, &["compare", text(&run), text(&other), "--out", "out"]);
    assert!(!stderr.contains(&format!("judging {}", text(&run))), "{stderr}");
    assert!(stdout.contains("no results of single images"), "{stdout}");
    let twice = error(omma(folder, &["compare", text(&run), text(&run.join("eval.json"))]));
    assert!(twice.contains("named twice"), "{twice}");
    // What cannot be read is said and left out.
    omma(folder, &["eval", text(&run)]).assert().success();
    fs::write(evaluated(&run, "world").join("eval.json"), "{}").unwrap();
    let (_, stderr) = said(folder, &["compare", text(&run), "--out", "out"]);
    assert!(stderr.contains("left out") && stderr.contains("evals/world/eval.json"), "{stderr}");
}

#[test]
fn other_names_of_classes_are_an_error_unless_the_user_insists() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "a", "vit", &[]);
    let classes: Vec<String> =
        serde_json::from_slice(&fs::read(run.join("classes.json")).unwrap()).unwrap();
    let data = |name: &str, classes: &[String]| {
        for (place, class) in classes.iter().enumerate() {
            let images = folder.join(name).join("test").join(class);
            fs::create_dir_all(&images).unwrap();
            let shade = [20 * place as u8; 3];
            omma_data::Picture::filled(16, 16, shade).save_png(&images.join("a.png")).unwrap();
        }
        folder.join(name)
    };
    let foreign: Vec<String> = (0..10).map(|place| format!("kind {place}")).collect();
    let foreign = data("foreign", &foreign);
    let arguments = ["eval", text(&run), "--data", text(&foreign)];
    let message = error(omma(folder, &arguments));
    assert!(message.contains("10 of the 10 classes have other names"), "{message}");
    let first = format!("class 0 is \"{}\" for a and \"kind 0\" in", classes[0]);
    assert!(message.contains(&first) && message.contains("and 7 more"), "{message}");
    assert!(message.contains("--ignore-names") && !run.join("evals").exists(), "{message}");
    omma(folder, &[&arguments[..], &["--ignore-names"]].concat()).assert().success();
    // The same names by the alphabet: there is a better way than to insist.
    let sorted = data("sorted", &classes);
    let message = error(omma(folder, &["eval", text(&run), "--data", text(&sorted)]));
    assert!(message.contains("--class-subset"), "{message}");
}
