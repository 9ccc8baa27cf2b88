//! `omma eval --split`: which images a model is judged by.

use std::{fs, path::Path};

use super::{error, json, omma, text, trained};

/// Thirty images of each of two classes, without splits.
fn photos(at: &Path) {
    for (class, colour) in [("cat", [200, 20, 20]), ("dog", [20, 20, 200])] {
        fs::create_dir_all(at.join(class)).unwrap();
        for number in 0..30 {
            let path = at.join(class).join(format!("{number:02}.png"));
            omma_data::Picture::filled(12, 10, colour).save_png(&path).unwrap();
        }
    }
}

#[test]
fn data_without_splits_is_judged_as_a_whole_by_models_that_did_not_learn_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    photos(&folder.join("photos"));
    photos(&folder.join("others"));
    let name = format!("data.name={}", folder.join("photos").display());
    let run = trained(folder, "own", "vit", &[&name]);
    let eval = |subject: &Path, more: &[&str]| {
        let mut command = omma(folder, &["eval", text(subject), "--out", "out"]);
        command.args(more);
        command
    };
    let judged = |subject: &Path, more: &[&str]| {
        let output = { eval(subject, &[more, &["--json"]].concat()) }.assert().success();
        let output = output.get_output().clone();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (found["samples"].as_u64().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (samples, said) = judged(&run, &[]);
    assert_eq!(samples, 6, "a tenth was held out for the test");
    assert!(said.contains("judging by 6 images of"), "{said}");
    assert!(said.contains("training held 5 images out to choose its best checkpoint"), "{said}");
    for (part, expected) in [("all", 60), ("train", 54), ("val", 5), ("test", 6)] {
        assert_eq!(judged(&run, &["--split", part]).0, expected, "{part}");
    }
    let (samples, said) = judged(&run, &["--data", "others"]);
    assert_eq!(samples, 60);
    assert!(said.contains("judging by 60 images of") && said.contains("no splits"), "{said}");
    let checkpoint = run.join("model.safetensors");
    assert_eq!(judged(&checkpoint, &["--data", "photos"]).0, 60, "it does not know its data");
    assert_eq!(judged(&checkpoint, &["--data", "photos", "--split", "test"]).0, 6);
    let message = error(eval(&checkpoint, &["--data", "photos", "--split", "val"]));
    assert!(message.contains("held out of training"), "{message}");
    let shown = { eval(&run, &[]) }.assert().success().get_output().stdout.clone();
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains("the temperature is fitted on 5 images"), "{shown}");

    // One class says nothing about a classifier.
    fs::remove_dir_all(folder.join("others/dog")).unwrap();
    let message = error(eval(&run, &["--data", "others"]));
    assert!(message.contains("all images are of one class, \"cat\""), "{message}");
}

#[test]
fn a_run_of_before_is_judged_by_the_images_of_then() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    photos(&folder.join("photos"));
    let name = format!("data.name={}", folder.join("photos").display());
    let run = trained(folder, "new", "vit", &[&name]);
    let recipe = fs::read_to_string(run.join("recipe.toml")).unwrap();
    assert!(recipe.contains("holding_out = \"stratified\"\n"), "{recipe}");
    // Recipes of before do not say how images were held out.
    let old = folder.join("old");
    fs::create_dir(&old).unwrap();
    for file in ["model.safetensors", "config.json", "result.json", "classes.json"] {
        fs::copy(run.join(file), old.join(file)).unwrap();
    }
    fs::write(old.join("recipe.toml"), recipe.replace("holding_out = \"stratified\"\n", ""))
        .unwrap();
    let mut eval = omma(folder, &["eval", "old", "--json"]);
    eval.args(["--out", "out"]);
    let found = json(eval);
    // Every tenth of 60, then every tenth of 54.
    assert_eq!((&found["samples"], &found["temperature"]["fitted_on"]), (&6.into(), &5.into()));
    let message = error(omma(folder, &["eval", text(&run), "old"]));
    assert!(message.contains("judge them one by one"), "{message}");
}
