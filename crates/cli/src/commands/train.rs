//! `omma train`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_ranks::World;
use omma_train::{
    Cooldown, Ended, Fact, Follower, Recipe, Resolved, Resume, Stop, Trainer, TrainingResult, lead,
    meet,
    recipe::Request,
    run::{Place, RunFolder},
    same_data,
};

use super::note_margin;
use crate::{
    interrupt::{Interrupted, on_signals},
    progress::TrainingProgress,
    ranks,
    table::{clock, note, rate, say, say_json, short, table},
};

/// Train a model, and write a report.
///
/// Without arguments, a small V-MoE learns the built-in world. Every run has a folder of its own with
/// its recipe, logs, checkpoints, the trained model, result.json and report.html.
///
/// --resume with --set extends a run, also one that has come to its end: a new stretch with the same optimiser
/// state, whose schedule is computed for the new length from where the run is, so that a cosine that had come
/// down rises again. train.steps, train.epochs, optimiser.learning_rate, schedule.*, intervals and data.workers
/// may change; for anything else start a new run with --init.
///
/// --resume with --cooldown makes a run of its own from a checkpoint of another, which is only read: with its
/// weights and optimiser state, along its reverse square root, and linearly to zero over so many steps. A run
/// may have several, from any checkpoint that it has kept (train.keep_every), by other data or another seed;
/// `omma soup` averages what comes out.
///
/// Ctrl-C or SIGTERM stops it after the step it is in and saves everything; a second one ends it at once.
/// Exit code: 0 when it has come to its end, 130 or 143 when it was stopped, 1 for an error.
///
/// Examples:
///   omma train
///   omma train e3 --seed 1 --set train.steps=3000
///   omma train fashion-vmoe --data fashion-mnist
///   omma train vmoe --data photos/ --set model.resolution=64 \
///       --set model.patch=8
///   omma train vmoe --data photos.tsv --columns image=1,label=2
///   omma train finetune-vmoe --init pretrained/ --data photos/
///   omma train --resume latest
///   omma train --resume runs/e3-1 --set train.steps=6000
///   omma train vmoe --set schedule.kind=reverse-sqrt \
///       --set schedule.cooldown=0 --set train.keep_every=500
///   omma train --resume runs/vmoe-1 --cooldown 300 --from-step 1500 \
///       --set seed=1
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Train {
    /// A recipe that `omma recipes` lists, or a .toml file
    #[arg(default_value = "default")]
    recipe: String,
    /// world, fashion-mnist, or a path: folder of classes, .zip, .csv or .tsv, .tar shards, CIFAR or IDX files
    #[arg(long)]
    data: Option<String>,
    /// Which columns of a table are what, by name or by number from 1: image=photo,label=3
    #[arg(long, value_name = "COLUMNS")]
    columns: Option<String>,
    /// A setting on top of the recipe, such as train.steps=500 or model.moe.experts=4; with --resume, of the run
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Where every random number comes from
    #[arg(long)]
    seed: Option<u64>,
    /// A checkpoint to start from
    #[arg(long, value_name = "CHECKPOINT")]
    init: Option<PathBuf>,
    /// The folder of the run; a fresh one below runs/ if not given, and RUN-cooldown-1 and so on of a cooldown
    #[arg(long, value_name = "FOLDER")]
    run: Option<PathBuf>,
    /// Go on with a run: its folder, or `latest` for the newest below runs/
    #[arg(long, value_name = "RUN", conflicts_with_all = ["recipe", "data", "columns", "seed", "init"])]
    resume: Option<PathBuf>,
    /// With --resume: a run of its own that lets the learning rate fall to zero in so many steps
    #[arg(long, value_name = "STEPS", requires = "resume", conflicts_with = "from_start", value_parser = clap::value_parser!(u64).range(1..))]
    cooldown: Option<u64>,
    /// With --cooldown: the checkpoint to begin from; the newest if not given
    #[arg(long, value_name = "STEP", requires = "cooldown")]
    from_step: Option<u64>,
    /// With --resume: begin the run again if none of its checkpoints can be read
    #[arg(long, requires = "resume")]
    from_start: bool,
    /// With --resume: go on although the recipe or the images are not what the checkpoint was trained by
    #[arg(long, requires = "resume")]
    accept_changes: bool,
    /// Print result.json instead of a table
    #[arg(long)]
    json: bool,
}

const RUNS: &str = "runs";

impl Train {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        let stop = on_signals()?;
        let world = ranks::connect()?;
        if !world.leads() {
            self.follow(world, &stop, device);
            return Ok(());
        }
        let mut progress = TrainingProgress::new();
        let resolved = self.resolved(&world, device)?;
        let trainer = match resolved {
            Some(resolved) => self.start(resolved),
            None => self.resume(device),
        };
        let trainer = lead(world, trainer)?;
        let run = trainer.run_folder().clone();
        note(format!("{} → {}", trainer.recipe().name, run.path().display()));
        note_margin(&trainer.recipe().model.image);
        let ended = trainer.run(&mut progress, &stop);
        drop(progress);
        match ended? {
            Ended::Finished(result) => self.show(&run, &result),
            Ended::Interrupted { testing: true, .. } => {
                Err(stopped(&run, &stop, "in its last test"))
            }
            Ended::Interrupted { step, .. } => {
                Err(stopped(&run, &stop, &format!("after step {step}")))
            }
        }
    }

    /// Does what rank 0 says. What goes wrong on this rank too is rank 0's to report.
    fn follow(&self, world: World, stop: &Stop, device: &Device) {
        let joined = self.resolved(&world, device).and_then(|_| Ok(Follower::join(world, device)?));
        match joined {
            Ok(Some(follower)) => follower.run(stop),
            Ok(None) => {}
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// What a new run is to train, the same on all ranks; nothing where a run goes on.
    fn resolved(&self, world: &World, device: &Device) -> Result<Option<Resolved>> {
        let asked = match self.resume {
            Some(_) => Ok(None),
            None => self.recipe().map(Some),
        };
        let Some(recipe) = meet(world, asked)? else { return Ok(None) };
        Ok(Some(same_data(world, Resolved::new(recipe, device))?))
    }

    fn recipe(&self) -> omma_train::Result<Recipe> {
        let request = Request {
            data: self.data.clone(),
            columns: self.columns.clone(),
            seed: self.seed,
            init: self.init.clone(),
            settings: self.settings.clone(),
        };
        let (recipe, notes) = Recipe::find_with_notes(&self.recipe, &request)?;
        notes.iter().for_each(note);
        Ok(recipe)
    }

    fn start(&self, resolved: Resolved) -> Result<Trainer> {
        let place = match &self.run {
            Some(path) => Place::At(path),
            None => Place::Below(Path::new(RUNS)),
        };
        Ok(Trainer::start(place, resolved)?)
    }

    fn resume(&self, device: &Device) -> Result<Trainer> {
        let which = self.resume.as_deref().context("there is no run to go on with")?;
        let path = match which.to_str() {
            Some("latest") => RunFolder::latest(Path::new(RUNS))
                .with_context(|| format!("`--resume latest` looks in {RUNS}/ below this folder"))?,
            _ => which.to_owned(),
        };
        if let Some(steps) = self.cooldown {
            return self.cool_down(&path, steps, device);
        }
        if let Some(run) = &self.run {
            bail!(
                "--run {} is for a run of its own, and --resume goes on in {}; --cooldown makes one",
                run.display(),
                path.display()
            );
        }
        let (run, _) = RunFolder::open(&path)?;
        let how = Resume { from_start: self.from_start, accept_changes: self.accept_changes };
        if !self.settings.is_empty() {
            let (trainer, notes) = Trainer::extend(&path, &self.settings, how, device)?;
            notes.iter().for_each(note);
            return Ok(trainer);
        }
        if run.is_finished() {
            bail!(
                "{} has come to its end; its report is {}, and --set train.steps=… extends it",
                path.display(),
                run.file("report.html").display()
            );
        }
        Ok(Trainer::resume(&path, how, device)?)
    }

    /// A run of its own from a checkpoint of another.
    fn cool_down(&self, of: &Path, steps: u64, device: &Device) -> Result<Trainer> {
        let (from_step, settings) = (self.from_step, self.settings.clone());
        let cooldown = Cooldown { steps, from_step, settings };
        let how = Resume { from_start: false, accept_changes: self.accept_changes };
        let place = self.run.as_deref().map(Place::At);
        Ok(Trainer::cooldown(of, place, &cooldown, how, device)?)
    }

    fn show(&self, run: &RunFolder, result: &TrainingResult) -> Result<()> {
        if self.json {
            return say_json(result);
        }
        let row = |name: &str, value: String| [name.to_owned(), value];
        let fact = |fact: &Fact| match fact.note.as_str() {
            "" => row(fact.name, fact.value.clone()),
            note => row(fact.name, format!("{} ({note})", fact.value)),
        };
        let mut rows: Vec<[String; 2]> = result.facts.iter().map(fact).collect();
        rows.push(row("training", clock(result.train_seconds)));
        rows.push(row("speed", rate(result.images_per_second, "image")));
        if let Some(bytes) = result.peak_rss_bytes {
            rows.push(row("peak memory", format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)));
        }
        rows.push(row("parameters", short(result.parameters as u64)));
        for layer in &result.routing {
            let name = format!("block {}: busiest expert", layer.block);
            let dead =
                if layer.dead > 0 { format!(", {} dead", layer.dead) } else { String::new() };
            rows.push(row(&name, format!("{:.2}× balanced{dead}", layer.peak_load)));
        }
        say(table([&result.recipe, ""], rows, 1))?;
        say(format!("report: {}", run.file("report.html").display()))
    }
}

fn stopped(run: &RunFolder, stop: &Stop, when: &str) -> anyhow::Error {
    let how = format!("stopped {when}; go on with: omma train --resume {}", run.path().display());
    Interrupted::new(stop, how).into()
}
