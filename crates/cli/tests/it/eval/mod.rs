//! `omma eval`, `fewshot`, `predict`, `compare` and `study` as a user types them.

mod alike;
mod contrast;
mod corrupted;
mod precision;
mod predictions;
mod soft;
mod split;
mod subset;

use std::{
    fs,
    path::{Path, PathBuf},
};

use omma_testing::{SMALL_EXPERTS as EXPERTS, SMALL_RUN};
use serde_json::Value;

use crate::support::{error, json, omma, trained};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

/// The folder of the one evaluation of a run whose name begins so.
fn evaluated(run: &Path, begins: &str) -> PathBuf {
    let folders = fs::read_dir(run.join("evals")).unwrap().map(|entry| entry.unwrap().path());
    let named =
        |folder: &PathBuf| folder.file_name().unwrap().to_str().unwrap().starts_with(begins);
    let all: Vec<PathBuf> = folders.filter(named).collect();
    let [one] = &all[..] else { panic!("{begins}: {all:?}") };
    one.clone()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is a list"))
}

fn assert_close(found: &Value, expected: f64) {
    assert!((number(found) - expected).abs() < 1e-9, "{found} is not {expected}");
}

/// Jensen's inequality: NLL and Brier score are convex in the probabilities.
fn the_mean_is_no_worse_than_its_members(evaluation: &Value) {
    let members = list(&evaluation["members"]);
    for key in ["nll", "brier"] {
        let mean = members.iter().map(|one| number(&one[key])).sum::<f64>() / members.len() as f64;
        assert!(number(&evaluation[key]) <= mean + 1e-9, "{key}: {} {mean}", evaluation[key]);
    }
}

/// Every image is in one bin, so that the bins know how many are wrong and how far confidence is off.
fn reliability_gives_error_and_calibration(evaluation: &Value, images: f64) {
    let (mut all, mut right, mut gap) = (0.0, 0.0, 0.0);
    for bin in list(&evaluation["reliability"]) {
        let [samples, accuracy, confidence] =
            ["samples", "accuracy", "confidence"].map(|key| number(&bin[key]));
        assert!((0.1..=1.0).contains(&confidence), "the likeliest of ten classes: {confidence}");
        all += samples;
        right += samples * accuracy;
        gap += samples * (accuracy - confidence).abs();
    }
    assert_eq!(all, images);
    assert_close(&evaluation["error"], 1.0 - right / images);
    assert_close(&evaluation["ece"], gap / images);
}

/// A corruption is the mean of its severities, and `mean` that of the corruptions, in every number.
fn corruptions_have_their_means(shift: &Value) {
    let numbers = |part: &Value| -> Vec<f64> {
        let scores = ["error", "nll", "brier", "ece"].map(|key| number(&part[key]));
        let members = ["kl", "cosine", "disagreement"].map(|key| number(&part["diversity"][key]));
        [&scores[..], &members].concat()
    };
    let check = |part: &Value, of: &[&Value]| {
        for (place, found) in numbers(part).into_iter().enumerate() {
            let mean = of.iter().map(|one| numbers(one)[place]).sum::<f64>() / of.len() as f64;
            assert!((found - mean).abs() < 1e-9, "{found} is not the mean, {mean}");
        }
    };
    let names = omma_data::corrupt::Corruption::ALL.map(omma_data::corrupt::Corruption::name);
    for name in names.into_iter().chain(["mean"]) {
        let severities = list(&shift[name]["severities"]);
        assert_eq!(severities.len(), 5, "{name}");
        check(&shift[name], &severities.iter().collect::<Vec<_>>());
    }
    let all = names.map(|name| &shift[name]);
    check(&shift["mean"], &all);
    for severity in 0..5 {
        check(&shift["mean"]["severities"][severity], &all.map(|one| &one["severities"][severity]));
    }
    assert_ne!(shift["fog"]["nll"], shift["contrast"]["nll"]);
}

#[test]
fn an_evaluation_has_every_number_and_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let members = [EXPERTS, &["model.moe.members=2", "model.moe.k=1"]].concat();
    let run = trained(folder, "e3", "vmoe", &members);
    let arguments = ["eval", text(&run), "--shift", "--shift-samples", "8", "--json"];
    let mut command = omma(folder, &arguments);
    command.args(["--ood", "near=world-near-ood,world-far-ood", "--limit", "40"]);
    let found = json(command);
    assert_eq!(found["samples"], 40);
    // Six steps of training leave it about as clever as a guess among ten.
    for part in [&found, &found["temperature"], &found["members"][1], &found["shift"]["mean"]] {
        assert!((number(&part["nll"]) - 10_f64.ln()).abs() < 0.3, "{part}");
        assert!((0.5..=1.0).contains(&number(&part["error"])), "{part}");
        assert!((number(&part["brier"]) - 0.9).abs() < 0.1, "{part}");
    }
    the_mean_is_no_worse_than_its_members(&found);
    reliability_gives_error_and_calibration(&found, 40.0);
    let diversity = &found["diversity"];
    assert!(number(&diversity["kl"]) > 0.0 && number(&diversity["cosine"]) < 1.0);
    let members = list(&found["members"]);
    assert_eq!(members.len(), 2);
    let error = (number(&members[0]["error"]) + number(&members[1]["error"])) / 2.0;
    assert_close(&diversity["disagreement"], number(&diversity["disagreement_share"]) / error);
    corruptions_have_their_means(&found["shift"]);
    for name in ["near", "world-far-ood"] {
        let set = &found["ood"][name];
        assert_eq!(set["samples"], 40, "{name}");
        let points = list(&set["roc"]).iter().map(|point| (number(&point[0]), number(&point[1])));
        let points: Vec<(f64, f64)> = points.collect();
        let strips =
            points.windows(2).map(|two| (two[1].0 - two[0].0) * (two[0].1 + two[1].1) / 2.0);
        assert_close(&set["auroc"], strips.sum());
        let found = points.iter().find(|(_, share)| *share >= 0.95).unwrap();
        assert_close(&set["fpr95"], found.0);
        // Forty images each: what precision there is at a threshold follows from the curve.
        let steps = points.windows(2).filter(|two| two[1].1 > two[0].1);
        let precision = steps.map(|two| (two[1].1 - two[0].1) * two[1].1 / (two[1].0 + two[1].1));
        assert_close(&set["aupr"], precision.sum());
        for key in ["out_of_distribution", "in_distribution"] {
            assert_close(&1.0.into(), list(&set[key]).iter().map(number).sum());
        }
    }
    assert_eq!(found["ood_positive"], "in-distribution");
    let judged = evaluated(&run, "world-limit-40-shift-shift-samples-8-ood-");
    let saved: Value =
        serde_json::from_slice(&fs::read(judged.join("eval.json")).unwrap()).unwrap();
    assert_eq!(saved, found);
    let page = fs::read_to_string(judged.join("eval.html")).unwrap();
    assert!(page.contains("Out-of-distribution images") && !page.contains("<script"));
    assert!(page.contains("positive class are the in-distribution images"));
    assert!(page.contains("15 corruptions in five severities, made here with seed 0"));
    let figures =
        ["reliability", "shift-nll", "shift-kl", "ood-roc", "ood-scores-near", "members-nll"];
    for figure in figures {
        assert!(judged.join(format!("figures/{figure}.svg")).exists(), "{figure}");
    }
    // The test images of training are the same, and so are the predictions.
    let whole = json(omma(folder, &["eval", text(&run), "--json", "--no-temperature"]));
    let result: Value =
        serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap();
    let accuracy = 1.0 - whole["error"].as_f64().unwrap();
    assert!((accuracy - result["test_accuracy"].as_f64().unwrap()).abs() < 1e-9);
    assert!((whole["nll"].as_f64().unwrap() - result["test_nll"].as_f64().unwrap()).abs() < 1e-5);
    assert!(whole["temperature"].is_null());
    // Another way to cut batches changes nothing but rounding.
    let other = json(omma(folder, &["eval", text(&run), "--json", "--batch", "7"]));
    assert!((whole["nll"].as_f64().unwrap() - other["nll"].as_f64().unwrap()).abs() < 1e-5);
}

#[test]
fn every_kind_of_system_can_be_judged_alone_and_together() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let with = |more: &[&'static str]| [EXPERTS, more].concat();
    let systems: [(&str, &str, Vec<&str>, usize); 5] = [
        ("plain", "vit", vec![], 1),
        (
            "be",
            "vit",
            vec!["model.batch_ensemble.placement=1", "model.batch_ensemble.members=3"],
            3,
        ),
        ("mimo", "vmoe", with(&["model.mimo.members=2"]), 2),
        ("mc", "vmoe", with(&["model.moe.dropout=0.2", "model.mc_samples=2"]), 2),
        ("multi", "vmoe", with(&["model.moe.multi_pred=true"]), 2),
    ];
    let (mut runs, mut alone) = (Vec::new(), Vec::new());
    for (name, recipe, settings, members) in systems {
        let run = trained(folder, name, recipe, &settings);
        let found = json(omma(folder, &["eval", text(&run), "--json"]));
        assert_eq!(found["kind"]["members"], members, "{name}");
        // A model with one prediction is its own member.
        let own = if members > 1 { list(&found["members"]).clone() } else { vec![found.clone()] };
        assert_eq!(own.len(), members, "{name}");
        if members > 1 {
            the_mean_is_no_worse_than_its_members(&found);
            assert_ne!(own[0]["nll"], own[1]["nll"], "{name}: members that are no copies");
        }
        reliability_gives_error_and_calibration(&found, 50.0);
        alone.extend(own.into_iter().map(|scores| (name, scores)));
        runs.push(run);
    }
    // A deep ensemble of all of them has all their members, and is judged in a folder of its own.
    let mut command = omma(folder, &["eval", "--json"]);
    command.args(&runs);
    let found = json(command);
    assert_eq!(found["kind"]["models"], 5);
    assert_eq!(list(&found["members"]).len(), alone.len());
    for (member, (name, alone)) in list(&found["members"]).iter().zip(&alone) {
        // Where chance has a part in predictions, members are others in another ensemble.
        if *name != "mc" {
            assert!((number(&member["nll"]) - number(&alone["nll"])).abs() < 1e-6, "{name}");
        }
    }
    the_mean_is_no_worse_than_its_members(&found);
    assert!(folder.join("evals/vit--5-1/eval.json").exists(), "{:?}", fs::read_dir(folder));

    let mut compare = omma(folder, &["compare", "--json", "--out", "beside"]);
    let all = json({
        compare.args(&runs);
        compare
    });
    let labels: Vec<&str> =
        all["rows"].as_array().unwrap().iter().map(|row| row["label"].as_str().unwrap()).collect();
    assert_eq!(
        labels,
        ["vit (plain)", "vit (be)", "vmoe (mimo)", "vmoe (mc)", "vmoe (multi)"],
        "settings differ, so these are different systems"
    );
    assert_eq!(all["baseline"], "vit (plain)");
    let nll = |row: usize| number(&all["rows"][row]["nll"]["mean"]);
    assert_close(&all["gains"][0]["nll"], 100.0 * (nll(0) - nll(1)) / nll(0));
    assert!(folder.join("beside/compare.html").exists());
    let mut compare = omma(folder, &["compare", "--baseline", "nothing"]);
    compare.args(&runs);
    assert!(error(compare).contains("nothing"));
}

#[test]
fn features_are_judged_by_a_few_shots() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Features that have learned something, and enough images to see it by.
    let settings = [
        "model.moe.members=2",
        "train.steps=600",
        "data.train_samples=2000",
        "data.test_samples=300",
    ];
    let run = trained(folder, "e3", "vmoe", &[EXPERTS, &settings].concat());
    let arguments = ["fewshot", text(&run), "--shots", "1,16", "--seeds", "3", "--json"];
    let found = json(omma(folder, &arguments));
    let [one, many] = &list(&found["results"])[..] else { panic!("two numbers of shots") };
    for key in ["joint", "disjoint", "joint_best_l2"] {
        let [one, many] = [one, many].map(|result| number(&result[key]["mean"]));
        assert!(one > 0.12 && many > one + 0.04, "{key}: {one}, {many}, and chance has 0.1");
    }
    for result in [one, many] {
        let [chosen, best] = ["joint", "joint_best_l2"].map(|key| number(&result[key]["mean"]));
        assert!(best >= chosen, "nothing is better by the test than what is chosen by it");
        assert!(number(&result["joint"]["standard_error"]) < 0.1);
    }
    assert_eq!(found, json(omma(folder, &arguments)));
    let many = error(omma(folder, &["fewshot", text(&run), "--shots", "500"]));
    assert!(many.contains("500 shots"), "{many}");
    assert!(error(omma(folder, &["fewshot", text(&run), "--shots", "0"])).contains("--shots"));
}

#[test]
fn images_are_named_in_words_and_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "e3", "vmoe", &[EXPERTS, &["model.moe.members=2"]].concat());
    let pictures = folder.join("pictures/inner");
    fs::create_dir_all(&pictures).unwrap();
    let picture = omma_data::Picture::filled(20, 30, [200, 10, 10]);
    picture.save_png(&pictures.join("red.png")).unwrap();
    picture.save_png(&folder.join("pictures/other.png")).unwrap();
    fs::write(pictures.join("broken.jpg"), "not a picture").unwrap();
    let output = omma(folder, &["predict", text(&run), "pictures", "--json", "--top", "10"]);
    let output = { output }.assert().success().get_output().clone();
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    let shares: Vec<f64> =
        list(&lines[0]["top"]).iter().map(|guess| number(&guess["probability"])).collect();
    assert!(shares.len() == 10 && shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
    assert_close(&1.0.into(), shares.iter().sum());
    assert_close(&lines[0]["entropy"], shares.iter().map(|p| -p * p.ln()).sum());
    let disagreement = number(&lines[0]["mutual_information"]);
    assert!(0.0 < disagreement && disagreement < number(&lines[0]["entropy"]), "{disagreement}");
    let spreads = list(&lines[0]["top"]).iter().map(|guess| number(&guess["spread"]));
    assert!(spreads.zip(&shares).all(|(spread, share)| 0.0 < spread && spread <= *share));
    assert_eq!(lines[0]["top"], lines[1]["top"], "both are the same picture");
    assert!(String::from_utf8(output.stderr).unwrap().contains("broken.jpg"));
    let glob = omma(folder, &["predict", text(&run), "pictures/*.png"]);
    let line = { glob }.assert().success().get_output().stdout.clone();
    let line = String::from_utf8(line).unwrap();
    assert!(line.starts_with("pictures/other.png: ") && line.contains(" ± "), "{line}");
    assert!(error(omma(folder, &["predict", text(&run), "nowhere/*.png"])).contains("nowhere"));
    let broken = error(omma(folder, &["predict", text(&run), "pictures/inner/broken.jpg"]));
    assert!(broken.contains("none of 1 files"), "{broken}");
}

#[test]
fn bad_input_is_named_on_both_sides_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "v", "vmoe", EXPERTS);
    for class in ["ant", "bee"] {
        let images = folder.join("two/train").join(class);
        fs::create_dir_all(&images).unwrap();
        omma_data::Picture::filled(9, 9, [9; 3]).save_png(&images.join("a.png")).unwrap();
    }
    let judged = |arguments: &[&str]| {
        let message = error(omma(folder, &[&["eval", text(&run)], arguments].concat()));
        assert!(!run.join("evals").exists() && !run.join("eval.json").exists());
        message
    };
    let message = judged(&["--data", "two", "--split", "train"]);
    assert!(
        message.contains("10 classes") && message.contains("two (training images) has 2"),
        "{message}"
    );
    let message = judged(&["--data", "two"]);
    assert!(message.contains("two") && message.contains("no test images"), "{message}");
    assert!(judged(&["--data", "nowhere"]).contains("nowhere"));
    assert!(judged(&["--ood", "far=nowhere"]).contains("far"));
    let message = judged(&["--ood", "x=world-near-ood,x=world-far-ood"]);
    assert!(message.contains("both be called x"), "{message}");
    fs::write(folder.join("labels.csv"), "path,label\ntwo/train/ant/a.png,12\n").unwrap();
    let message = judged(&["--data", "labels.csv", "--split", "test"]);
    assert!(message.contains("labels.csv") && message.contains("no test images"), "{message}");

    // Models of different sizes or classes are no ensemble.
    let other = trained(folder, "w", "vit", &["model.resolution=24"]);
    let message = judged(&[text(&other)]);
    assert!(message.contains("16") && message.contains("24"), "{message}");
    // A recipe without a model, and a file of another kind.
    fs::write(folder.join("x.safetensors"), "nothing").unwrap();
    let message = error(omma(folder, &["eval", "x.safetensors", "--data", "world"]));
    assert!(message.contains("x.safetensors"), "{message}");
    let message = error(omma(folder, &["eval", text(&run.join("model.safetensors"))]));
    assert!(message.contains("--data"), "{message}");
    // A backbone has no classifier.
    let backbone = ["init", "vit-tiny", "backbone", "--set", "classes=0"];
    omma(folder, &backbone).assert().success();
    let message = error(omma(folder, &["eval", "backbone", "--data", "world"]));
    assert!(message.contains("no classifier") && message.contains("fewshot"), "{message}");
}

#[test]
fn a_study_is_done_once_and_its_table_has_every_system() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("mine")).unwrap();
    let recipe = |kind: &str| {
        let settings: String =
            SMALL_RUN.iter().map(|s| s.replacen('=', " = ", 1) + "\n").collect::<String>();
        format!(
            "name = \"{kind}\"\nabout = \"small\"\ndata.name = \"world\"\nmodel.preset = \"{kind}-tiny\"\n{settings}"
        )
    };
    fs::write(folder.join("mine/vit.toml"), recipe("vit")).unwrap();
    let study = "name = \"mine\"\nabout = \"two\"\nseeds = 2\nbaseline = \"one\"\nshift_samples = 4\n\
                 [[systems]]\nlabel = \"one\"\nrecipe = \"vit.toml\"\n\
                 [[systems]]\nlabel = \"pair\"\nrecipe = \"vit.toml\"\nensemble = 2\n";
    fs::write(folder.join("mine/study.toml"), study).unwrap();
    let run = |more: &[&str]| omma(folder, &[&["study", "mine"], more].concat());
    let plan = run(&["--plan"]).assert().success().get_output().stdout.clone();
    assert!(String::from_utf8(plan).unwrap().contains("4 trainings (0 done)"));
    let found = json(run(&["--json", "--ood", "far=world-far-ood"]));
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[1]["kind"]["models"], &rows[1]["runs"]), (&2.into(), &2.into()));
    // What a row says is the mean of what its evaluations say.
    let evals = |system: &str| {
        [0, 1].map(|seed| -> Value {
            let file = folder.join(format!("studies/mine/evals/{system}-{seed}/eval.json"));
            serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
        })
    };
    for (row, system) in rows.iter().zip(["one", "pair"]) {
        let evals = evals(system);
        let mean = |path: &str| {
            evals.iter().map(|one| number(one.pointer(path).unwrap())).sum::<f64>() / 2.0
        };
        assert_close(&row["nll"]["mean"], mean("/nll"));
        assert_close(&row["shift_nll"]["mean"], mean("/shift/mean/nll"));
        for key in ["auroc", "aupr", "fpr95"] {
            assert_close(&row[key]["far"]["mean"], mean(&format!("/ood/far/{key}")));
        }
        if system == "pair" {
            assert_close(&row["kl"]["mean"], mean("/diversity/kl"));
            assert_close(&row["shift_kl"]["mean"], mean("/shift/mean/diversity/kl"));
        }
    }
    assert!(rows[0]["kl"].is_null() && rows[0]["shift_kl"].is_null(), "one has no members");
    let shifted = [&rows[0], &rows[1]].map(|row| number(&row["shift_nll"]["mean"]));
    assert_close(&found["gains"][0]["shift_nll"], 100.0 * (shifted[0] - shifted[1]) / shifted[0]);
    let table = fs::read_to_string(folder.join("studies/mine/table.md")).unwrap();
    for part in [
        "| pair |",
        "| shifted KL |",
        "| against far | AUROC % | AUPR % (base rate ",
        "| gain over one |",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    // Once more: nothing is trained again.
    let again = run(&[]).assert().success().get_output().clone();
    let notes = String::from_utf8(again.stderr).unwrap();
    assert!(notes.contains("4 of 4 are done already"), "{notes}");
    let other = error(run(&["--set", "train.steps=5"]));
    assert!(other.contains("train.steps=5") && other.contains("--out"), "{other}");
    assert!(error(run(&["--ood", "far=nowhere"])).contains("nowhere"));
    // Out-of-distribution data that was not looked at yet makes for new evaluations, not for new trainings.
    let more = json(run(&["--json", "--ood", "near=world-near-ood"]));
    let near = &evals("one")[0]["ood"]["near"];
    assert!(number(&near["auroc"]) > 0.0 && evals("one")[0]["ood"]["far"].is_null());
    assert_eq!(more["rows"][0]["auroc"]["near"]["count"], 2);
    fs::write(folder.join("mine/study.toml"), study.replace("seeds = 2", "seeds = 1")).unwrap();
    assert!(error(run(&[])).contains("another"));
    assert!(error(omma(folder, &["study", "nothing"])).contains("e3"));
}
