//! `omma compare`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use burn::tensor::Device;
use clap::{Args, Parser};
use omma_base::files::fresh_folder;
use omma_eval::{
    Evaluation,
    compare::{Alike, Comparison, Subject, Table, read_evaluation},
    report::{comparison_page, write_report},
};
use omma_train::run::RunFolder;

use super::eval::Eval;
use crate::{
    evals::{EVALS, of_run},
    subject::{check_distinct, fingerprint},
    table::{note, say, table_of},
    watch::Watch,
};

/// Put evaluations beside each other: a table, fronts of quality against cost, gains.
///
/// Takes folders of runs or of evaluations. Of every run that evaluation is taken that was judged as the others
/// were, by as many images and in as many ways as all have in common; what is missing for more is said with the
/// command that makes it. A run that was not judged yet is judged by its test images first. Evaluations whose
/// settings differ in nothing but the seed are one system, with a mean and a standard error. Systems are compared
/// with the baseline image by image. Writes compare.html, compare.json and figures/*.svg.
///
/// Examples:
///   omma compare runs/vit-1 runs/vmoe-1 runs/e3-1
///   omma compare runs/* --baseline vit --out comparison
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Compare {
    /// Folders of runs or of evaluations
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The label of the system that gains are measured against; the first if not given
    #[arg(long, value_name = "LABEL")]
    baseline: Option<String>,
    /// Where to write; a fresh folder below evals/ if not given
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print compare.json instead of a table
    #[arg(long)]
    json: bool,
}

/// Default options of `omma eval`.
#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    eval: Eval,
}

impl Compare {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_distinct(&self.runs)?;
        let subjects: Vec<Subject> =
            self.runs.iter().map(|path| subject(path, device)).collect::<Result<_>>()?;
        let Alike { evaluations, notes } = Alike::choose(&subjects)?;
        let mut comparison = Comparison::new(&evaluations, self.baseline.as_deref())?;
        comparison.notes = notes;
        let folder = match &self.out {
            Some(folder) => folder.clone(),
            None => fresh_folder(Path::new(EVALS), "compare").context(EVALS)?,
        };
        let Comparison { rows, images, data, .. } = &comparison;
        let about = format!("{} systems judged by {images} images of {data}", rows.len());
        let page = comparison_page(&comparison, "Comparison", &about);
        write_report(&folder, "compare", &page, &comparison)?;
        if self.json {
            return say(serde_json::to_string_pretty(&comparison)?);
        }
        for Table { header, rows } in comparison.tables() {
            say(table_of(&header, &rows, 1))?;
        }
        comparison.verdicts().iter().try_for_each(say)?;
        comparison.notes.iter().for_each(note);
        say(format!("report: {}", folder.join("compare.html").display()))
    }
}

/// A run with all its evaluations, or an evaluation by itself.
fn subject(path: &Path, device: &Device) -> Result<Subject> {
    let name = path.display().to_string();
    if !path.join("recipe.toml").is_file() {
        let found = read_evaluation(path)
            .with_context(|| format!("{name} is neither a run nor an evaluation"))?;
        return Ok(Subject { name, is_run: false, data: None, evaluations: vec![found] });
    }
    let recipe = RunFolder::open(path)?.1;
    let own = fingerprint(&recipe);
    let all = of_run(path)?;
    // Predictions under other settings are another system's.
    let set = |one: &Evaluation| {
        one.options.as_ref().is_some_and(|words| words.iter().any(|word| word == "--set"))
    };
    let (mut evaluations, others): (Vec<Evaluation>, Vec<Evaluation>) = all
        .into_iter()
        .filter(|one| !set(one))
        .partition(|one| one.fingerprint == own || one.models.len() > 1);
    if evaluations.is_empty() {
        // A run that has gone on since is another model.
        if !others.is_empty() {
            note(format!("{name} was judged by another recipe than it has now"));
        }
        evaluations.push(judged(path, device)?);
    }
    Ok(Subject { name, is_run: true, data: Some(recipe.data.name), evaluations })
}

/// Judges a run by its test images.
fn judged(path: &Path, device: &Device) -> Result<Evaluation> {
    note(format!("judging {}", path.display()));
    let eval = Defaults::parse_from([Path::new("omma"), path]).eval;
    let mut watch = Watch::new();
    Ok(eval.judge(&mut watch, device)?.0)
}
