//! Judging among some of a model's classes: which of them the data's are, by their names (paper 000 App. A.6,
//! L.6: models of ImageNet's 1000 classes are judged by the 200 of ImageNet-A).

use std::{collections::HashMap, path::Path};

use anyhow::{Context, Result, bail};
use omma_base::{files::read_regular, nearest};
use omma_eval::Images;

use crate::subject::Candidate;

/// A file of 100,000 names has a few million bytes.
const LARGEST: u64 = 1 << 26;

/// Names of classes, and whose they are.
struct Names {
    whose: String,
    names: Vec<String>,
}

/// For every class of the data, its place among the classes that the candidates tell apart.
///
/// - `file`: the names of these, for candidates that do not know them
pub(crate) fn places(
    candidates: &[Candidate],
    file: Option<&Path>,
    data: &Images,
) -> Result<Vec<usize>> {
    let known = of_models(candidates, file)?;
    let of_data = Names { whose: data.name.clone(), names: data.data.classes().to_vec() };
    of_data.check_distinct()?;
    let place: HashMap<&str, usize> =
        known.names.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let find = |name: &String| {
        place.get(name.as_str()).copied().with_context(|| {
            let hint = nearest(name, known.names.iter().map(String::as_str));
            format!("class \"{name}\" of {} is none of {}{hint}", of_data.whose, known.whose)
        })
    };
    of_data.names.iter().map(find).collect()
}

/// The names that all candidates agree on, those of the file among them.
fn of_models(candidates: &[Candidate], file: Option<&Path>) -> Result<Names> {
    let mut all: Vec<Names> = file.map(Names::read).transpose()?.into_iter().collect();
    for candidate in candidates {
        match &candidate.classes {
            Some(names) => all.push(Names { whose: candidate.name(), names: names.clone() }),
            None if file.is_none() => bail!(
                "{} does not know the names of its classes; give them with --model-classes FILE, one per \
                 line or as a JSON list",
                candidate.name()
            ),
            None => {}
        }
    }
    for candidate in candidates {
        let (count, name) = (candidate.model.config().classes(), candidate.name());
        // Without a classifier, there is more to say than this.
        let mut other = all.iter().filter(|names| count > 0 && names.names.len() != count);
        if let Some(Names { whose, names }) = other.next() {
            bail!("{whose} has names of {} classes, but {name} tells {count} apart", names.len());
        }
    }
    let mut all = all.into_iter();
    let first = all.next().context("there is nothing to judge")?;
    for other in all {
        let mut pairs = first.names.iter().zip(&other.names);
        if let Some((own, others)) = pairs.find(|(own, others)| own != others) {
            let (one, two) = (&first.whose, &other.whose);
            bail!("class \"{own}\" of {one} stands where {two} has \"{others}\"");
        }
    }
    first.check_distinct()?;
    Ok(first)
}

/// Names of classes from a file, one per line or as a JSON list; none is empty.
pub(crate) fn read_names(path: &Path) -> Result<Vec<String>> {
    Ok(Names::read(path)?.names)
}

impl Names {
    /// One name per line, or a JSON list of them.
    fn read(path: &Path) -> Result<Self> {
        let whose = path.display().to_string();
        let bytes = read_regular(path, LARGEST).with_context(|| whose.clone())?;
        let text = String::from_utf8(bytes).with_context(|| format!("{whose} is no text"))?;
        let names: Vec<String> = match text.trim_start().starts_with('[') {
            true => serde_json::from_str(&text)
                .with_context(|| format!("{whose} is not a list of names"))?,
            false => text.trim_end().lines().map(|line| line.trim().to_owned()).collect(),
        };
        if let Some(place) = names.iter().position(|name| name.trim().is_empty()) {
            bail!("{whose}: name {} is empty", place + 1);
        }
        Ok(Self { whose, names })
    }

    /// A name that is there twice could mean either class.
    fn check_distinct(&self) -> Result<()> {
        let mut seen = HashMap::new();
        for (place, name) in self.names.iter().enumerate() {
            if let Some(before) = seen.insert(name, place) {
                let whose = &self.whose;
                bail!("{whose} has the name \"{name}\" twice, for classes {before} and {place}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names");
        std::fs::write(&path, text).unwrap();
        Names::read(&path).map(|names| names.names)
    }

    #[test]
    fn names_are_lines_or_a_list() {
        let expected = ["cat", "great white shark, Carcharodon", "ñandú"];
        let lines = "cat\r\ngreat white shark, Carcharodon\r\nñandú\r\n\r\n";
        assert_eq!(read(lines.as_bytes()).unwrap(), expected);
        let list = "\n[\"cat\", \"great white shark, Carcharodon\", \"ñandú\"]";
        assert_eq!(read(list.as_bytes()).unwrap(), expected);
        for (text, why) in [
            (&b"cat\n\ndog"[..], "name 2 is empty"),
            (b"[\"cat\", 3]", "not a list of names"),
            (b"\xff\xfe", "no text"),
        ] {
            let message = format!("{:#}", read(text).unwrap_err());
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn no_text_makes_it_panic() {
        let seeds = vec![b"cat\ndog\n".to_vec(), b"[\"cat\", \"dog\"]".to_vec()];
        let target = omma_fuzz::Target { name: "names", seeds, containers: &[], cases: 100 };
        target.run(|path| {
            if let Ok(names) = Names::read(path) {
                assert!(names.names.iter().all(|name| !name.trim().is_empty()));
                let _ = names.check_distinct();
            }
        });
    }
}
