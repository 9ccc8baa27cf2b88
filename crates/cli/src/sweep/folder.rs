//! The folder of a sweep.
//!
//! ```text
//! sweeps/NAME/
//!   points.json      what is swept, and the points so far
//!   points/          the whole recipe of every point, by its name
//!   runs/            the run of every point
//!   logs/            what their trainings said
//!   sweep.html       the table, to look at
//!   sweep.json       the same for programs
//! ```

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use omma_base::files::{FolderLock, write_atomically};
use omma_train::Recipe;
use serde::{Deserialize, Serialize};

use super::grid::Value;
use crate::{
    jobs::{Job, log_of},
    names::slug,
};

const POINTS: &str = "points.json";
/// Letters of a point's name, beside its number.
const LONGEST: usize = 60;

/// One training of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Of its recipe and of its run.
    pub(crate) name: String,
    /// What tells it from the others of its grid.
    label: String,
    /// On top of the recipe.
    pub(crate) settings: Vec<Value>,
    pub(crate) seed: u64,
}

/// What the points of a sweep have in common, as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) recipe: String,
    pub(crate) data: Option<String>,
    pub(crate) init: Option<PathBuf>,
}

/// `points.json`
#[derive(Serialize, Deserialize)]
struct Known {
    #[serde(flatten)]
    subject: Subject,
    points: Vec<Point>,
}

/// A point that is asked for.
pub(crate) struct Wanted {
    /// What tells it from the others.
    pub(crate) label: String,
    pub(crate) settings: Vec<Value>,
    /// With everything in it.
    pub(crate) recipe: Recipe,
}

/// The folder of a sweep with its points, those of earlier grids first.
pub(crate) struct SweepFolder {
    path: PathBuf,
    pub(crate) subject: Subject,
    pub(crate) points: Vec<Point>,
    /// Theirs, with everything in them.
    pub(crate) recipes: Vec<Recipe>,
    /// Which of them are asked for now.
    pub(crate) wanted: Vec<usize>,
}

impl SweepFolder {
    /// Finds the points that are asked for among those that are there, and adds those that are not; nothing is
    /// written. Fails where the folder has a sweep of something else.
    pub(crate) fn plan(path: &Path, subject: Subject, wanted: Vec<Wanted>) -> Result<Self> {
        let file = path.join(POINTS);
        let known: Option<Known> = match std::fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => Some(
                serde_json::from_slice(&text.with_context(|| file.display().to_string())?)
                    .with_context(|| file.display().to_string())?,
            ),
        };
        if let Some(known) = known.as_ref().filter(|known| known.subject != subject) {
            let said = |subject: &Subject| {
                let data = subject.data.iter().map(|data| format!(" --data {data}"));
                let init = subject.init.iter().map(|init| format!(" --init {}", init.display()));
                data.chain(init).fold(subject.recipe.clone(), |all, part| all + &part)
            };
            bail!(
                "{} has a sweep of {}, and this is one of {}; choose another folder with --out",
                path.display(),
                said(&known.subject),
                said(&subject)
            );
        }
        let mut points = known.map_or_else(Vec::new, |known| known.points);
        let recipes = points.iter().map(|point| Recipe::read_saved(&recipe_path(path, point)));
        let mut recipes = recipes.collect::<Result<Vec<Recipe>, _>>()?;
        let mut numbers: Vec<usize> = Vec::new();
        for Wanted { label, settings, recipe } in wanted {
            // The same training, however it is written.
            let known = recipes.iter().position(|known| *known == recipe);
            let number = match known {
                Some(number) => number,
                None => {
                    let same =
                        |point: &&Point| point.settings == settings && point.seed == recipe.seed;
                    if let Some(point) = points.iter().find(same) {
                        bail!(
                            "the recipe has changed since {} was written; choose another folder with --out",
                            recipe_path(path, point).display()
                        );
                    }
                    let name = name(points.len() + 1, &label, recipe.seed);
                    points.push(Point { name, label, settings, seed: recipe.seed });
                    recipes.push(recipe);
                    points.len() - 1
                }
            };
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        Ok(Self { path: path.to_owned(), subject, points, recipes, wanted: numbers })
    }

    /// Writes down the points and their recipes; the folder must be owned.
    pub(crate) fn settle(&self, _owned: &FolderLock) -> Result<()> {
        std::fs::create_dir_all(self.path.join("points"))?;
        for (point, recipe) in self.points.iter().zip(&self.recipes) {
            let path = recipe_path(&self.path, point);
            if !path.exists() {
                self.write(&path, &recipe.to_toml())?;
            }
        }
        // Only points whose recipes are there.
        let known = Known { subject: self.subject.clone(), points: self.points.clone() };
        self.write(&self.path.join(POINTS), &(serde_json::to_string_pretty(&known)? + "\n"))
    }

    fn write(&self, path: &Path, text: &str) -> Result<()> {
        write_atomically(path, |file| std::fs::write(file, text))
            .with_context(|| path.display().to_string())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where a point is trained.
    pub(crate) fn run(&self, point: &Point) -> PathBuf {
        self.path.join("runs").join(&point.name)
    }

    /// What the training of a point said.
    pub(crate) fn log(&self, point: &Point) -> PathBuf {
        log_of(&self.path, "train", &self.run(point))
    }

    /// The arguments of `omma train` that train a point as the user would.
    pub(crate) fn train_arguments(&self, point: &Point) -> Vec<String> {
        let Subject { recipe, data, init } = &self.subject;
        let mut arguments = vec!["train".to_owned(), recipe.clone()];
        arguments.extend(data.iter().flat_map(|data| ["--data".to_owned(), data.clone()]));
        let init = init.iter().map(|path| path.display().to_string());
        arguments.extend(init.flat_map(|path| ["--init".to_owned(), path]));
        for setting in &point.settings {
            arguments.extend(["--set".to_owned(), setting.to_string()]);
        }
        arguments.extend(["--seed".to_owned(), point.seed.to_string()]);
        arguments
    }

    /// The trainings of the points that are asked for, in their order. Each is by the recipe that was written
    /// down, so that a recipe that is edited meanwhile does not change what is compared.
    pub(crate) fn jobs(&self) -> Vec<Job> {
        let job = |number: &usize| {
            let point = &self.points[*number];
            let begin = [recipe_path(&self.path, point).display().to_string()];
            Job::training(point.in_words(), begin, &self.run(point), self.log(point))
        };
        self.wanted.iter().map(job).collect()
    }
}

impl Point {
    fn in_words(&self) -> String {
        match self.label.as_str() {
            "" => format!("seed {}", self.seed),
            label => format!("{label}, seed {}", self.seed),
        }
    }
}

fn recipe_path(folder: &Path, point: &Point) -> PathBuf {
    folder.join("points").join(format!("{}.toml", point.name))
}

/// Its number makes it one of a kind, the rest is for people.
fn name(number: usize, label: &str, seed: u64) -> String {
    // The last part of a key is enough.
    let short =
        |one: &str| one.split('=').next().and_then(|key| key.rfind('.')).map_or(0, |dot| dot + 1);
    let parts = label.split(", ").map(|one| &one[short(one)..]).collect::<Vec<_>>().join(" ");
    let text: String = slug(&parts).chars().take(LONGEST).collect();
    let text = format!("{} seed {seed}", text.trim_end_matches('-'));
    format!("{number:03}-{}", slug(&text))
}

#[cfg(test)]
mod tests {
    use omma_train::recipe::Request;

    use super::*;

    fn subject(recipe: &str) -> Subject {
        Subject { recipe: recipe.to_owned(), data: None, init: None }
    }

    fn wanted(rates: &[&str]) -> Vec<Wanted> {
        let one = |rate: &&str| {
            let value =
                Value { key: "optimiser.learning_rate".to_owned(), value: (*rate).to_owned() };
            let recipe = Recipe::find("vit", &Request::of(&[value.to_string()])).unwrap();
            Wanted { label: value.to_string(), settings: vec![value], recipe }
        };
        rates.iter().map(one).collect()
    }

    #[test]
    fn a_changed_grid_adds_points_and_finds_those_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let plan = |rates: &[&str]| {
            SweepFolder::plan(folder.path(), subject("vit"), wanted(rates)).unwrap()
        };
        let first = plan(&["1e-4", "1e-3"]);
        assert_eq!(first.points[0].name, "001-learning-rate-1e-4-seed-0");
        assert!(!folder.path().join(POINTS).exists(), "a plan writes nothing");
        first.settle(&FolderLock::take(folder.path()).unwrap()).unwrap();
        let second = plan(&["0.001", "3e-3"]);
        assert_eq!(second.wanted, [1, 2], "1e-3 is 0.001");
        assert_eq!(second.points[..2], first.points[..]);
        assert_eq!(second.jobs()[1].what, "optimiser.learning_rate=3e-3, seed 0");
        // Another recipe, or the same by another hand.
        let other = SweepFolder::plan(folder.path(), subject("vmoe"), Vec::new());
        let message = other.err().unwrap().to_string();
        assert!(message.contains("a sweep of vit, and this is one of vmoe"), "{message}");
        let mut changed = wanted(&["1e-4"]);
        changed[0].recipe.train.batch = 8;
        let message = SweepFolder::plan(folder.path(), subject("vit"), changed).err().unwrap();
        assert!(message.to_string().contains("has changed since"), "{message}");
    }
}
