//! `eval.json` as it was written before confidence and distributions had their names.

use std::{fs, path::Path};

use omma_eval::{compare::read_evaluation, report::evaluation_page};
use serde_json::Value;

fn old() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/eval-1.json")
}

#[test]
fn records_of_earlier_versions_are_read_whole() {
    let found = read_evaluation(&old()).unwrap();
    assert_eq!((found.label.as_str(), found.kind.members, found.test.samples), ("e3", 2, 40));
    assert_eq!((found.test.summary.error, found.test.members[1].error), (0.825, 0.8));
    assert_eq!(found.test.reliability[0].confidence, 0.1704375872304518);
    let far = &found.ood["world-far-ood"];
    assert_eq!(far.auroc, 0.416875);
    assert_eq!((far.out_of_distribution.len(), far.in_distribution.len()), (4, 4));
    let html = evaluation_page(&found).html;
    assert!(html.contains("Out-of-distribution images") && html.contains("world-far-ood"));
}

#[test]
fn nothing_but_three_words_has_changed_in_records() {
    let written = serde_json::to_value(read_evaluation(&old()).unwrap()).unwrap();
    let mut text = fs::read_to_string(old()).unwrap();
    for (before, now) in [
        ("sureness", "confidence"),
        ("outside", "out_of_distribution"),
        ("inside", "in_distribution"),
    ] {
        text = text.replace(&format!("\"{before}\":"), &format!("\"{now}\":"));
    }
    assert_eq!(written, serde_json::from_str::<Value>(&text).unwrap());
}
