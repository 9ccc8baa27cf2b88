//! `train.precision` and `--precision`.

use super::*;

#[test]
fn a_run_in_half_precision_is_judged_in_single_precision_unless_told_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let half = [EXPERTS, &["train.precision=f16", "optimiser.learning_rate=0.01"]].concat();
    let run = trained(folder, "half", "vmoe", &half);
    let judged =
        |words: &[&str]| json(omma(folder, &[&["eval", "runs/half", "--json"], words].concat()));
    let (usual, in_half) = (judged(&[]), judged(&["--precision", "bf16"]));
    let result: Value =
        serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap();
    assert_close(&usual["nll"], number(&result["test_nll"]));
    let [a, b] = [&usual, &in_half].map(|evaluation| number(&evaluation["nll"]));
    assert!(a != b && (a - b).abs() < 0.01, "{a} {b}");
    // They are not taken for one another.
    assert_eq!(in_half["options"], serde_json::json!(["--precision", "bf16"]));
    assert_ne!(in_half["fingerprint"], usual["fingerprint"]);
    assert!(in_half["label"].as_str().unwrap().ends_with("with precision=bf16"), "{in_half}");
    assert_eq!(fs::read_dir(run.join("evals")).unwrap().count(), 2);

    let message = error(omma(folder, &["eval", "runs/half", "--precision", "f8"]));
    assert!(message.contains("no precision is called \"f8\""), "{message}");
    let message = error(omma(folder, &["train", "vmoe", "--set", "train.precision=f8"]));
    assert!(message.contains("train.precision") && message.contains("bf16"), "{message}");
    let spread = ["train.precision=bf16", "train.expert_parallel=2"];
    let mut command = omma(folder, &["train", "vmoe"]);
    spread.iter().for_each(|setting| _ = command.args(["--set", setting]));
    let message = error(command);
    assert!(message.contains("rows travel in single precision"), "{message}");
}
