//! `omma sweep`

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use omma_base::files::{FolderLock, write_atomically};
use omma_train::{Recipe, recipe::Request};

use crate::{
    interrupt::{Interrupted, on_signals},
    jobs::{Jobs, OnFailure, Outcome, cores},
    names::command,
    sweep::{Grid, Subject, Summary, SweepFolder, Wanted, page},
    table::{note, say, table_of},
};

/// Train a recipe with every combination of some settings, and put them into one table.
///
/// --set takes several values, separated by commas; a comma in brackets, braces or quotes belongs to a value, so
/// [24,32] is one and so is "a,b". Every --set with several values is an axis of the grid.
///
/// Trainings run side by side as processes of their own. The table is sorted by the score of the best checkpoint
/// on held-out images, and the best is chosen by that, never by the test. A training that fails or diverges is a
/// row that says so. What is done already is left alone: the same command goes on after an interruption and tries
/// again what failed, and a command with other values adds to the table. Writes sweep.html and sweep.json, also on
/// the way.
///
/// Examples:
///   omma sweep vmoe --set optimiser.learning_rate=1e-4,3e-4,1e-3
///   omma sweep vmoe --data photos/ --set optimiser.learning_rate=3e-4,1e-3 \
///       --set model.moe.k=1,2 --seeds 3
///   omma sweep vit --set 'model.resolution=[24,32],[32,32]' --dry-run
#[derive(Args)]
#[command(verbatim_doc_comment)]
#[allow(rustdoc::broken_intra_doc_links, reason = "a help text is shown as it is, lists too")]
pub(crate) struct Sweep {
    /// A recipe that `omma recipes` lists, or a .toml file
    recipe: String,
    /// A setting on top of the recipe, with one value or several
    #[arg(long = "set", value_name = "KEY=VALUE,…")]
    settings: Vec<String>,
    /// Seeds per setting, counted from that of the recipe
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: u16,
    /// world, fashion-mnist, or a path, as for `omma train`
    #[arg(long)]
    data: Option<String>,
    /// A checkpoint that every training starts from
    #[arg(long, value_name = "CHECKPOINT")]
    init: Option<PathBuf>,
    /// Processes at a time; the cores are shared among them
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Where everything goes; sweeps/RECIPE if not given
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print the commands and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Print sweep.json instead of a table
    #[arg(long)]
    json: bool,
}

/// Between two tables on the way.
const PAUSE: Duration = Duration::from_secs(60);
/// How much of a failure the terminal shows; the page and the log have it all.
const LONGEST: usize = 60;

impl Sweep {
    pub(crate) fn run(self) -> Result<()> {
        let (name, wanted) = self.wanted()?;
        let path = self.out.clone().unwrap_or_else(|| Path::new("sweeps").join(name));
        if self.dry_run {
            return show_commands(&SweepFolder::plan(&path, self.subject(), wanted)?);
        }
        let stop = on_signals()?;
        std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        let owned = FolderLock::take(&path).with_context(|| path.display().to_string())?;
        let folder = SweepFolder::plan(&path, self.subject(), wanted)?;
        folder.settle(&owned)?;
        let jobs = folder.jobs();
        let at_once = self.jobs.map_or_else(cores, usize::from);
        note(format!(
            "{} trainings, {} at a time, in {}",
            jobs.len(),
            at_once.min(jobs.len()),
            path.display()
        ));
        let mut failed: BTreeMap<usize, String> = BTreeMap::new();
        let mut shown = Instant::now();
        let mut watch = |job: usize, outcome: &Outcome| {
            if let Outcome::Failed(why) = outcome {
                failed.insert(folder.wanted[job], why.clone());
            }
            let told = self.tell(&folder, &failed, &mut shown);
            let said = told.unwrap_or_else(|error| format!(" (no table: {error:#})"));
            match outcome {
                Outcome::Failed(why) => format!(" ({why}){said}"),
                _ => said,
            }
        };
        let queue = Jobs { at_once, on_failure: OnFailure::GoOn, stop: &stop };
        let outcomes = queue.run(&jobs, &mut watch);
        let summary = write(&folder, &failed)?;
        if outcomes.contains(&Outcome::Left) {
            let how = "stopped; the same command goes on from here".to_owned();
            return Err(Interrupted::new(&stop, how).into());
        }
        if let (true, Some(why)) = (failed.len() == outcomes.len(), failed.values().next()) {
            bail!("every training failed, the first with: {why}");
        }
        self.show(&folder, &summary)
    }

    /// Every training that is asked for, and the name of the recipe.
    fn wanted(&self) -> Result<(String, Vec<Wanted>)> {
        let grid = Grid::parse(&self.settings)?;
        if self.seeds > 1 && grid.sets("seed") {
            bail!("seed is among the settings; leave out that, or --seeds");
        }
        let (mut name, mut wanted, mut said) = (String::new(), Vec::new(), Vec::new());
        for settings in grid.points() {
            let request = Request {
                data: self.data.clone(),
                columns: None,
                seed: None,
                init: self.init.clone(),
                settings: settings.iter().map(ToString::to_string).collect(),
            };
            // A value that cannot be comes out before hours of training.
            let (recipe, notes) = Recipe::find_with_notes(&self.recipe, &request)?;
            for text in notes {
                if !said.contains(&text) {
                    note(&text);
                    said.push(text);
                }
            }
            name.clone_from(&recipe.name);
            for number in 0..u64::from(self.seeds) {
                let seed = recipe.seed + number;
                let recipe = Recipe { seed, ..recipe.clone() };
                recipe.check()?;
                let label = grid.label(&settings);
                wanted.push(Wanted { label, settings: settings.clone(), recipe });
            }
        }
        Ok((name, wanted))
    }

    fn subject(&self) -> Subject {
        let Self { recipe, data, init, .. } = self;
        Subject { recipe: recipe.clone(), data: data.clone(), init: init.clone() }
    }

    /// Brings the table up to date, and shows it if that is some time ago; the best so far, in words.
    fn tell(
        &self,
        folder: &SweepFolder,
        failed: &BTreeMap<usize, String>,
        shown: &mut Instant,
    ) -> Result<String> {
        let summary = write(folder, failed)?;
        if shown.elapsed() > PAUSE && !self.json {
            *shown = Instant::now();
            let (header, rows) = summary.table(LONGEST);
            note(table_of(&header, &rows, summary.columns.len()));
        }
        let best = summary.best.iter();
        Ok(best
            .map(|best| format!(", best so far {} ({})", best.held_out, best.settings))
            .collect())
    }

    fn show(&self, folder: &SweepFolder, summary: &Summary) -> Result<()> {
        summary.warnings().iter().for_each(note);
        if self.json {
            return say(serde_json::to_string_pretty(summary)?);
        }
        let (header, rows) = summary.table(LONGEST);
        say(table_of(&header, &rows, summary.columns.len()))?;
        if let Some(best) = &summary.best {
            say(format!(
                "best by held-out {}: {} ({})",
                summary.decides, best.settings, best.held_out
            ))?;
            for (what, commands) in
                [("train it again", &best.train), ("evaluate it", &best.evaluate)]
            {
                for command in commands {
                    say(format!("{what}: {command}"))?;
                }
            }
        }
        say(format!("report: {}", folder.path().join("sweep.html").display()))
    }
}

fn show_commands(folder: &SweepFolder) -> Result<()> {
    for (number, job) in folder.wanted.iter().zip(folder.jobs()) {
        let point = &folder.points[*number];
        let run = folder.run(point);
        if job.is_done() {
            say(format!("# done: {}", job.what))?;
        } else if run.exists() {
            say(command(&job.arguments))?;
        } else {
            let into = ["--run".to_owned(), run.display().to_string()];
            say(command(&[folder.train_arguments(point), into.to_vec()].concat()))?;
        }
    }
    Ok(())
}

/// Reads all runs, and writes the page and the table.
fn write(folder: &SweepFolder, failed: &BTreeMap<usize, String>) -> Result<Summary> {
    let summary = Summary::read(folder, failed)?;
    let json = serde_json::to_string_pretty(&summary)? + "\n";
    for (name, text) in
        [("sweep.html", page(&summary, &folder.subject.recipe)), ("sweep.json", json)]
    {
        let path = folder.path().join(name);
        write_atomically(&path, |file| std::fs::write(file, &text))
            .with_context(|| path.display().to_string())?;
    }
    Ok(summary)
}
