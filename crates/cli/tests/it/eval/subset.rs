//! `omma eval --class-subset`: models that are judged among some of their classes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use omma_base::Resolution;
use omma_data::{
    Dataset, Split,
    world::{Variant, World},
};
use serde_json::Value;

use super::{EXPERTS, error, evaluated, json, number, omma, text, trained};

/// Four of the world's ten classes; it has them in another order.
const FOUR: &[&str] = &["circle", "cross", "drop", "star"];

/// Test images of the world's classes as a folder has them, by the alphabet.
fn images(folder: &Path, name: &str, classes: &[&str]) -> PathBuf {
    let world = World::new(7, Resolution::square(16), 60, Split::Test, Variant::Usual);
    let data = folder.join(name);
    for index in 0..world.len() {
        let sample = world.get(index).unwrap();
        let class = world.classes()[sample.label].as_str();
        if classes.contains(&class) {
            let folder = data.join("test").join(class);
            fs::create_dir_all(&folder).unwrap();
            sample.picture.save_png(&folder.join(format!("{index:02}.png"))).unwrap();
        }
    }
    data
}

/// Error, NLL and Brier score of what `omma predict` says, where nothing but `classes` counts.
fn predicted(folder: &Path, run: &Path, data: &Path, classes: &[&str]) -> [f64; 3] {
    let mut command = omma(folder, &["predict", text(run), text(data), "--json", "--top", "10"]);
    let lines = String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap();
    let (mut sums, mut count) = ([0.0; 3], 0.0);
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let label = Path::new(line["image"].as_str().unwrap()).parent().unwrap();
        let label = label.file_name().unwrap().to_str().unwrap();
        let top = line["top"].as_array().unwrap().iter();
        let top =
            top.map(|guess| (guess["class"].as_str().unwrap(), number(&guess["probability"])));
        let top: Vec<(&str, f64)> = top.filter(|(class, _)| classes.contains(class)).collect();
        let sum: f64 = top.iter().map(|(_, p)| p).sum();
        let truth = |class: &str| f64::from(u8::from(class == label));
        let of_label = top.iter().find(|(class, _)| *class == label).unwrap().1 / sum;
        sums[0] += f64::from(u8::from(top[0].0 != label));
        sums[1] -= of_label.ln();
        sums[2] += top.iter().map(|(class, p)| (p / sum - truth(class)).powi(2)).sum::<f64>();
        count += 1.0;
    }
    assert!(count > 10.0);
    sums.map(|sum| sum / count)
}

fn assert_scores(found: &Value, expected: [f64; 3]) {
    for (key, expected) in ["error", "nll", "brier"].into_iter().zip(expected) {
        assert!((number(&found[key]) - expected).abs() < 1e-5, "{key}: {} {expected}", found[key]);
    }
}

#[test]
fn a_model_is_judged_among_the_classes_that_the_data_has() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "v", "vmoe", EXPERTS);
    let four = images(folder, "four", FOUR);
    let found = json(omma(
        folder,
        &["eval", text(&run), "--data", text(&four), "--class-subset", "--json"],
    ));
    assert_scores(&found, predicted(folder, &run, &four, FOUR));
    assert_eq!(found["classes"], serde_json::json!(FOUR));
    assert_eq!((&found["judged_classes"]["of"], &found["temperature"]), (&10.into(), &Value::Null));
    let page = fs::read_to_string(evaluated(&run, "four-").join("eval.html")).unwrap();
    assert!(page.contains("among 4 of 10 classes"));

    // All ten in another order are no restriction.
    let world = World::new(0, Resolution::square(16), 1, Split::Test, Variant::Usual);
    let all: Vec<&str> = world.classes().iter().map(String::as_str).collect();
    let ten = images(folder, "ten", &all);
    let mut command = omma(folder, &["eval", text(&run), "--data", text(&ten), "--class-subset"]);
    let output = command.args(["--json", "--out", "ten-eval"]).assert().success();
    let notes = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    assert!(
        notes.contains("no temperature is fitted") && notes.contains("--class-subset"),
        "{notes}"
    );
    let found: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_scores(&found, predicted(folder, &run, &ten, &all));
    assert!(found["judged_classes"].is_null() && found["classes"][1] == "crescent");

    // What was judged among different classes is not compared.
    let message = error(omma(folder, &["compare", text(&run), "ten-eval"]));
    assert!(message.contains("four, among 4 of 10 classes"), "{message}");
}

#[test]
fn members_corruptions_and_other_data_are_judged_among_them_too() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let members = [EXPERTS, &["model.moe.members=2"]].concat();
    let runs = [trained(folder, "e3", "vmoe", &members), trained(folder, "vit", "vit", &[])];
    let four = images(folder, "four", FOUR);
    let judged = |runs: &[&PathBuf], more: &[&str]| {
        let mut command =
            omma(folder, &["eval", "--data", text(&four), "--class-subset", "--json"]);
        command.args(runs).args(["--out", "out"]).args(more);
        json(command)
    };
    let corruptions = ["--shift", "--shift-samples", "4", "--ood", "self=four,world-far-ood"];
    let both = judged(&[&runs[0], &runs[1]], &corruptions);
    assert_eq!(both["members"].as_array().unwrap().len(), 3);
    // Of four classes nobody can do worse than 1/4 by the likeliest.
    assert!(
        both["reliability"].as_array().unwrap().iter().all(|bin| number(&bin["confidence"]) > 0.25)
    );
    assert_eq!(both["ood"]["self"]["auroc"], 0.5);
    assert!((number(&both["shift"]["mean"]["nll"]) - 4_f64.ln()).abs() < 0.5, "untrained: ln 4");
    // The ensemble's members are those of its models.
    let [e3, vit] = [&runs[0], &runs[1]].map(|run| judged(&[run], &[]));
    let alone = [&e3["members"][0], &e3["members"][1], &vit];
    for (member, alone) in both["members"].as_array().unwrap().iter().zip(alone) {
        for key in ["error", "nll", "brier", "ece"] {
            assert!((number(&member[key]) - number(&alone[key])).abs() < 1e-6, "{key}");
        }
    }
}

#[test]
fn names_of_classes_come_from_a_file_where_a_checkpoint_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "v", "vit", &[]);
    let four = images(folder, "four", FOUR);
    let checkpoint = run.join("model.safetensors");
    let eval = |subjects: &[&Path], more: &[&str]| {
        let mut command =
            omma(folder, &["eval", "--data", text(&four), "--class-subset", "--json"]);
        command.args(subjects).args(["--out", "out"]).args(more);
        command
    };
    let message = error(eval(&[&checkpoint], &[]));
    assert!(
        message.contains("model.safetensors") && message.contains("--model-classes"),
        "{message}"
    );
    let list = run.join("classes.json");
    let expected = number(&json(eval(&[&run], &[]))["nll"]);
    let names: Vec<String> = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
    fs::write(folder.join("names.txt"), names.join("\n") + "\n").unwrap();
    for file in [text(&list), "names.txt"] {
        let found = json(eval(&[&checkpoint], &["--model-classes", file]));
        assert!((number(&found["nll"]) - expected).abs() < 1e-9, "{file}");
    }

    let refused = |text: &str, subjects: &[&Path]| {
        fs::write(folder.join("wrong.txt"), text).unwrap();
        error(eval(subjects, &["--model-classes", "wrong.txt"]))
    };
    let message = refused(&names.join("\n").replace("star", "stair"), &[&checkpoint]);
    assert!(message.contains("\"star\"") && message.contains("mean \"stair\""), "{message}");
    let message = refused(&names.join("\n").replace("ring", "star"), &[&checkpoint]);
    assert!(message.contains("\"star\" twice") && message.contains("classes 4 and 6"), "{message}");
    let message = refused(&names[..9].join("\n"), &[&checkpoint]);
    assert!(message.contains("9 classes") && message.contains("tells 10 apart"), "{message}");
    // A run knows its names; the checkpoint beside it cannot have others.
    let swapped =
        names.join("\n").replace("circle", "x").replace("square", "circle").replace('x', "square");
    let message = refused(&swapped, &[&checkpoint, &run]);
    assert!(message.contains("\"square\" of wrong.txt stands where v has \"circle\""), "{message}");
    // Without being told, nobody guesses.
    let message = error(omma(folder, &["eval", text(&run), "--data", text(&four)]));
    assert!(message.contains("10 classes") && message.contains("--class-subset"), "{message}");
    let message = error(omma(folder, &["eval", text(&run), "--model-classes", "names.txt"]));
    assert!(message.contains("--class-subset"), "{message}");
}
