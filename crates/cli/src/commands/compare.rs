//! `omma compare`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use burn::tensor::Device;
use clap::{Args, Parser};
use omma_base::files::fresh_folder;
use omma_eval::{
    Evaluation,
    compare::{Comparison, Table, read_evaluation},
    report::{comparison_page, write_report},
};
use omma_train::run::RunFolder;

use super::eval::{EVALS, Eval};
use crate::{
    subject::{check_distinct, fingerprint},
    table::{note, say, table_of},
    watch::Watch,
};

/// Put evaluations beside each other: a table, fronts of quality against cost, gains.
///
/// Takes folders of runs or of evaluations. A run that was not judged yet is judged by its test images
/// first. Evaluations whose settings differ in nothing but the seed are one system, with a mean and a
/// standard error. Writes compare.html, compare.json and figures/*.svg.
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
        let evaluations: Vec<Evaluation> =
            self.runs.iter().map(|path| evaluation(path, device)).collect::<Result<_>>()?;
        let comparison = Comparison::new(&evaluations, self.baseline.as_deref())?;
        let folder = match &self.out {
            Some(folder) => folder.clone(),
            None => fresh_folder(Path::new(EVALS), "compare").context(EVALS)?,
        };
        let about = format!("{} systems judged by {}", comparison.rows.len(), comparison.data);
        let page = comparison_page(&comparison, "Comparison", &about);
        write_report(&folder, "compare", &page, &comparison)?;
        if self.json {
            return say(serde_json::to_string_pretty(&comparison)?);
        }
        for Table { header, rows } in comparison.tables() {
            say(table_of(&header, &rows, 1))?;
        }
        say(format!("report: {}", folder.join("compare.html").display()))
    }
}

fn evaluation(path: &Path, device: &Device) -> Result<Evaluation> {
    let judged = if path.is_dir() { path.join("eval.json").exists() } else { path.is_file() };
    let is_run = path.join("recipe.toml").is_file();
    if judged || !is_run {
        let found = read_evaluation(path)
            .with_context(|| format!("{} is neither a run nor an evaluation", path.display()))?;
        // A run that has gone on since is another model.
        let stale = is_run && fingerprint(&RunFolder::open(path)?.1) != found.fingerprint;
        if !stale || found.models.len() > 1 {
            return Ok(found);
        }
        note(format!("{} was judged by another recipe than it has now", path.display()));
    }
    note(format!("judging {}", path.display()));
    let eval = Defaults::parse_from([Path::new("omma"), path]).eval;
    let mut watch = Watch::new();
    Ok(eval.judge(&mut watch, device)?.0)
}
