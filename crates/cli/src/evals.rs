//! Where evaluations are: in a run's folder `evals/`, one folder per data set and protocol, so that none takes
//! the place of another.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use omma_base::checksum;
use omma_eval::{Evaluation, compare::read_evaluation};

use crate::table::note;

/// The folder of evaluations, in a run's own or in the working folder.
pub(crate) const EVALS: &str = "evals";
/// More of a name cannot be read.
const LONGEST: usize = 80;

/// The name of an evaluation's folder: the data set, and what was asked beside the plain test.
///
/// - `data`: what it was judged by, as records call it
/// - `own`: whether that is what the run was trained on
/// - `options`: what `omma eval` was told, each once and in one order
///
/// The plain test by a run's own data has the data's name alone; any other name ends with a checksum of all, since
/// words are left out of it.
pub(crate) fn folder_name(data: &str, own: bool, options: &[String]) -> String {
    let last = Path::new(data).file_name().map_or(data.into(), |name| name.to_string_lossy());
    let asked = options.join(" ");
    let plain = own && asked.is_empty();
    let place = options.iter().position(|word| word == "--data");
    // The data's name is there already.
    let words = options.iter().enumerate();
    let words = words.filter(|(at, _)| place.is_none_or(|place| *at != place && *at != place + 1));
    let words = words.map(|(_, word)| {
        // Of a path, its end.
        let path = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
        word.split(',').map(path).collect::<Vec<String>>().join("-")
    });
    let name = std::iter::once(last.into_owned()).chain(words).collect::<Vec<String>>().join("-");
    let name = slug(&name);
    match plain {
        true => name,
        false => format!("{name}-{}", checksum(format!("{data}\n{asked}"))),
    }
}

/// Letters, digits, dots and single dashes.
fn slug(text: &str) -> String {
    let plain = |symbol: char| if symbol.is_alphanumeric() || symbol == '.' { symbol } else { '-' };
    let text: String = text.chars().map(plain).collect();
    let parts: Vec<&str> = text.split('-').filter(|part| !part.is_empty()).collect();
    let short: String = parts.join("-").chars().take(LONGEST).collect();
    let short = short.trim_matches(['-', '.']).to_owned();
    if short.is_empty() { "data".to_owned() } else { short }
}

/// All evaluations in a run's folder, plain names first; as earlier versions left one, beside the run's files.
/// What cannot be read is said and left out.
pub(crate) fn of_run(run: &Path) -> Result<Vec<Evaluation>> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let below = run.join(EVALS);
    match std::fs::read_dir(&below) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        entries => {
            for entry in entries.with_context(|| below.display().to_string())? {
                folders.push(entry?.path());
            }
        }
    }
    // The plain test's name is the shortest.
    folders.sort_by_key(|folder| (folder.as_os_str().len(), folder.clone()));
    folders.push(run.to_owned());
    let mut found = Vec::new();
    for folder in folders.iter().filter(|folder| folder.join("eval.json").exists()) {
        match read_evaluation(folder) {
            Ok(evaluation) => found.push(evaluation),
            Err(error) => note(format!("left out: {error}")),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(data: &str, own: bool, options: &[&str]) -> String {
        let options: Vec<String> = options.iter().map(|word| (*word).to_owned()).collect();
        folder_name(data, own, &options)
    }

    #[test]
    fn names_say_what_was_asked() {
        assert_eq!(name("world", true, &[]), "world");
        assert_eq!(name("/a/photos", true, &[]), "photos");
        let with = name("world", true, &["--limit", "40", "--shift"]);
        assert!(with.starts_with("world-limit-40-shift-") && with.len() == 29, "{with}");
        let other =
            name("/a/photos (all images)", false, &["--data", "/a/photos", "--split", "all"]);
        assert!(other.starts_with("photos-all-images-split-all-"), "{other}");
        let ood = name("world", true, &["--ood", "near=/x/y/near,far=world-far-ood"]);
        assert!(ood.starts_with("world-ood-near-far-world-far-ood-"), "{ood}");
    }

    #[test]
    fn what_differs_in_anything_has_another_name() {
        let all = [
            name("/a/photos", false, &["--data", "/a/photos"]),
            name("/b/photos", false, &["--data", "/b/photos"]),
            name("/a/photos", true, &[]),
            name("/a/photos", true, &["--ood", "x=/a/x"]),
            name("/a/photos", true, &["--ood", "x=/b/x"]),
            name("/a/photos", true, &["--ood", &"x".repeat(300)]),
            name("/a/photos", true, &["--ood", &"x".repeat(301)]),
        ];
        for (place, one) in all.iter().enumerate() {
            assert!(!all[..place].contains(one) && one.len() < 100, "{all:?}");
        }
        assert_eq!(name("///", true, &[]), "data");
    }
}
