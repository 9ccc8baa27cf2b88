//! Habits of the terminal: quiet, JSON, progress without a terminal, notes that are said once.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use omma_testing::{SMALL_RUN, by_tier};
use serde_json::Value;

use crate::support::{omma, output, program};

/// Standard output and standard error of a command that must succeed.
fn heard(folder: &Path, arguments: &[&str]) -> (String, String) {
    output(omma(folder, arguments))
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let (text, _) = heard(folder, &[arguments, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{text}"))
}

fn train<'a>(name: &'a str, settings: &[&'a str]) -> Vec<&'a str> {
    let set = SMALL_RUN.iter().chain(settings).flat_map(|setting| ["--set", setting]);
    ["train", "vit", "--run", name].into_iter().chain(set).collect()
}

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data");
    folder.join(name).to_string_lossy().into_owned()
}

#[test]
fn few_shot_without_a_terminal_is_never_silent_for_five_seconds() {
    // The usual tier looks at what a slow machine does; `screen.rs` tests the clock itself.
    let limits = by_tier(&["300"][..], &["300", "3000", "30000"]);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    heard(folder, &["init", "vit-tiny", "model"]);
    for limit in limits {
        let began = Instant::now();
        let arguments = ["fewshot", "model", "--data", "world", "--shots", "5", "--seeds", "1"];
        let mut child = program()
            .args(arguments)
            .args(["--limit", *limit])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let heard: Vec<(Duration, String)> =
            lines.map(|line| (began.elapsed(), line.unwrap())).collect();
        assert!(child.wait().unwrap().success());
        let ended = began.elapsed();
        if ended < Duration::from_secs(4) && *limit != "30000" {
            continue; // A fast machine has more to do.
        }
        let moments = heard.iter().map(|(moment, _)| *moment).chain([ended]);
        let mut before = Duration::ZERO;
        for moment in moments {
            assert!(moment - before <= Duration::from_secs(5), "{before:?} {moment:?} {heard:#?}");
            before = moment;
        }
        let counted = |line: &&(Duration, String)| {
            line.1.contains(": ") && line.1.contains('/') && line.1.contains(" left")
        };
        assert!(heard.iter().any(|line| counted(&line)), "{heard:#?}");
        return;
    }
}

#[test]
fn quiet_commands_print_results_and_errors_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let arguments = train("run", &["model.resolution=20"]);
    let (table, notes) = heard(folder, &[&arguments[..], &["--quiet"]].concat());
    assert!(table.contains("test accuracy"), "{table}");
    assert_eq!(notes, "");
    let (table, notes) = heard(folder, &["-q", "eval", "run", "--out", "judged"]);
    assert!(table.contains("NLL"), "{table}");
    assert_eq!(notes, "");
    let (text, notes) = heard(folder, &["convert", &fixture("hf_vit"), "converted", "--quiet"]);
    assert!(text.contains("wrote converted") && !text.contains("their tensor"), "{text}");
    assert_eq!(notes, "");
    let failed = omma(folder, &["inspect", "nowhere", "--quiet"]).assert().failure();
    let message = String::from_utf8(failed.get_output().stderr.clone()).unwrap();
    assert!(message.contains("nowhere does not exist"), "{message}");
}

#[test]
fn commands_that_write_models_say_as_json_what_they_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let timm = fixture("timm.pth");
    let made = json(folder, &["init", "vmoe-tiny", "fresh"]);
    assert_eq!(made["output"], "fresh");
    assert!(made["model"].as_str().unwrap().starts_with("a V-MoE of 8 experts"), "{made}");
    let converted = json(folder, &["convert", &timm, "dense", "--set", "heads=3", "--check"]);
    assert_eq!(converted["family"], "timm ViT");
    assert!(converted["largest_difference"].as_f64().unwrap() < 1e-3);
    assert!(converted["mapping"].as_array().unwrap().len() > 10);
    let settings = ["--set", "moe.experts=4", "--set", "moe.k=1", "--set", "moe.placement=1"];
    let sparse = json(folder, &[&["upcycle", "dense", "sparse"], &settings[..]].concat());
    assert_eq!(sparse["blocks"], serde_json::json!([1]));
    assert!(sparse["difference"].as_f64().unwrap() < 1e-4, "{sparse}");
    let members = json(folder, &["adapt", "sparse", "e3", "--to", "e3"]);
    assert_eq!(members["parameters"], sparse["parameters"]);
    let sentence = members["model"].as_str().unwrap();
    assert!(sentence.starts_with("an E³ of two members with 2 experts each, K = 1"), "{sentence}");
    assert_eq!(json(folder, &["inspect", "e3"])["model"], sentence);
}

#[test]
fn recipes_plans_and_pages_are_json_too() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let listed = json(folder, &["recipes"]);
    assert!(listed.as_array().unwrap().iter().any(|recipe| recipe["name"] == "vmoe"), "{listed}");
    assert_eq!(json(folder, &["recipes", "vmoe"])["name"], "vmoe");
    let plan = json(folder, &["study", "e3", "--plan"]);
    assert!(plan["systems"][0]["training_flops"].as_u64().unwrap() > 0, "{plan}");
    assert_eq!(plan["trainings"]["done"], 0);
    let pages = json(folder, &["man", "pages"]);
    assert!(
        pages.as_array().unwrap().iter().all(|page| folder.join(page.as_str().unwrap()).exists())
    );
    assert!(folder.join("pages/omma-predict.1").exists());
}

#[test]
fn an_unseen_margin_is_said_once_by_train_eval_inspect_and_convert() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let said = |arguments: &[&str]| {
        let (_, notes) = heard(folder, arguments);
        let margin = "a patch of 8 leaves 4 of 20 pixels unseen at the right and bottom; 16 or 24 would lose \
                      nothing";
        notes.matches(margin).count()
    };
    assert_eq!(said(&train("run", &["model.resolution=20"])), 1);
    assert_eq!(said(&["eval", "run", "--json"]), 1);
    assert_eq!(said(&["inspect", "run", "--json"]), 1);
    assert_eq!(said(&["predict", "run", &fixture("../../../../docs/report.png")]), 1);
    assert_eq!(said(&["convert", "run", "same", "--resolution", "20"]), 1);
    assert_eq!(said(&["convert", "run", "whole", "--resolution", "24"]), 0);
    assert_eq!(said(&["eval", "whole", "--data", "world", "--limit", "20"]), 0);
}

#[test]
fn inspect_says_in_a_sentence_what_runs_and_imported_checkpoints_are() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    heard(folder, &train("run", &[]));
    let first = |checkpoint: &str| {
        let (text, _) = heard(folder, &["inspect", checkpoint]);
        text.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(
        first("run"),
        "a ViT of 2 blocks of width 16 with patches of 8 at 16 px, 10 classes"
    );
    let google = first(&fixture("google.npz"));
    assert!(google.starts_with("a ViT of ") && google.contains(" px, "), "{google}");
}
