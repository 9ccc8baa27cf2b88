//! `omma study`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use omma_base::{Resolution, files::write_atomically};
use omma_data::formats::whole_name;
use omma_eval::{
    Evaluation,
    compare::{Comparison, Table, read_evaluation},
    report::{StudyFigure, study_page, write_report},
};
use omma_model::{apply_settings, checkpoint};
use serde::Serialize;

use crate::{
    interrupt::{Interrupted, on_signals},
    jobs::{Job, Jobs, OnFailure, cores},
    names::slug,
    study::{NormStudy, Options, STUDIES, Stage, Study, Work, learning_curves, training_figures},
    subject::{data_meanings, few_shot_sets, ood_sets},
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
///   omma study e3 --first-seed 3 --seeds 1 --out fourth
///   omma study soft --data mnist/
///   omma study norm --set steps=200
///   omma study limoe --data emoji/ --also emoji-held-out.tsv
///   omma study vimoe --init small/ --data cifar10/
///   omma study e3-finetune --data flowers/ --set-upstream data.name=cifar10/
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
    /// The first of them, such as 3 for a fourth in a folder of its own; an ensemble's other models have later ones
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    first_seed: u16,
    /// Processes at a time; the cores are shared among them
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Another data set for all systems that are judged
    #[arg(long)]
    data: Option<String>,
    /// The checkpoint that systems begin from, in a study that needs one
    #[arg(long, value_name = "CHECKPOINT")]
    init: Option<PathBuf>,
    /// Out-of-distribution data sets, as NAME=PATH or PATH, separated by commas
    #[arg(long, value_name = "DATA", value_delimiter = ',')]
    ood: Vec<String>,
    /// Data sets that features are judged by from a few images of every class, as NAME=PATH or PATH, separated by
    /// commas, instead of the study's own
    #[arg(long, value_name = "DATA", value_delimiter = ',')]
    few_shot: Option<Vec<String>>,
    /// Other data to judge all systems by as well, instead of the study's own; none where it is empty
    #[arg(long, value_name = "DATA", value_delimiter = ',')]
    also: Option<Vec<String>>,
    /// A setting on top of all recipes
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// A setting on top of the recipes of systems that others begin from, such as data.name=cifar10/
    #[arg(long = "set-upstream", value_name = "KEY=VALUE")]
    upstream: Vec<String>,
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
        if !self.upstream.is_empty() && !study.systems.iter().any(|one| study.is_upstream(one)) {
            bail!("no system of {} begins from another; --set-upstream is for others", study.name);
        }
        let (folder, options) = (self.folder(&study), self.options(&study));
        let work = self.work(&study, &folder, &options);
        if self.plan {
            return self.show_plan(&work);
        }
        for system in &study.systems {
            study.recipe(system, &options)?;
        }
        let stop = on_signals()?;
        if self.ood.is_empty() {
            note(
                "no out-of-distribution data is given (--ood), so the table will have no such columns",
            );
        }
        // What is wrong with it should not come out after hours of training.
        ood_sets(&self.ood, Resolution::square(32), None)?;
        few_shot_sets(work.few_shot, Resolution::square(32), None)?;
        let _owned = study.settle(&folder, &options)?;
        let at_once = self.jobs.map_or_else(cores, usize::from);
        let lighten = |job: &Job| job.leaves.parent().map_or(Ok(()), |run| study.lighten(run));
        let leave = |_: &Job| Ok(());
        for Stage { what, jobs, trains } in work.stages() {
            note(format!("{} {what}, {} at a time", jobs.len(), at_once.min(jobs.len())));
            let settle: &(dyn Fn(&Job) -> Result<()> + Sync) =
                if trains { &lighten } else { &leave };
            let jobs_at_once = Jobs { at_once, on_failure: OnFailure::Stop, stop: &stop };
            if !jobs_at_once.run_all(&jobs, settle)? {
                let how = "stopped; the same command goes on from here".to_owned();
                return Err(Interrupted::new(&stop, how).into());
            }
        }
        self.conclude(&work)
    }

    /// A study of norms, which has no images and trains no models that are kept.
    fn learn_norms(&self, study: &NormStudy) -> Result<()> {
        let others = [
            (self.first_seed > 0, "--first-seed"),
            (self.data.is_some(), "--data"),
            (self.init.is_some(), "--init"),
            (!self.ood.is_empty(), "--ood"),
            (self.also.is_some(), "--also"),
            (self.few_shot.is_some(), "--few-shot"),
            (!self.upstream.is_empty(), "--set-upstream"),
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
        Options {
            seeds: self.seeds.map_or(study.seeds, usize::from).max(1),
            first_seed: self.first_seed.into(),
            data: self.data.clone(),
            settings: self.settings.clone(),
            upstream: self.upstream.clone(),
            init: self.init.as_ref().map(|init| whole_name(&init.to_string_lossy())),
            ood: data_meanings(&self.ood),
            few_shot: data_meanings(self.few_shot.as_ref().unwrap_or(&study.few_shot)),
        }
    }

    fn work<'a>(&'a self, study: &'a Study, folder: &'a Path, options: &'a Options) -> Work<'a> {
        let also = self.also.as_ref().unwrap_or(&study.also).iter();
        let also = also.map(String::as_str).filter(|data| !data.is_empty()).map(Some);
        Work {
            study,
            folder,
            options,
            ood: &self.ood,
            few_shot: self.few_shot.as_ref().unwrap_or(&study.few_shot),
            by: std::iter::once(None).chain(also).collect(),
        }
    }

    fn conclude(&self, work: &Work) -> Result<()> {
        work.by.iter().try_for_each(|by| self.compare(work, *by))
    }

    /// One table: all systems by their own data, or by other data.
    fn compare(&self, work: &Work, by: Option<&str>) -> Result<()> {
        let &Work { study, folder, options, .. } = work;
        let place = by.map_or(folder.to_owned(), |data| folder.join(format!("by-{}", slug(data))));
        let mut evaluations: Vec<Evaluation> = Vec::new();
        for system in study.judged() {
            for number in options.numbers() {
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
            own.push(learning_curves(&work.curves())?);
        }
        if study.training && by.is_none() {
            own.extend(training_figures(work, &comparison)?);
        }
        let page = study_page(&comparison, &title, &study.about, &own);
        write_report(&place, "study", &page, &comparison)?;
        let markdown = place.join("table.md");
        let own = own.iter().filter_map(|figure| figure.table.as_ref());
        let tables: Vec<Table> = comparison.tables().into_iter().chain(own.cloned()).collect();
        let text = tables.iter().map(Table::markdown).collect::<Vec<String>>().join("\n");
        write_atomically(&markdown, |file| std::fs::write(file, text))
            .with_context(|| markdown.display().to_string())?;
        if self.json {
            return say(serde_json::to_string_pretty(&comparison)?);
        }
        for Table { header, rows } in tables {
            say(table_of(&header, &rows, 1))?;
        }
        comparison.verdicts().iter().try_for_each(say)?;
        say(format!("report: {}", place.join("study.html").display()))
    }

    fn show_plan(&self, work: &Work) -> Result<()> {
        let &Work { study, folder, options, .. } = work;
        let mut systems = Vec::new();
        for system in &study.systems {
            let config = study.recipe(system, options)?.model;
            let config = apply_settings(&config, &system.judged_with)?;
            // Nothing is known of a model without the checkpoint that it begins from.
            let known = !study.from_checkpoint || options.init.is_some();
            let classes = config.classes().max(1);
            let config = config.with_classes(classes);
            let cost = known.then(|| config.cost(config.image.resolution)).transpose()?;
            let models = system.ensemble.max(1) as u64;
            systems.push(PlannedSystem {
                label: system.label.clone(),
                from: system.from.clone(),
                judged: system.judged,
                models,
                members: cost.as_ref().map(|cost| cost.members as u64 * models),
                training_flops: cost.as_ref().map(|cost| cost.training_flops * models),
            });
        }
        let planned = |jobs: Vec<Job>| Planned {
            jobs: jobs.len(),
            done: jobs.iter().filter(|job| job.is_done()).count(),
        };
        let trainings = work.trainings().into_iter().filter(|stage| stage.trains);
        let plan = Plan {
            name: study.name.clone(),
            about: study.about.clone(),
            systems,
            trainings: planned(trainings.flat_map(|stage| stage.jobs).collect()),
            evaluations: planned(work.evaluations().jobs),
            folder: folder.to_owned(),
        };
        if self.json {
            return say_json(&plan);
        }
        let rows = plan.systems.iter().map(|system| {
            [
                match system.judged {
                    true => system.label.clone(),
                    false => format!("{} (to begin from)", system.label),
                },
                system.from.clone().unwrap_or_default(),
                system.models.to_string(),
                system.members.map_or("—".to_owned(), |members| members.to_string()),
                system.training_flops.map_or("—".to_owned(), short),
            ]
        });
        say(format!("{}: {}", plan.name, plan.about))?;
        say(table(
            ["system", "begins from", "models", "members", "training FLOPs per image"],
            rows,
            2,
        ))?;
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
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// Or only there to begin from.
    judged: bool,
    models: u64,
    members: Option<u64>,
    training_flops: Option<u64>,
}

#[derive(Serialize)]
struct Planned {
    jobs: usize,
    done: usize,
}
