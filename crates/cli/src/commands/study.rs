//! `omma study`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use omma_base::{Resolution, files::write_atomically};
use omma_data::formats::whole_name;
use omma_eval::{
    Evaluation,
    compare::{Comparison, Table, read_evaluation},
    report::{StudyFigure, study_page, write_report},
};
use omma_model::{ModelConfig, apply_settings, checkpoint};
use serde::Serialize;

use crate::{
    interrupt::{Interrupted, on_signals},
    jobs::{Job, Jobs, OnFailure, cores, log_of},
    names::slug,
    study::{NormStudy, Options, STUDIES, Study, StudySystem, has_looked_at, learning_curves},
    subject::{ood_meanings, ood_name, ood_sets},
    table::{note, say, say_json, short, table, table_of},
};

/// Train and judge all systems of a study, over several seeds, and put them into one table.
///
/// What is done already is left alone, so a study that was interrupted goes on with the same command.
/// Writes study.html, study.json, table.md and figures/*.svg.
///
/// Examples:
///   omma study e3
///   omma study e3 --ood kmnist=data/kmnist,notmnist=data/notmnist
///   omma study e3 --plan
///   omma study soft --data mnist/
///   omma study norm --set steps=200
///   omma study limoe --data emoji/ --also emoji-held-out.tsv
///   omma study vimoe --init small/ --data cifar10/
///   omma study my-study/ --jobs 4 --set train.steps=500
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct StudyCommand {
    /// A study that comes with the program, or a folder with study.toml and recipes
    study: String,
    /// Where everything goes; studies/NAME if not given
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Seeds per system, if not those of the study
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: Option<u16>,
    /// Processes at a time; the cores are shared among them
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Another data set for all systems
    #[arg(long)]
    data: Option<String>,
    /// The checkpoint that all systems begin from, in a study that needs one
    #[arg(long, value_name = "CHECKPOINT")]
    init: Option<PathBuf>,
    /// Out-of-distribution data sets, as NAME=PATH or PATH, separated by commas
    #[arg(long, value_name = "DATA", value_delimiter = ',')]
    ood: Vec<String>,
    /// Other data to judge all systems by as well, instead of the study's own; none where it is empty
    #[arg(long, value_name = "DATA", value_delimiter = ',')]
    also: Option<Vec<String>>,
    /// A setting on top of all recipes
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Say what would be done, and what each system costs
    #[arg(long)]
    plan: bool,
    /// Print study.json, or the plan as JSON, instead of a table
    #[arg(long)]
    json: bool,
}

impl StudyCommand {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(study) = NormStudy::find(&self.study)? {
            return self.learn_norms(&study);
        }
        let study = Study::find(&self.study)?;
        match (&self.init, study.from_checkpoint) {
            (Some(_), false) => bail!("{} trains from scratch; --init is for others", study.name),
            (None, true) if !self.plan => bail!(
                "{} begins from a checkpoint: give it with --init, such as a ViT from `omma convert`",
                study.name
            ),
            (Some(init), true) => _ = checkpoint::summary(init)?,
            _ => {}
        }
        if self.plan {
            return self.show_plan(&study);
        }
        for system in &study.systems {
            study.recipe(system, &self.settings())?;
        }
        let stop = on_signals()?;
        if self.ood.is_empty() {
            note(
                "no out-of-distribution data is given (--ood), so the table will have no such columns",
            );
        }
        // What is wrong with it should not come out after hours of training.
        ood_sets(&self.ood, Resolution::square(32), None)?;
        let folder = self.folder(&study);
        let _owned = study.settle(&folder, &self.options(&study))?;
        let at_once = self.jobs.map_or_else(cores, usize::from);
        for (what, jobs) in [
            ("models to begin from", self.preparations(&study, &folder)),
            ("trainings", self.trainings(&study, &folder)),
            ("evaluations", self.evaluations(&study, &folder)),
        ] {
            if jobs.is_empty() {
                continue;
            }
            note(format!("{} {what}, {} at a time", jobs.len(), at_once.min(jobs.len())));
            if !(Jobs { at_once, on_failure: OnFailure::Stop, stop: &stop }).run_all(&jobs)? {
                let how = "stopped; the same command goes on from here".to_owned();
                return Err(Interrupted::new(&stop, how).into());
            }
        }
        self.conclude(&study, &folder)
    }

    /// A study of norms, which has no images and trains no models that are kept.
    fn learn_norms(&self, study: &NormStudy) -> Result<()> {
        let others = [
            (self.data.is_some(), "--data"),
            (self.init.is_some(), "--init"),
            (!self.ood.is_empty(), "--ood"),
            (self.also.is_some(), "--also"),
        ];
        if let Some((_, flag)) = others.into_iter().find(|(given, _)| *given) {
            bail!("{} draws what it learns from; {flag} is for others", study.name);
        }
        let study = study.with(&self.settings, self.seeds.map(usize::from))?;
        if self.plan {
            return study.show_plan();
        }
        let out = self.out.clone().unwrap_or_else(|| Path::new("studies").join(&study.name));
        study.run(&out, self.json, &on_signals()?)
    }

    fn folder(&self, study: &Study) -> PathBuf {
        self.out.clone().unwrap_or_else(|| Path::new("studies").join(&study.name))
    }

    /// What runs and ensembles depend on.
    fn options(&self, study: &Study) -> Options {
        let ood = ood_meanings(&self.ood);
        let init = self.init.as_ref().map(|init| whole_name(&init.to_string_lossy()));
        Options { seeds: self.seeds(study), settings: self.settings(), init, ood }
    }

    /// The checkpoint with the experts of every system that has some, each once.
    fn preparations(&self, study: &Study, folder: &Path) -> Vec<Job> {
        let Some(init) = &self.init else { return Vec::new() };
        let mut jobs: Vec<Job> = Vec::new();
        let seeds = self.seeds(study);
        let systems = study.systems.iter().filter(|system| !system.upcycle.is_empty());
        for (system, number) in systems.flat_map(|one| (0..seeds).map(move |number| (one, number)))
        {
            for seed in system.seeds(number, seeds) {
                let out = study.start_folder(folder, system, seed);
                // What was interrupted is made again.
                let start = study.upcycle_start.to_possible_value().expect("no start is hidden");
                let words = ["upcycle", "--force", "--start", start.get_name(), "--seed"];
                let words = words.map(str::to_owned).into_iter();
                let paths = [init, &out].map(|path| path.display().to_string());
                let mut arguments: Vec<String> =
                    words.chain([seed.to_string()]).chain(paths).collect();
                for setting in &system.upcycle {
                    arguments.extend(["--set".to_owned(), setting.clone()]);
                }
                let what = format!("{}, seed {seed}", system.label);
                let (leaves, log) = (out.join("config.json"), log_of(folder, "upcycle", &out));
                let job = Job { what, arguments, leaves, log, accepts: Box::new(|_| true) };
                if jobs.iter().all(|other| other.leaves != job.leaves) {
                    jobs.push(job);
                }
            }
        }
        jobs
    }

    fn seeds(&self, study: &Study) -> usize {
        self.seeds.map_or(study.seeds, usize::from).max(1)
    }

    fn settings(&self) -> Vec<String> {
        let data = self.data.iter().map(|data| format!("data.name={data}"));
        data.chain(self.settings.iter().cloned()).collect()
    }

    /// Every model of every system, each once.
    fn trainings(&self, study: &Study, folder: &Path) -> Vec<Job> {
        let mut jobs: Vec<Job> = Vec::new();
        let seeds = self.seeds(study);
        for number in 0..seeds {
            for system in &study.systems {
                for seed in system.seeds(number, seeds) {
                    let run = study.run_folder(folder, system, seed);
                    let what = format!("{}, seed {seed}", system.label);
                    let log = log_of(folder, "train", &run);
                    let begin = self.train_arguments(study, folder, system, seed);
                    let job = Job::training(what, begin, &run, log);
                    if jobs.iter().all(|other| other.leaves != job.leaves) {
                        jobs.push(job);
                    }
                }
            }
        }
        jobs
    }

    fn train_arguments(
        &self,
        study: &Study,
        folder: &Path,
        system: &StudySystem,
        seed: usize,
    ) -> Vec<String> {
        let mut arguments = vec![folder.join(&system.recipe).display().to_string()];
        for setting in system.settings.iter().cloned().chain(self.settings()) {
            arguments.extend(["--set".to_owned(), setting]);
        }
        arguments.extend(["--seed".to_owned(), seed.to_string()]);
        if let Some(init) = &self.init {
            let start = match system.upcycle.is_empty() {
                true => init.clone(),
                false => study.start_folder(folder, system, seed),
            };
            arguments.extend(["--init".to_owned(), start.display().to_string()]);
        }
        arguments
    }

    /// What a system is, as far as that is known before it is trained: nothing without the checkpoint that it
    /// begins from.
    fn planned_model(&self, study: &Study, system: &StudySystem) -> Result<Option<ModelConfig>> {
        let config = study.recipe(system, &self.settings())?.model;
        let Some(init) = &self.init else { return Ok((!study.from_checkpoint).then_some(config)) };
        let mut from = apply_settings(&checkpoint::summary(init)?.config, &system.upcycle)?;
        from.image.resolution = config.image.resolution;
        Ok(Some(from))
    }

    /// What systems are judged by: their own data, and other data.
    fn judged_by<'a>(&'a self, study: &'a Study) -> Vec<Option<&'a str>> {
        let also = self.also.as_ref().unwrap_or(&study.also).iter();
        let also = also.map(String::as_str).filter(|data| !data.is_empty()).map(Some);
        std::iter::once(None).chain(also).collect()
    }

    fn evaluations(&self, study: &Study, folder: &Path) -> Vec<Job> {
        let mut jobs = Vec::new();
        let seeds = self.seeds(study);
        let by = self.judged_by(study);
        for (number, by) in (0..seeds).flat_map(|number| by.iter().map(move |by| (number, *by))) {
            for system in &study.systems {
                let out = study.eval_folder(folder, system, number, by);
                let mut arguments = vec!["eval".to_owned()];
                let models = system.seeds(number, seeds).into_iter();
                let runs = models.map(|seed| study.run_folder(folder, system, seed));
                arguments.extend(runs.map(|run| run.display().to_string()));
                arguments.push(format!("--label={}", system.label));
                arguments.extend(["--out".to_owned(), out.display().to_string()]);
                arguments.extend(by.map(|data| format!("--data={}", whole_name(data))));
                arguments.extend(study.eval.iter().cloned());
                if study.limit > 0 {
                    arguments.extend(["--limit".to_owned(), study.limit.to_string()]);
                }
                if study.shift_samples > 0 {
                    arguments.push("--shift".to_owned());
                    arguments
                        .extend(["--shift-samples".to_owned(), study.shift_samples.to_string()]);
                }
                if !self.ood.is_empty() {
                    arguments.extend(["--ood".to_owned(), self.ood.join(",")]);
                }
                let what = format!("{}, seed {number}", system.label);
                let (leaves, log) = (out.join("eval.json"), log_of(folder, "eval", &out));
                let ood: Vec<String> = self.ood.iter().map(|text| ood_name(text)).collect();
                let accepts = Box::new(move |path: &Path| has_looked_at(path, &ood));
                jobs.push(Job { what, arguments, leaves, log, accepts });
            }
        }
        jobs
    }

    fn conclude(&self, study: &Study, folder: &Path) -> Result<()> {
        self.judged_by(study).into_iter().try_for_each(|by| self.compare(study, folder, by))
    }

    /// One table: all systems by their own data, or by other data.
    fn compare(&self, study: &Study, folder: &Path, by: Option<&str>) -> Result<()> {
        let place = by.map_or(folder.to_owned(), |data| folder.join(format!("by-{}", slug(data))));
        let mut evaluations: Vec<Evaluation> = Vec::new();
        for system in &study.systems {
            for number in 0..self.seeds(study) {
                let evaluation = read_evaluation(&study.eval_folder(folder, system, number, by))?;
                // Its folder says which system it is of, whichever version judged it.
                let fingerprint = system.label.clone();
                evaluations.push(Evaluation { fingerprint, ..evaluation });
            }
        }
        let comparison = Comparison::new(&evaluations, Some(&study.baseline))?;
        let title = match by {
            None => format!("Study {}", study.name),
            Some(data) => format!("Study {}, judged by {data}", study.name),
        };
        let scans = study.scans.iter().map(|scan| scan.figure(&comparison));
        let mut own: Vec<StudyFigure> = scans.collect();
        if !study.curves.is_empty() {
            own.push(learning_curves(&self.curves(study, folder))?);
        }
        let page = study_page(&comparison, &title, &study.about, &own);
        write_report(&place, "study", &page, &comparison)?;
        let markdown = place.join("table.md");
        write_atomically(&markdown, |file| std::fs::write(file, comparison.markdown()))
            .with_context(|| markdown.display().to_string())?;
        if self.json {
            return say(serde_json::to_string_pretty(&comparison)?);
        }
        for Table { header, rows } in comparison.tables() {
            say(table_of(&header, &rows, 1))?;
        }
        comparison.verdicts().iter().try_for_each(say)?;
        say(format!("report: {}", place.join("study.html").display()))
    }

    /// The runs of the systems whose learning is drawn.
    fn curves<'a>(&self, study: &'a Study, folder: &Path) -> Vec<(&'a str, Vec<PathBuf>)> {
        let drawn = study.systems.iter().filter(|system| study.curves.contains(&system.label));
        let runs = |system: &'a StudySystem| {
            let runs = (0..self.seeds(study)).map(|seed| study.run_folder(folder, system, seed));
            (system.label.as_str(), runs.collect())
        };
        drawn.map(runs).collect()
    }

    fn show_plan(&self, study: &Study) -> Result<()> {
        let mut systems = Vec::new();
        for system in &study.systems {
            let config = self.planned_model(study, system)?;
            let cost = config.map(|config| {
                let classes = config.classes().max(1);
                let config = config.with_classes(classes);
                config.cost(config.image.resolution)
            });
            let cost = cost.transpose()?;
            let models = system.ensemble.max(1) as u64;
            systems.push(PlannedSystem {
                label: system.label.clone(),
                models,
                members: cost.as_ref().map(|cost| cost.members as u64 * models),
                training_flops: cost.as_ref().map(|cost| cost.training_flops * models),
            });
        }
        let folder = self.folder(study);
        let planned = |jobs: Vec<Job>| Planned {
            jobs: jobs.len(),
            done: jobs.iter().filter(|job| job.is_done()).count(),
        };
        let plan = Plan {
            name: study.name.clone(),
            about: study.about.clone(),
            systems,
            trainings: planned(self.trainings(study, &folder)),
            evaluations: planned(self.evaluations(study, &folder)),
            folder,
        };
        if self.json {
            return say_json(&plan);
        }
        let rows = plan.systems.iter().map(|system| {
            [
                system.label.clone(),
                system.models.to_string(),
                system.members.map_or("—".to_owned(), |members| members.to_string()),
                system.training_flops.map_or("—".to_owned(), short),
            ]
        });
        say(format!("{}: {}", plan.name, plan.about))?;
        say(table(["system", "models", "members", "training FLOPs per image"], rows, 1))?;
        say(format!(
            "{} trainings ({} done), {} evaluations ({} done), in {}; studies: {}",
            plan.trainings.jobs,
            plan.trainings.done,
            plan.evaluations.jobs,
            plan.evaluations.done,
            plan.folder.display(),
            STUDIES.iter().map(|(name, _)| *name).chain(["norm"]).collect::<Vec<_>>().join(", ")
        ))
    }
}

/// What `--plan` says.
#[derive(Serialize)]
struct Plan {
    name: String,
    about: String,
    systems: Vec<PlannedSystem>,
    trainings: Planned,
    evaluations: Planned,
    folder: PathBuf,
}

/// What one system takes: all its models together, per image.
#[derive(Serialize)]
struct PlannedSystem {
    label: String,
    models: u64,
    members: Option<u64>,
    training_flops: Option<u64>,
}

#[derive(Serialize)]
struct Planned {
    jobs: usize,
    done: usize,
}
