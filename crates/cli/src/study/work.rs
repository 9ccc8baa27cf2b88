//! The processes that a study is made of.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use omma_data::formats::whole_name;

use super::{Asked, Model, Options, Study, StudySystem};
use crate::{
    jobs::{Job, log_of},
    subject::data_name,
};

/// A study with what a user asks of it.
pub(crate) struct Work<'a> {
    pub(crate) study: &'a Study,
    pub(crate) folder: &'a Path,
    pub(crate) options: &'a Options,
    /// Out-of-distribution data sets, as they were given.
    pub(crate) ood: &'a [String],
    /// Data sets for a few shots, as they were given.
    pub(crate) few_shot: &'a [String],
    /// What systems are judged by: their own data, and other data.
    pub(crate) by: Vec<Option<&'a str>>,
}

/// Jobs that may run side by side.
pub(crate) struct Stage {
    /// In words.
    pub(crate) what: &'static str,
    pub(crate) jobs: Vec<Job>,
    /// Whether they leave runs.
    pub(crate) trains: bool,
}

impl Work<'_> {
    /// Everything, in its order.
    pub(crate) fn stages(&self) -> Vec<Stage> {
        self.trainings().into_iter().chain([self.evaluations()]).collect()
    }

    /// Everything up to the trained models, in its order.
    pub(crate) fn trainings(&self) -> Vec<Stage> {
        let models = self.study.stages(&self.options.numbers()).into_iter();
        let stages = models.flat_map(|models| {
            let stage = |what, jobs, trains| Stage { what, jobs: once(jobs), trains };
            [
                stage("models to give experts to", self.upcycles(&models), false),
                stage("models to adapt", self.adaptations(&models), false),
                stage("trainings", models.iter().map(|model| self.training(model)).collect(), true),
            ]
        });
        stages.filter(|stage| !stage.jobs.is_empty()).collect()
    }

    /// What a model begins from before anything is made of that.
    fn origin(&self, model: &Model) -> Option<PathBuf> {
        match self.study.upstream_of(model) {
            Some(upstream) => Some(self.study.run_folder(self.folder, &upstream)),
            None => self.options.init.as_ref().map(PathBuf::from),
        }
    }

    /// Where a model is after it was given experts.
    fn upcycled(&self, model: &Model) -> PathBuf {
        let start = self.study.start_folder(self.folder, model);
        match &model.system.adapt {
            Some(_) => start.with_added_extension("upcycled"),
            None => start,
        }
    }

    fn upcycles(&self, models: &[Model]) -> Vec<Job> {
        let start = self.study.upcycle_start.to_possible_value().expect("no start is hidden");
        let upcycled = models.iter().filter(|model| !model.system.upcycle.is_empty());
        let job = |model: &Model| {
            let out = self.upcycled(model);
            let words = ["upcycle", "--start", start.get_name()].map(str::to_owned);
            let from = self.origin(model)?;
            Some(self.preparation(model, words.into(), &model.system.upcycle, &from, out))
        };
        upcycled.filter_map(job).collect()
    }

    fn adaptations(&self, models: &[Model]) -> Vec<Job> {
        let job = |model: &Model| {
            let adapt = model.system.adapt.as_ref()?;
            let to = adapt.to.to_possible_value().expect("no kind is hidden");
            let mut words = ["adapt", "--to", to.get_name()].map(str::to_owned).to_vec();
            words.extend(adapt.permute.then(|| "--permute".to_owned()));
            let from = match model.system.upcycle.is_empty() {
                true => self.origin(model)?,
                false => self.upcycled(model),
            };
            let out = self.study.start_folder(self.folder, model);
            Some(self.preparation(model, words, &adapt.settings, &from, out))
        };
        models.iter().filter_map(job).collect()
    }

    /// A command that makes a checkpoint from another; what was interrupted is made again.
    fn preparation(
        &self,
        model: &Model,
        mut arguments: Vec<String>,
        settings: &[String],
        from: &Path,
        out: PathBuf,
    ) -> Job {
        let kind = arguments[0].clone();
        arguments.extend(["--force".to_owned(), "--seed".to_owned(), model.seed.to_string()]);
        arguments.extend([from, out.as_path()].map(|path| path.display().to_string()));
        arguments.extend(set(settings));
        let log = log_of(self.folder, &kind, &out);
        let (what, leaves) = (in_words(model), out.join("config.json"));
        Job { what, arguments, run: None, leaves, log, accepts: Box::new(|_| true) }
    }

    fn training(&self, model: &Model) -> Job {
        let Model { system, seed, .. } = model;
        let run = self.study.run_folder(self.folder, model);
        let mut begin = vec![self.folder.join(&system.recipe).display().to_string()];
        let on_top = self.options.settings_of(self.study, system);
        begin.extend(set(system.settings.iter().chain(&on_top)));
        begin.extend(["--seed".to_owned(), seed.to_string()]);
        let init = match system.prepares() {
            true => Some(self.study.start_folder(self.folder, model)),
            false => self.origin(model),
        };
        if let Some(init) = init {
            begin.extend(["--init".to_owned(), init.display().to_string()]);
        }
        Job::training(in_words(model), begin, &run, log_of(self.folder, "train", &run))
    }

    /// Every system that is judged, by everything that it is judged by.
    pub(crate) fn evaluations(&self) -> Stage {
        let by =
            self.options.numbers().flat_map(|number| self.by.iter().map(move |by| (number, *by)));
        let jobs = by.flat_map(|(number, by)| {
            self.study.judged().map(move |system| self.evaluation(system, number, by))
        });
        Stage { what: "evaluations", jobs: jobs.collect(), trains: false }
    }

    fn evaluation(&self, system: &StudySystem, number: usize, by: Option<&str>) -> Job {
        let study = self.study;
        let out = study.eval_folder(self.folder, system, number, by);
        let mut arguments = vec!["eval".to_owned()];
        let models = study.models(system, number, &self.options.numbers()).into_iter();
        let runs = models.map(|model| study.run_folder(self.folder, &model));
        arguments.extend(runs.map(|run| run.display().to_string()));
        arguments.push(format!("--label={}", system.label));
        arguments.extend(["--out".to_owned(), out.display().to_string()]);
        arguments.extend(by.map(|data| format!("--data={}", whole_name(data))));
        arguments.extend(set(&system.judged_with));
        arguments.extend(study.eval.iter().cloned());
        if study.limit > 0 {
            arguments.extend(["--limit".to_owned(), study.limit.to_string()]);
        }
        if study.shift_samples > 0 {
            arguments.push("--shift".to_owned());
            arguments.extend(["--shift-samples".to_owned(), study.shift_samples.to_string()]);
        }
        if !self.ood.is_empty() {
            arguments.extend(["--ood".to_owned(), self.ood.join(",")]);
        }
        // Features do not depend on other data to be judged by.
        let few_shot = if by.is_none() { self.few_shot } else { &[] };
        if !few_shot.is_empty() {
            let shots: Vec<String> = study.shots.iter().map(usize::to_string).collect();
            arguments.extend(["--few-shot".to_owned(), few_shot.join(",")]);
            arguments.extend(["--shots".to_owned(), shots.join(",")]);
        }
        let what = format!("{}, seed {number}", system.label);
        let (leaves, log) = (out.join("eval.json"), log_of(self.folder, "eval", &out));
        let names = |texts: &[String]| texts.iter().map(|text| data_name(text)).collect();
        let asked =
            Asked { ood: names(self.ood), few_shot: names(few_shot), shots: study.shots.clone() };
        let accepts = Box::new(move |path: &Path| asked.is_in(path));
        Job { what, arguments, run: None, leaves, log, accepts }
    }
}

impl<'a> Work<'a> {
    /// The systems whose learning is drawn, each with its runs.
    pub(crate) fn curves(&self) -> Vec<(&'a str, Vec<PathBuf>)> {
        let Self { study, options, .. } = self;
        let drawn = study.judged().filter(|system| study.curves.contains(&system.label));
        let runs = |system: &'a StudySystem| {
            let numbers = options.numbers();
            let first = |number| study.models(system, number, &numbers).into_iter().take(1);
            let models = numbers.clone().flat_map(first);
            let runs = models.map(|model| study.run_folder(self.folder, &model));
            (system.label.as_str(), runs.collect())
        };
        drawn.map(runs).collect()
    }
}

fn in_words(model: &Model) -> String {
    format!("{}, seed {}", model.system.label, model.seed)
}

fn set<'a>(settings: impl IntoIterator<Item = &'a String>) -> impl Iterator<Item = String> {
    settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting.clone()])
}

/// Jobs that leave different files.
fn once(jobs: Vec<Job>) -> Vec<Job> {
    let mut different: Vec<Job> = Vec::new();
    for job in jobs {
        if different.iter().all(|other| other.leaves != job.leaves) {
            different.push(job);
        }
    }
    different
}
