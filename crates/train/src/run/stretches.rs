//! The stretches of a run that was extended.
//!
//! `recipe-STEP.toml` is the recipe that a run was trained by until that step, from where the one before it
//! ended; after the last of them `recipe.toml` counts. A run that was never extended is one stretch and has
//! none of them. What an earlier stretch reached is beside it: `result-STEP.json`, `report-STEP.html`, and
//! the checkpoint after that step, which stays.

use std::{fs, io};

use omma_data::formats;
use serde::Deserialize;

use super::{RECIPE, RunFolder};
use crate::{
    error::{Result, TrainError},
    recipe::Recipe,
};

/// A stretch that came to its end, or was cut short, before the one that its run is in.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// Steps that the run had taken at its end.
    pub until: u64,
    /// What it was trained by.
    pub recipe: Recipe,
}

const RESULT: &str = "result.json";
const REPORT: &str = "report.html";

fn recipe_name(until: u64) -> String {
    format!("recipe-{until}.toml")
}

/// The step in the name of a file that belongs to an earlier stretch.
fn step_of(name: &str, kind: (&str, &str)) -> Option<u64> {
    let step = name.strip_prefix(kind.0)?.strip_suffix(kind.1)?;
    // One step has one name.
    step.parse().ok().filter(|number: &u64| number.to_string() == step)
}

/// Whether a file belongs to an earlier stretch.
pub(super) fn is_earlier(name: &str) -> bool {
    let kinds = [("recipe-", ".toml"), ("result-", ".json"), ("report-", ".html")];
    kinds.into_iter().any(|kind| step_of(name, kind).is_some())
}

impl RunFolder {
    /// Steps that recipes of earlier stretches are there for.
    fn recipe_steps(&self) -> Result<Vec<u64>> {
        let names = self.names()?;
        let steps = names.iter().filter_map(|name| step_of(name, ("recipe-", ".toml")));
        let mut steps: Vec<u64> = steps.collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Steps after which it was extended, the first first.
    pub fn extended_after(&self) -> Result<Vec<u64>> {
        let mut steps = self.recipe_steps()?;
        // It was killed before the recipe of the new stretch was there: the old one goes on.
        if let Some(last) = steps.last()
            && self.text(&recipe_name(*last))? == self.text(RECIPE)?
        {
            steps.pop();
        }
        Ok(steps)
    }

    /// The stretches before the one that it is in.
    pub fn earlier_stretches(&self) -> Result<Vec<Stretch>> {
        let read = |until: u64| {
            let mut recipe = Recipe::read_saved(&self.file(&recipe_name(until)))?;
            recipe.data.name = formats::whole_name(&recipe.data.name);
            Ok(Stretch { until, recipe })
        };
        self.extended_after()?.into_iter().map(read).collect()
    }

    /// Writes down what led to the first step of a new run.
    pub(super) fn write_earlier(&self, earlier: &[Stretch]) -> Result<()> {
        let write = |one: &Stretch| self.write(&recipe_name(one.until), one.recipe.to_toml());
        earlier.iter().try_for_each(write)
    }

    /// Whether the run has come to its end, which is that of its last stretch.
    pub fn is_finished(&self) -> bool {
        let extended = self.extended_after().unwrap_or_default();
        match extended.last() {
            None => self.file(RESULT).exists(),
            Some(last) => self.result_steps().is_some_and(|steps| steps > *last),
        }
    }

    /// The steps of the run that `result.json` tells of.
    fn result_steps(&self) -> Option<u64> {
        #[derive(Deserialize)]
        struct Steps {
            steps: u64,
        }
        let text = fs::read(self.file(RESULT)).ok()?;
        serde_json::from_slice(&text).ok().map(|Steps { steps }| steps)
    }

    /// Begins a new stretch, after a step, by another recipe; the folder must be owned. It has begun when the
    /// recipe is replaced, in one moment; everything that is kept of the stretch before is there by then.
    pub(crate) fn begin_stretch(&self, after: u64, recipe: &Recipe) -> Result<()> {
        let earlier = self.extended_after()?;
        // Where a stretch was given up before its first checkpoint, what led to it is known already.
        let led_here = match earlier.iter().find(|until| **until >= after) {
            Some(until) => self.text(&recipe_name(*until))?,
            None => self.text(RECIPE)?,
        };
        self.write(&recipe_name(after), led_here)?;
        if self.result_steps() == Some(after) {
            self.write(&format!("result-{after}.json"), self.text(RESULT)?)?;
            match self.text(REPORT) {
                Err(TrainError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                page => self.write(&format!("report-{after}.html"), page?)?,
            }
        }
        // Their steps will be taken anew.
        for until in self.recipe_steps()?.into_iter().filter(|until| *until > after) {
            let path = self.file(&recipe_name(until));
            fs::remove_file(&path).map_err(TrainError::io(&path))?;
        }
        self.write(RECIPE, recipe.to_toml())
    }

    pub(super) fn text(&self, name: &str) -> Result<String> {
        let path = self.file(name);
        fs::read_to_string(&path).map_err(TrainError::io(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{recipe::Request, run::Place};

    fn recipe(steps: u64) -> Recipe {
        Recipe::find("vit", &Request::of(&[format!("train.steps={steps}")])).unwrap()
    }

    #[test]
    fn a_run_is_finished_with_its_last_stretch_and_keeps_what_was_before() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::create(Place::At(folder.path()), &recipe(10)).unwrap();
        assert!(!run.is_finished());
        run.write("result.json", "{\"steps\": 10}".to_owned()).unwrap();
        run.write("report.html", "ten".to_owned()).unwrap();
        assert!(run.is_finished() && run.extended_after().unwrap().is_empty());
        // Killed before the new recipe was there.
        run.write("recipe-10.toml", recipe(10).to_toml()).unwrap();
        assert!(run.is_finished() && run.extended_after().unwrap().is_empty());
        run.begin_stretch(10, &recipe(20)).unwrap();
        assert!(!run.is_finished());
        assert_eq!(run.text("result-10.json").unwrap(), "{\"steps\": 10}");
        assert_eq!(run.text("report-10.html").unwrap(), "ten");
        // Given up and extended otherwise: the first stretch stays what it was.
        run.begin_stretch(10, &recipe(30)).unwrap();
        let earlier = run.earlier_stretches().unwrap();
        assert_eq!(earlier, [Stretch { until: 10, recipe: recipe(10) }]);
        run.begin_stretch(15, &recipe(40)).unwrap();
        let steps: Vec<u64> =
            run.earlier_stretches().unwrap().iter().map(|one| one.recipe.train.steps).collect();
        assert_eq!(steps, [10, 30]);
        run.write("result.json", "{\"steps\": 40}".to_owned()).unwrap();
        assert!(run.is_finished());
        // From an older checkpoint, because newer ones are damaged.
        run.begin_stretch(12, &recipe(50)).unwrap();
        let steps: Vec<(u64, u64)> = run
            .earlier_stretches()
            .unwrap()
            .iter()
            .map(|one| (one.until, one.recipe.train.steps))
            .collect();
        assert_eq!(steps, [(10, 10), (12, 30)]);
    }

    #[test]
    fn only_files_of_stretches_are_taken_for_theirs() {
        for name in ["recipe-400.toml", "result-0.json", "report-12.html"] {
            assert!(is_earlier(name), "{name}");
        }
        for name in ["recipe.toml", "recipe-04.toml", "recipe--4.toml", "recipe-x.toml", "result-4"]
        {
            assert!(!is_earlier(name), "{name}");
        }
    }
}
