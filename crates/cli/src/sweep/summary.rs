//! The table of a sweep: what each setting reached, and which is best by held-out images.

use std::{cmp::Ordering, collections::BTreeMap};

use anyhow::Result;
use omma_eval::metrics::Estimate;
use omma_train::{Measure, Unit, run::step_name};
use serde::Serialize;

use super::{folder::SweepFolder, grid::Value, scores::Reached};
use crate::names::command;

/// All points of a sweep; `sweep.json`.
#[derive(Serialize)]
pub(crate) struct Summary {
    recipe: String,
    /// The score on held-out images that decides.
    pub(crate) decides: &'static str,
    /// Settings in which the rows differ.
    pub(crate) columns: Vec<String>,
    /// The best first; then those that are not whole, in the order of the grid.
    pub(crate) rows: Vec<Row>,
    /// What to do with the best, where there is one: it is the first row.
    pub(crate) best: Option<Best>,
    #[serde(skip)]
    measures: &'static [Measure],
}

/// Settings, and the seeds that were trained with them.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) settings: Vec<Value>,
    pub(crate) seeds: Vec<Seed>,
    /// Of the best checkpoints, over the seeds that came to their end.
    pub(crate) held_out: Option<Estimate>,
    /// Of the trained models.
    test: BTreeMap<&'static str, Estimate>,
    /// Of a training.
    seconds: Option<f64>,
}

#[derive(Serialize)]
pub(crate) struct Seed {
    seed: u64,
    run: String,
    #[serde(flatten)]
    pub(crate) reached: Reached,
    #[serde(skip)]
    data: String,
}

/// The best row in words and as commands.
#[derive(Serialize)]
pub(crate) struct Best {
    pub(crate) settings: String,
    pub(crate) held_out: String,
    pub(crate) train: Vec<String>,
    pub(crate) evaluate: Vec<String>,
}

impl Summary {
    /// Reads what the runs of a sweep have left. `failed` are the last words of trainings by the numbers of
    /// their points.
    pub(crate) fn read(folder: &SweepFolder, failed: &BTreeMap<usize, String>) -> Result<Self> {
        let task = folder.recipes.first().map(|recipe| recipe.task).unwrap_or_default();
        let measures = task.measures();
        let mut rows: Vec<Row> = Vec::new();
        for (number, (point, recipe)) in folder.points.iter().zip(&folder.recipes).enumerate() {
            let run = folder.run(point);
            let earlier = || Reached::why_of_earlier(&folder.log(point));
            let why = match folder.wanted.contains(&number) {
                true => failed.get(&number).cloned(),
                false => earlier(),
            };
            let seed = Seed {
                seed: point.seed,
                reached: Reached::read(&run, why.as_deref())?,
                run: run.display().to_string(),
                data: recipe.data.name.clone(),
            };
            match rows.iter_mut().find(|row| row.settings == point.settings) {
                Some(row) => row.seeds.push(seed),
                None => rows.push(Row::new(point.settings.clone(), seed)),
            }
        }
        rows.iter_mut().for_each(|row| row.conclude(measures));
        let decides = measures.first();
        // Sorting keeps the order of the grid among equals.
        rows.sort_by(|a, b| match (a.judged(), b.judged(), decides) {
            (Some(a), Some(b), Some(measure)) if measure.is_better(a, b) => Ordering::Less,
            (Some(a), Some(b), Some(measure)) if measure.is_better(b, a) => Ordering::Greater,
            (a, b, _) => b.is_some().cmp(&a.is_some()),
        });
        let columns = columns(&rows);
        let mut summary = Self {
            recipe: folder.subject.recipe.clone(),
            decides: decides.map_or("score", |measure| measure.title),
            columns,
            rows,
            best: None,
            measures,
        };
        summary.best = summary.find_best(folder);
        Ok(summary)
    }

    fn find_best(&self, folder: &SweepFolder) -> Option<Best> {
        let (row, measure) = (self.rows.first()?, self.measures.first()?);
        row.judged()?;
        let mut best = Best {
            settings: self.named(row),
            held_out: shown(measure, row.held_out?),
            train: Vec::new(),
            evaluate: Vec::new(),
        };
        for Seed { seed, run, reached, data } in &row.seeds {
            let point =
                folder.points.iter().find(|one| one.settings == row.settings && one.seed == *seed);
            best.train.extend(point.map(|point| command(&folder.train_arguments(point))));
            let scores = reached.scores()?;
            // A run is judged by its last step; an earlier one that did better is a checkpoint of it.
            let evaluate = match scores.held_out.map(|best| best.step) {
                Some(step) if step != scores.steps => {
                    let checkpoint = format!("{run}/checkpoints/{}", step_name(step));
                    vec!["eval".to_owned(), checkpoint, "--data".to_owned(), data.clone()]
                }
                _ => vec!["eval".to_owned(), run.clone()],
            };
            best.evaluate.push(command(&evaluate));
        }
        Some(best)
    }

    /// What tells a row from the others.
    pub(crate) fn named(&self, row: &Row) -> String {
        let values =
            self.columns.iter().filter_map(|key| Some(format!("{key}={}", row.value(key)?)));
        match values.collect::<Vec<_>>().join(", ") {
            text if text.is_empty() => "the recipe as it is".to_owned(),
            text => text,
        }
    }

    pub(crate) fn measure(&self) -> Option<&'static Measure> {
        self.measures.first()
    }

    /// Header and cells. `longest` is how much is said of a failure.
    pub(crate) fn table(&self, longest: usize) -> (Vec<String>, Vec<Vec<String>>) {
        let several = self.rows.iter().any(|row| row.seeds.len() > 1);
        let open = self.rows.iter().any(|row| !row.state(longest).is_empty());
        let mut header = self.columns.clone();
        header.extend(several.then(|| "seeds".to_owned()));
        header.push(format!("held-out {}", self.decides));
        header.extend(self.measures.iter().map(|measure| format!("test {}", measure.title)));
        header.push("seconds".to_owned());
        header.extend(open.then(|| "state".to_owned()));
        let nothing = || "–".to_owned();
        let cells = |row: &Row| {
            let value = |key: &String| row.value(key).map_or_else(nothing, str::to_owned);
            let mut cells: Vec<String> = self.columns.iter().map(value).collect();
            cells.extend(several.then(|| row.seeds.len().to_string()));
            let held_out = self.measures.first().zip(row.held_out);
            cells.push(held_out.map_or_else(nothing, |(measure, value)| shown(measure, value)));
            for measure in self.measures {
                let value = row.test.get(measure.key);
                cells.push(value.map_or_else(nothing, |value| shown(measure, *value)));
            }
            cells.push(row.seconds.map_or_else(nothing, |seconds| format!("{seconds:.0}")));
            cells.extend(open.then(|| row.state(longest)));
            cells
        };
        (header, self.rows.iter().map(cells).collect())
    }

    /// What to know before anything is concluded from the table.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let plain = ["data.workers", "data.prefetch", "data.bad_share"];
        let changes_images =
            |key: &&String| key.starts_with("data.") && !plain.contains(&key.as_str());
        let keys: Vec<&str> =
            self.columns.iter().filter(changes_images).map(String::as_str).collect();
        let mut warnings = Vec::new();
        if !keys.is_empty() {
            warnings.push(format!(
                "points differ in {}: their held-out images are not the same, and their scores not of one kind",
                keys.join(", ")
            ));
        }
        let done = self
            .rows
            .iter()
            .any(|row| row.seeds.iter().any(|seed| seed.reached.scores().is_some()));
        let judged = self.rows.iter().any(|row| row.held_out.is_some());
        if done && !judged {
            warnings.push(
                "no images are held out (data.validation=0), so none is called best: the test is not there to \
                 choose by"
                    .to_owned(),
            );
        }
        warnings
    }
}

impl Row {
    fn new(settings: Vec<Value>, seed: Seed) -> Self {
        let (held_out, test, seconds) = (None, BTreeMap::new(), None);
        Self { settings, seeds: vec![seed], held_out, test, seconds }
    }

    /// Sums up what is there.
    fn conclude(&mut self, measures: &'static [Measure]) {
        let scores = || self.seeds.iter().filter_map(|seed| seed.reached.scores());
        let estimate = |values: Vec<f64>| (!values.is_empty()).then(|| Estimate::of(&values));
        self.held_out =
            estimate(scores().filter_map(|scores| Some(scores.held_out?.score)).collect());
        self.seconds =
            estimate(scores().map(|scores| scores.seconds).collect()).map(|all| all.mean);
        let test = |measure: &'static Measure| {
            let values = scores().filter_map(|scores| scores.test.get(measure.key)).collect();
            Some((measure.key, estimate(values)?))
        };
        self.test = measures.iter().filter_map(test).collect();
    }

    /// The score that it may be chosen by: only where every seed came to its end.
    fn judged(&self) -> Option<f64> {
        let whole = self.seeds.iter().all(|seed| seed.reached.scores().is_some());
        self.held_out.filter(|all| whole && all.count == self.seeds.len()).map(|all| all.mean)
    }

    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|one| one.key == key).map(|one| one.value.as_str())
    }

    /// What is not done, in words; nothing where all is.
    fn state(&self, longest: usize) -> String {
        let failed = self.seeds.iter().find_map(|seed| match &seed.reached {
            Reached::Failed { why } => Some((seed.seed, why)),
            _ => None,
        });
        let waiting = self.seeds.iter().filter(|seed| seed.reached == Reached::Waiting).count();
        match failed {
            Some((seed, why)) => {
                let what = match why.strip_prefix("training has diverged: ") {
                    Some(why) => format!("diverged: {why}"),
                    None => format!("failed: {why}"),
                };
                let what = match self.seeds.len() {
                    1 => what,
                    _ => format!("seed {seed} {what}"),
                };
                match what.char_indices().nth(longest) {
                    Some((end, _)) => format!("{}…", &what[..end]),
                    None => what,
                }
            }
            None if waiting == 0 => String::new(),
            None if waiting == self.seeds.len() => "waiting".to_owned(),
            None => format!("{waiting} of {} seeds waiting", self.seeds.len()),
        }
    }
}

/// Settings that rows differ in; of a single row all that it has.
fn columns(rows: &[Row]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for setting in rows.iter().flat_map(|row| &row.settings) {
        let differs = rows.iter().any(|row| row.value(&setting.key) != Some(&setting.value));
        if (differs || rows.len() == 1) && !keys.contains(&setting.key) {
            keys.push(setting.key.clone());
        }
    }
    keys
}

/// A mean, with its standard error where there are several values.
fn shown(measure: &Measure, Estimate { mean, standard_error, .. }: Estimate) -> String {
    match (measure.unit, standard_error) {
        (_, None) => measure.show(mean),
        (Unit::Share, Some(error)) => format!("{:.2} ± {:.2} %", 100.0 * mean, 100.0 * error),
        (Unit::Nats, Some(error)) => format!("{mean:.4} ± {error:.4}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use omma_train::{Recipe, recipe::Request};

    use super::*;
    use crate::sweep::{
        folder::{Subject, Wanted},
        grid::Grid,
    };

    /// A sweep of `vit` with so many seeds, and no run yet.
    pub(in crate::sweep) fn sweep(path: &Path, settings: &[&str], seeds: u64) -> SweepFolder {
        let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
        let mut wanted = Vec::new();
        let grid = Grid::parse(&settings).unwrap();
        for settings in grid.points() {
            let texts: Vec<String> = settings.iter().map(ToString::to_string).collect();
            let recipe = Recipe::find("vit", &Request::of(&texts)).unwrap();
            for seed in 0..seeds {
                let recipe = Recipe { seed, ..recipe.clone() };
                wanted.push(Wanted {
                    label: grid.label(&settings),
                    settings: settings.clone(),
                    recipe,
                });
            }
        }
        let subject = Subject { recipe: "vit".to_owned(), data: None, init: None };
        SweepFolder::plan(path, subject, wanted).unwrap()
    }

    /// Gives a point a result.
    pub(in crate::sweep) fn reach(folder: &SweepFolder, point: usize, held_out: &str, test: f64) {
        let run = folder.run(&folder.points[point]);
        std::fs::create_dir_all(&run).unwrap();
        let text = format!(
            r#"{{"steps": 9, "train_seconds": 2.0, "test_accuracy": {test}, "best_validation": {held_out}}}"#
        );
        std::fs::write(run.join("result.json"), text).unwrap();
    }

    #[test]
    fn a_row_is_chosen_only_if_all_its_seeds_came_to_their_end() {
        let here = tempfile::tempdir().unwrap();
        let folder = sweep(here.path(), &["optimiser.learning_rate=1e-4,1e-3,1e-2"], 2);
        let score = |score: f64| format!(r#"{{"step": 9, "score": {score}}}"#);
        for (point, held_out, test) in
            [(0, 0.4, 0.99), (1, 0.6, 0.99), (2, 0.9, 0.9), (4, 0.6, 0.1), (5, 0.7, 0.1)]
        {
            reach(&folder, point, &score(held_out), test);
        }
        let why = "training has diverged: the loss of step 3 is NaN; try less".to_owned();
        let summary = Summary::read(&folder, &BTreeMap::from([(3, why)])).unwrap();
        let order: Vec<String> = summary.rows.iter().map(|row| summary.named(row)).collect();
        let rate = |value: &str| format!("optimiser.learning_rate={value}");
        assert_eq!(order, [rate("1e-2"), rate("1e-4"), rate("1e-3")]);
        let best = summary.best.as_ref().unwrap();
        assert_eq!(
            (best.settings.as_str(), best.held_out.as_str()),
            (order[0].as_str(), "65.00 ± 5.00 %")
        );
        assert_eq!(best.train[1], "omma train vit --set optimiser.learning_rate=1e-2 --seed 1");
        assert!(
            best.evaluate[0].ends_with("runs/005-learning-rate-1e-2-seed-0"),
            "{:?}",
            best.evaluate
        );
        let (header, rows) = summary.table(30);
        assert_eq!(header[..3], ["optimiser.learning_rate", "seeds", "held-out accuracy"]);
        assert_eq!(rows[2].last().unwrap(), "seed 1 diverged: the loss of s…");
        assert!(rows[0].last().unwrap().is_empty());
    }

    #[test]
    fn without_held_out_images_none_is_best_and_other_images_are_no_comparison() {
        let here = tempfile::tempdir().unwrap();
        let folder = sweep(here.path(), &["data.limit=100,200", "train.steps=5"], 1);
        let none = BTreeMap::new();
        assert!(
            Summary::read(&folder, &none)
                .unwrap()
                .warnings()
                .iter()
                .all(|text| !text.contains("best"))
        );
        reach(&folder, 0, "null", 0.5);
        reach(&folder, 1, "null", 0.9);
        let summary = Summary::read(&folder, &none).unwrap();
        assert!(summary.best.is_none());
        assert_eq!(summary.columns, ["data.limit"], "what all have in common is no column");
        let warnings = summary.warnings();
        assert!(warnings[0].contains("differ in data.limit"), "{warnings:?}");
        assert!(warnings[1].contains("none is called best"), "{warnings:?}");
    }
}
