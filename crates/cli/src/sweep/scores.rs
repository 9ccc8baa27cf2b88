//! What the run of a point reached.

use std::path::Path;

use anyhow::{Context, Result};
use omma_train::{TaskScores, run::Best};
use serde::{Deserialize, Serialize};

use crate::jobs::last_error;

/// A training, as far as it has come.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(crate) enum Reached {
    /// Its end.
    Done(Scores),
    /// It failed, or diverged; with its last words.
    Failed { why: String },
    /// It is still to be trained, or to be gone on with.
    Waiting,
}

/// The scores of a run that has come to its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Scores {
    /// Of its best checkpoint, on held-out images; nothing where none are held out.
    pub(crate) held_out: Option<Best>,
    /// Of the trained model on the test images.
    pub(crate) test: TaskScores,
    /// Steps of its training.
    pub(crate) steps: u64,
    /// Spent in them.
    pub(crate) seconds: f64,
}

impl Reached {
    /// Reads what a run has left; a run without a result has failed if `failed` says so.
    pub(crate) fn read(run: &Path, failed: Option<&str>) -> Result<Self> {
        #[derive(Deserialize)]
        struct Result {
            best_validation: Option<Best>,
            steps: u64,
            train_seconds: f64,
            #[serde(flatten)]
            rest: serde_json::Map<String, serde_json::Value>,
        }
        let path = run.join("result.json");
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let failed = failed.map(|why| Self::Failed { why: why.to_owned() });
                return Ok(failed.unwrap_or(Self::Waiting));
            }
            text => text.with_context(|| path.display().to_string())?,
        };
        let Result { best_validation, steps, train_seconds, rest } =
            serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
        let test = rest.iter().filter_map(|(key, value)| {
            Some((key.strip_prefix("test_")?.to_owned(), value.as_f64()?))
        });
        Ok(Self::Done(Scores {
            held_out: best_validation,
            test: test.collect(),
            steps,
            seconds: train_seconds,
        }))
    }

    /// Why a training of an earlier command has no result, if its log tells.
    pub(crate) fn why_of_earlier(log: &Path) -> Option<String> {
        last_error(log).filter(|words| !words.starts_with("stopped "))
    }

    pub(crate) fn scores(&self) -> Option<&Scores> {
        match self {
            Self::Done(scores) => Some(scores),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_as_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let read = |failed: Option<&str>| Reached::read(folder.path(), failed).unwrap();
        assert_eq!(read(None), Reached::Waiting);
        assert_eq!(read(Some("x")), Reached::Failed { why: "x".to_owned() });
        let text = r#"{"recipe": "vit", "steps": 9, "test_accuracy": 0.5, "test_nll": 1.5,
            "linear_baseline_accuracy": 0.25, "train_seconds": 3.5, "routing": [],
            "best_validation": {"step": 6, "score": 0.75}}"#;
        std::fs::write(folder.path().join("result.json"), text).unwrap();
        let test = TaskScores::from_iter([("accuracy", 0.5), ("nll", 1.5)]);
        let held_out = Some(Best { step: 6, score: 0.75 });
        assert_eq!(
            read(Some("x")),
            Reached::Done(Scores { held_out, test, steps: 9, seconds: 3.5 })
        );
        std::fs::write(folder.path().join("result.json"), "{").unwrap();
        assert!(Reached::read(folder.path(), None).is_err());
    }
}
