//! `omma eval --subsets` and studies of Soft MoE.

use std::fs;

use super::{assert_close, error, json, list, number, omma, text, trained};

const SOFT: &[&str] = &["model.moe.experts=4", "model.moe.placement=1", "model.moe.residual=false"];

#[test]
fn subsets_of_a_soft_moes_experts_are_judged_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "soft", "soft-moe", SOFT);
    let found = json(omma(folder, &["eval", text(&run), "--subsets", "--json"]));
    let subsets = &found["subsets"];
    assert_eq!((&subsets["experts"], list(&subsets["sizes"]).len()), (&4.into(), 2));
    assert_close(&subsets["all"], 1.0 - number(&found["error"]));
    let half = &subsets["sizes"][0];
    assert_eq!((&half["serving"], list(&half["random"]).len()), (&2.into(), 10));
    assert_eq!(half["exhaustive"]["subsets"], 6);
    let one = json(omma(folder, &["eval", text(&run), "--subset", "2", "--json"]));
    assert_close(&half["best"], 1.0 - number(&one["error"]));

    let mut command = omma(folder, &["eval", text(&run), "--subsets=1,3/4", "--out", "out"]);
    let output = command.assert().success().get_output().stdout.clone();
    let output = String::from_utf8(output).unwrap();
    assert!(output.contains("deviations above") && output.contains("1/4 of 4"), "{output}");
    let page = fs::read_to_string(folder.join("out/eval.html")).unwrap();
    assert!(page.contains("Subsets of experts"));
    let message = error(omma(folder, &["eval", text(&run), "--subsets=5/4"]));
    assert!(message.contains("no size of a subset"), "{message}");
    let dense = trained(folder, "vit", "vit", &[]);
    let message = error(omma(folder, &["eval", text(&dense), "--subsets"]));
    assert!(message.contains("not one Soft MoE"), "{message}");
}

#[test]
fn a_single_layer_is_trained_judged_asked_and_looked_into() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = folder.join("runs/layer");
    let mut command =
        omma(folder, &["train", "soft-mnist", "--run", text(&run), "--data", "world"]);
    for setting in [
        "model.preset=softlayer-8",
        "data.train_samples=300",
        "data.test_samples=50",
        "train.steps=6",
        "train.batch=16",
        "train.linear_baseline=false",
    ] {
        command.args(["--set", setting]);
    }
    command.assert().success();
    omma(folder, &["eval", text(&run), "--subsets"]).assert().success();
    omma(folder, &["routes", text(&run)]).assert().success();
    let picture = omma_data::Picture::filled(28, 28, [9; 3]);
    picture.save_png(&folder.join("digit.png")).unwrap();
    omma(folder, &["predict", text(&run), "digit.png", "--subset", "2"]).assert().success();
    let output = omma(folder, &["inspect", text(&run)]).assert().success().get_output().clone();
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.contains("alone on patches of 14 at 28 px"), "{output}");
}

/// Few steps on a world that stands for MNIST: everything from training to the page.
#[test]
fn a_study_of_soft_layers_has_subsets_of_all_systems() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let study = folder.join("small");
    fs::create_dir(&study).unwrap();
    let recipe = "name = \"layer\"\nabout = \"\"\nbase = \"soft-mnist\"\n[data]\nname = \"world\"\n\
                  train_samples = 200\ntest_samples = 40\n[train]\nsteps = 4\nbatch = 16\n\
                  linear_baseline = false\n";
    fs::write(study.join("layer.toml"), recipe).unwrap();
    let system = |n: usize| {
        format!(
            "[[systems]]\nlabel = \"n={n}\"\nrecipe = \"layer.toml\"\n\
             settings = [\"model.preset=softlayer-{n}\"]\n"
        )
    };
    let text = format!(
        "name = \"small\"\nabout = \"\"\nseeds = 1\nbaseline = \"n=4\"\neval = [\"--subsets\"]\n{}{}",
        system(4),
        system(8)
    );
    fs::write(study.join("study.toml"), text).unwrap();
    let found = json(omma(folder, &["study", "small", "--json", "--out", "out"]));
    let systems = list(&found["subsets"]["systems"]);
    let experts: Vec<u64> = systems.iter().map(|one| one["experts"].as_u64().unwrap()).collect();
    assert_eq!(experts, [4, 8]);
    let table = fs::read_to_string(folder.join("out/table.md")).unwrap();
    assert!(table.contains("deviations above random") && table.contains("all subsets tried"));
    for figure in ["subsets-share", "subsets-experts", "subsets-used"] {
        assert!(folder.join(format!("out/figures/{figure}.svg")).is_file(), "{figure}");
    }
}

#[test]
fn a_study_of_norms_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let study = |more: &[&str]| {
        let mut command = omma(folder, &["study", "norm", "--set", "steps=3", "--seeds", "2"]);
        command.args(["--set", "batch=20", "--json"]).args(more);
        command
    };
    let first = json(study(&[]));
    let inputs = list(&first["inputs"]);
    assert_eq!((inputs.len(), &inputs[0]["seeds"]), (2, &2.into()));
    assert_eq!(list(&first["curves"]).len(), 16);
    fs::remove_file(folder.join("studies/norm/curves/5x2-n10-1.json")).unwrap();
    assert_eq!(json(study(&[])), first, "the same bits");
    assert!(folder.join("studies/norm/figures/norm-2x5.svg").is_file());
    let message = error(study(&["--set", "steps=4"]));
    assert!(message.contains("--out"), "{message}");
    let message = error(study(&["--data", "mnist"]));
    assert!(message.contains("--data"), "{message}");
    omma(folder, &["study", "norm", "--plan"]).assert().success();
}
