//! What a user sets beside a study's files, and the study's folder, which remembers it.

use std::{collections::BTreeMap, io::ErrorKind, ops::Range, path::Path};

use anyhow::{Context, Result, bail};
use omma_base::files::{FolderLock, write_atomically};
use serde::{Deserialize, Serialize};

use super::{Study, StudySystem};

const OPTIONS: &str = "options.toml";

/// What a user may set beside the study's files, and everything in its folder depends on.
#[derive(Serialize, Deserialize, Default)]
pub(crate) struct Options {
    pub(crate) seeds: usize,
    /// The first of them; the others follow it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) first_seed: usize,
    /// Other data for all systems that are judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
    /// On top of all recipes.
    pub(crate) settings: Vec<String>,
    /// On top of the recipes of systems that others begin from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) upstream: Vec<String>,
    /// The checkpoint that systems begin from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) init: Option<String>,
    /// Out-of-distribution data sets, by their names.
    #[serde(default, alias = "outside")]
    pub(crate) ood: BTreeMap<String, String>,
    /// Data sets that features are judged by from a few images of each class, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) few_shot: BTreeMap<String, String>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Options {
    /// The study's seeds.
    pub(crate) fn numbers(&self) -> Range<usize> {
        self.first_seed..self.first_seed + self.seeds
    }

    /// What goes on top of a system's recipe.
    pub(crate) fn settings_of(&self, study: &Study, system: &StudySystem) -> Vec<String> {
        let data = self.data_setting().filter(|_| system.judged);
        let upstream = self.upstream.iter().filter(|_| study.is_upstream(system));
        data.into_iter().chain(self.settings.iter().chain(upstream).cloned()).collect()
    }

    fn data_setting(&self) -> Option<String> {
        self.data.as_ref().map(|data| format!("data.name={data}"))
    }

    /// What may not change in a folder.
    fn decisive(&self) -> (Range<usize>, Vec<String>, &[String], Option<&String>) {
        let settings = self.data_setting().into_iter().chain(self.settings.iter().cloned());
        (self.numbers(), settings.collect(), &self.upstream, self.init.as_ref())
    }

    fn in_words(&self) -> String {
        let (numbers, settings, upstream, init) = self.decisive();
        let mut words = format!("{} seeds", numbers.len());
        if numbers.start > 0 {
            words += &format!(" from {} on", numbers.start);
        }
        words += &format!(" and {settings:?}");
        if !upstream.is_empty() {
            words += &format!(" and upstream {upstream:?}");
        }
        if let Some(init) = init {
            words += &format!(" from {init}");
        }
        words
    }

    /// Adds the data sets of another command: others may come later, but one of the same name would be taken for
    /// the one that was looked at.
    fn add(&mut self, other: &Self) -> Result<()> {
        let both = [(&mut self.ood, &other.ood), (&mut self.few_shot, &other.few_shot)];
        for (known, new) in both {
            for (name, data) in new {
                match known.insert(name.clone(), data.clone()) {
                    Some(old) if old != *data => {
                        bail!(
                            "{name} was {old} and is {data} now; give it another name as NAME=PATH"
                        )
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Study {
    /// Puts the study's files into its folder, and owns it; fails if another process does, or if that holds another
    /// study, or the same with other options.
    pub(crate) fn settle(&self, folder: &Path, options: &Options) -> Result<FolderLock> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let owned = FolderLock::take(folder).with_context(|| folder.display().to_string())?;
        let write = |path: &Path, text: &str| {
            write_atomically(path, |file| std::fs::write(file, text))
                .with_context(|| path.display().to_string())
        };
        for (name, text) in &self.files {
            let path = folder.join(name);
            match std::fs::read_to_string(&path) {
                Ok(old) if old != *text => bail!(
                    "{} is of another study, or of another version of it; choose another folder with \
                     --out",
                    path.display()
                ),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => write(&path, text)?,
                Err(error) => return Err(error).with_context(|| path.display().to_string()),
            }
        }
        let path = folder.join(OPTIONS);
        let known: Option<Options> = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => Some(toml::from_str(&text?).with_context(|| path.display().to_string())?),
        };
        let Some(mut known) = known else {
            write(&path, &toml::to_string(options)?)?;
            return Ok(owned);
        };
        if known.decisive() != options.decisive() {
            let both = [&known, options].map(Options::in_words);
            bail!(
                "{} has a study with {}, now it is {}; choose another folder with --out",
                folder.display(),
                both[0],
                both[1]
            );
        }
        known.add(options).with_context(|| folder.display().to_string())?;
        write(&path, &toml::to_string(&known)?)?;
        Ok(owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_data_set() {
        let folder = tempfile::tempdir().unwrap();
        let study = Study::find("e3").unwrap();
        let settle = |ood: &[(&str, &str)]| {
            let own = |(name, path): &(&str, &str)| ((*name).to_owned(), (*path).to_owned());
            let ood = ood.iter().map(own).collect();
            let options = Options { seeds: 1, ood, ..Options::default() };
            study.settle(folder.path(), &options).map(drop)
        };
        settle(&[("x", "/a")]).unwrap();
        settle(&[("y", "/b")]).unwrap();
        let message = format!("{:#}", settle(&[("x", "/c")]).unwrap_err());
        assert!(message.contains("x was /a and is /c"), "{message}");
        settle(&[("x", "/a"), ("y", "/b")]).unwrap();
    }

    #[test]
    fn later_seeds_are_a_study_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let study = Study::find("e3").unwrap();
        let settle = |first_seed: usize| {
            let options = Options { seeds: 2, first_seed, ..Options::default() };
            study.settle(folder.path(), &options).map(drop)
        };
        settle(0).unwrap();
        let known = std::fs::read_to_string(folder.path().join(OPTIONS)).unwrap();
        assert!(!known.contains("first_seed"), "{known}");
        let message = settle(2).unwrap_err().to_string();
        assert!(message.contains("a study with 2 seeds and"), "{message}");
        assert!(message.contains("now it is 2 seeds from 2 on"), "{message}");
    }

    #[test]
    fn a_study_of_an_earlier_version_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let old = "seeds = 1\nsettings = []\n\n[outside]\nx = \"/a\"\n";
        std::fs::write(folder.path().join(OPTIONS), old).unwrap();
        let ood = BTreeMap::from([("x".to_owned(), "/b".to_owned())]);
        let options = Options { seeds: 1, ood, ..Options::default() };
        let settled = Study::find("e3").unwrap().settle(folder.path(), &options).map(drop);
        let message = format!("{:#}", settled.unwrap_err());
        assert!(message.contains("x was /a and is /b"), "{message}");
    }

    #[test]
    fn other_data_is_for_systems_that_are_judged() {
        let folder = tempfile::tempdir().unwrap();
        let study = Study::find("e3-finetune").unwrap();
        let options = Options {
            data: Some("small".to_owned()),
            settings: vec!["train.steps=3".to_owned()],
            upstream: vec!["data.name=large".to_owned()],
            ..Options::default()
        };
        for system in &study.systems {
            let expected: &[&str] = match system.judged {
                true => &["data.name=small", "train.steps=3"],
                false => &["train.steps=3", "data.name=large"],
            };
            assert_eq!(options.settings_of(&study, system), expected, "{}", system.label);
        }
        study.settle(folder.path(), &options).map(drop).unwrap();
        let other = Options { upstream: Vec::new(), ..options };
        let message = study.settle(folder.path(), &other).map(drop).unwrap_err().to_string();
        assert!(message.contains("upstream [\"data.name=large\"]"), "{message}");
    }
}
