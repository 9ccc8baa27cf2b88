//! Trainings and evaluations as processes of this program: what studies and sweeps are made of.
//!
//! A job leaves a file behind when it is done. So whoever makes the same jobs again goes on where an
//! interruption ended them, and nothing is remembered but what the jobs themselves have written.
//!
//! | file | room for |
//! |---|---|
//! | `process.rs` | one job as a process that is started, asked to end, and listened to |
//! | `queue.rs` | a few of them at a time |

mod process;
mod queue;

use std::path::{Path, PathBuf};

pub(crate) use self::queue::{Jobs, OnFailure, Outcome};

/// A process that leaves a file behind when it is done.
pub(crate) struct Job {
    /// In words.
    pub(crate) what: String,
    /// Arguments of this program that begin it.
    pub(crate) arguments: Vec<String>,
    /// The folder of a training, in which it is gone on with where it was begun before.
    pub(crate) run: Option<PathBuf>,
    /// The file that is there when it is done.
    pub(crate) leaves: PathBuf,
    /// Where its messages go.
    pub(crate) log: PathBuf,
    /// Whether a file that is there is the one that it would leave.
    pub(crate) accepts: Box<dyn Fn(&Path) -> bool + Send + Sync>,
}

impl Job {
    /// A training in a folder of its own: begun with these arguments of `omma train`, or gone on with where it
    /// was begun before.
    pub(crate) fn training(
        what: String,
        begin: impl IntoIterator<Item = String>,
        run: &Path,
        log: PathBuf,
    ) -> Self {
        let folder = ["--run".to_owned(), run.display().to_string()];
        let arguments = ["train".to_owned()].into_iter().chain(begin).chain(folder).collect();
        let (leaves, run) = (run.join("result.json"), Some(run.to_owned()));
        Self { what, arguments, run, leaves, log, accepts: Box::new(|_| true) }
    }

    /// Arguments of this program that do what is left of it.
    fn words(&self) -> Vec<String> {
        match self.run.as_ref().filter(|run| run.join("recipe.toml").exists()) {
            Some(run) => {
                let words = ["train".to_owned(), "--resume".to_owned()].into_iter();
                words.chain([run.display().to_string()]).collect()
            }
            None => self.arguments.clone(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.leaves.exists() && (self.accepts)(&self.leaves)
    }
}

/// Where the messages about a run or an evaluation go.
pub(crate) fn log_of(folder: &Path, kind: &str, about: &Path) -> PathBuf {
    let name = about.file_name().unwrap_or_default().to_string_lossy();
    folder.join("logs").join(format!("{kind}-{name}.txt"))
}

/// Processes that run at a time where the user does not say: small models leave cores idle between their
/// products, so several with one thread each get more done than one after the other with all threads.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The last error in a log.
pub(crate) fn last_error(log: &Path) -> Option<String> {
    let text = std::fs::read_to_string(log).ok()?;
    text.lines().rev().find_map(|line| line.strip_prefix("omma: ")).map(str::to_owned)
}

/// What a log says at its end: its last error, or else its last line.
fn last_words(log: &Path) -> Option<String> {
    let last = || {
        let text = std::fs::read_to_string(log).ok()?;
        text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    };
    last_error(log).or_else(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_is_begun_once_and_gone_on_with_after_that() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let job = || Job::training(String::new(), ["vit".to_owned()], &run, PathBuf::new());
        let path = run.display().to_string();
        assert_eq!(job().words(), ["train", "vit", "--run", &path]);
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("recipe.toml"), "").unwrap();
        assert_eq!(job().words(), ["train", "--resume", &path]);
        assert!(!job().is_done());
        std::fs::write(run.join("result.json"), "").unwrap();
        assert!(job().is_done());
    }

    #[test]
    fn the_last_words_of_a_log_are_its_error() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let said = |text: &str| {
            std::fs::write(&log, text).unwrap();
            last_words(&log)
        };
        assert_eq!(said("a\nomma: it broke\n\nlayer  1\n").as_deref(), Some("it broke"));
        assert_eq!(said("a\nb\n\n").as_deref(), Some("b"));
        assert_eq!(said(""), None);
    }
}
