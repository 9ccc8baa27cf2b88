//! A report on disk.

use std::{fs, path::Path};

use omma_base::files::write_atomically;
use serde::Serialize;

use super::{Report, evaluation_page_with};
use crate::{
    error::{EvalError, Result},
    gallery::Gallery,
    protocols::{Evaluation, ImageResults},
};

/// Writes an evaluation into a folder of its own: `images.safetensors`, `eval.html`, `figures/*.svg`, and
/// `eval.json` last, which says which `images.safetensors` is its own.
pub fn write_evaluation(
    folder: &Path,
    evaluation: &mut Evaluation,
    gallery: &Gallery,
) -> Result<()> {
    if let ImageResults::Whole(outcomes) = &evaluation.images {
        evaluation.images_seal = Some(outcomes.write(folder)?);
    }
    write_report(folder, "eval", &evaluation_page_with(evaluation, gallery), evaluation)
}

/// Writes `NAME.html`, `NAME.json` and `figures/*.svg` into a folder. Every file appears whole or not at
/// all, and the record comes last: where it is, everything is.
pub fn write_report(
    folder: &Path,
    name: &str,
    report: &Report,
    record: &impl Serialize,
) -> Result<()> {
    let figures = folder.join("figures");
    fs::create_dir_all(&figures).map_err(EvalError::io(&figures))?;
    for (name, svg) in &report.figures {
        write(&figures.join(format!("{name}.svg")), svg)?;
    }
    write(&folder.join(format!("{name}.html")), &report.html)?;
    let json = serde_json::to_string_pretty(record).expect("records can be written");
    write(&folder.join(format!("{name}.json")), &(json + "\n"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, |temporary| fs::write(temporary, text)).map_err(EvalError::io(path))
}
