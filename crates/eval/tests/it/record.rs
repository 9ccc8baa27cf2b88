//! `eval.json` as earlier versions wrote it: before confidence and distributions had their names, and
//! before it said what it now says too.

use std::{fs, path::Path};

use omma_eval::{OodPositive, compare::read_evaluation, report::evaluation_page};
use serde_json::{Value, json};

fn old() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/eval-1.json")
}

#[test]
fn records_of_earlier_versions_are_read_whole() {
    let found = read_evaluation(&old()).unwrap();
    let test = found.test.as_ref().unwrap();
    assert_eq!((found.label.as_str(), found.kind.members, test.samples), ("e3", 2, 40));
    assert_eq!((test.summary.error, test.members[1].error), (0.825, 0.8));
    assert_eq!(test.reliability[0].confidence, 0.1704375872304518);
    let far = &found.ood["world-far-ood"];
    assert_eq!(far.auroc, 0.416875);
    assert_eq!(
        found.ood_positive,
        OodPositive::OutOfDistribution,
        "as it was when nothing said so"
    );
    assert_eq!((far.out_of_distribution.len(), far.in_distribution.len()), (4, 4));
    let html = evaluation_page(&found).html;
    assert!(html.contains("Out-of-distribution images") && html.contains("world-far-ood"));
    assert!(html.contains("The positive class are the out-of-distribution images"));
}

#[test]
fn nothing_but_three_words_has_changed_and_what_was_meant_is_said() {
    let written = serde_json::to_value(read_evaluation(&old()).unwrap()).unwrap();
    let mut text = fs::read_to_string(old()).unwrap();
    for (before, now) in [
        ("sureness", "confidence"),
        ("outside", "out_of_distribution"),
        ("inside", "in_distribution"),
    ] {
        text = text.replace(&format!("\"{before}\":"), &format!("\"{now}\":"));
    }
    let mut expected: Value = serde_json::from_str(&text).unwrap();
    expected["ood_positive"] = json!("out-of-distribution");
    expected["judged_classes"] = json!(null);
    let sets: Vec<String> = expected["ood"].as_object().unwrap().keys().cloned().collect();
    for set in sets {
        let others = expected["ood"][&set]["samples"].as_f64().unwrap();
        expected["ood"][&set]["base_rate"] = json!(others / (others + 40.0));
    }
    assert_eq!(written, expected);
}

#[test]
fn corruptions_of_earlier_versions_have_no_diversity() {
    let scores = json!({ "error": 0.5, "nll": 1.5, "brier": 0.75, "ece": 0.125 });
    let mut corruption = scores.clone();
    corruption["severities"] = json!([scores, scores, scores, scores, scores]);
    let shift = json!({ "samples": 8, "mean": corruption, "fog": corruption });
    let mut text: Value = serde_json::from_slice(&fs::read(old()).unwrap()).unwrap();
    text["shift"] = shift.clone();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("eval.json"), text.to_string()).unwrap();
    let found = read_evaluation(folder.path()).unwrap();
    let fog = &found.shift.as_ref().unwrap().corruptions["fog"];
    assert_eq!((fog.overall.summary.nll, fog.overall.diversity), (1.5, None));
    assert_eq!((fog.severities[4].summary.error, fog.severities[4].diversity), (0.5, None));
    let html = evaluation_page(&found).html;
    assert!(html.contains("Corrupted images") && !html.contains("shift-kl"));
    assert!(html.contains("1 corruptions in five severities, made here;"));
    let mut written = serde_json::to_value(found.shift).unwrap();
    assert_eq!(written.as_object_mut().unwrap().remove("origin"), Some(Value::Null));
    assert_eq!(written, shift);
}
