//! Parity with reference implementations: every case of `tests/golden` (or of the folder that the
//! environment variable `OMMA_GOLDEN` names), values and gradients, at the case's own tolerance.

mod case;
mod layer;
mod limoe;
mod tables;
mod token_choice;
mod transport;

use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
};

use case::Case;

/// Kinds of cases that this crate answers for, by what their descriptions say.
const KINDS: &[(&str, fn(&Case))] = &[
    ("Expert buffer capacity", tables::capacity),
    ("How exact ties are ordered", tables::tie_order),
    ("probability simplex with at most k non-zeros", tables::simplex),
    ("Token-choice (top-", token_choice::check),
    ("Complete sparse MoE MLP layer", layer::token_choice),
    ("Expert-choice routing", layer::expert_choice),
    ("Soft MoE layer", layer::soft),
    ("Ensemble (E3) router", layer::ensemble),
    ("Entropic optimal-transport (Sinkhorn)", transport::sinkhorn),
    ("Sparsity-constrained OT router", transport::sparse),
    ("LIMoE router losses", limoe::check),
];

/// Kinds that belong to crates which do not exist yet.
const NOT_YET: &[&str] = &[
    "Tiny V-MoE Vision Transformer",
    "Tiny ensemble V-MoE",
    "timm VisionTransformer",
    "Two-tower contrastive model",
    "on given gradients",
    "few-shot probe",
    "OOD-detection and segmentation metrics",
];

#[test]
fn every_case_agrees_with_its_reference() {
    let folder = env::var_os("OMMA_GOLDEN").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden")),
        PathBuf::from,
    );
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(!files.is_empty(), "{} has no cases", folder.display());

    let (mut passed, mut postponed, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let case = Case::load(&file);
        let description = case.json["description"].as_str().unwrap_or_default();
        let kind = KINDS.iter().find(|(words, _)| description.contains(words));
        match kind {
            Some((_, check)) => {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    check(&case);
                    case.finish();
                }));
                if outcome.is_ok() { &mut passed } else { &mut failed }.push(case.name);
            }
            None if NOT_YET.iter().any(|words| description.contains(words)) => {
                postponed.push(case.name)
            }
            None => {
                eprintln!("{}: nothing here answers for \"{description}\"", case.name);
                failed.push(case.name);
            }
        }
    }
    println!("{} cases agree, {} belong to later crates", passed.len(), postponed.len());
    assert!(failed.is_empty(), "cases that do not agree: {failed:?}");
}
