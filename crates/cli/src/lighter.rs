//! A model that is to become lighter, and what that is measured by.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_data::formats::Columns;
use omma_eval::{
    Images,
    pruning::{Judge, ModelRecord, ModelScore},
};
use omma_model::{VisionTransformer, parameters};

use crate::{
    beside::{Beside, complete, kept_files, recipes},
    subject::{Candidate, Data, Part, check_names},
    table::{grouped, note},
    zero_shot::{Labels, Names},
};

/// What is counted and scored by.
#[derive(Args)]
pub(crate) struct MeasureArguments {
    /// What to measure by; without it, what a run was trained on
    #[arg(long)]
    pub(crate) data: Option<String>,
    /// Which columns of a table are what, by name or by number from 1: image=photo,label=3
    #[arg(long, value_name = "COLUMNS")]
    columns: Option<Columns>,
    /// Which of its images; if not given, those that training held out, or else what `omma eval` judges by
    #[arg(long, value_enum)]
    split: Option<Part>,
    /// Images at most, evenly spread
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Sentences around the names of classes, one per line with {} in it, for models that compare images with texts
    #[arg(long, value_name = "FILE")]
    templates: Option<PathBuf>,
    /// Names of the data's classes for such models, one per line
    #[arg(long, value_name = "FILE")]
    class_names: Option<PathBuf>,
    /// Images per forward pass
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
}

/// A model, and the files that belong to it.
pub(crate) struct Subject {
    pub(crate) candidate: Candidate,
    pub(crate) beside: Vec<Beside>,
}

impl Subject {
    /// Fails on a model without experts.
    pub(crate) fn read(path: &Path, device: &Device) -> Result<Self> {
        let paths = [path.to_owned()];
        let beside = kept_files(&paths)?;
        let mut candidate = Candidate::read_all(&paths, &[], device)?.remove(0);
        complete(&mut candidate, &beside)?;
        if candidate.model.config().moe().is_none() {
            bail!("{} has no experts; `omma upcycle` makes some", path.display());
        }
        Ok(Self { candidate, beside })
    }

    /// Whether it knows what it was trained on.
    pub(crate) fn knows_data(&self) -> Result<bool> {
        Ok(!recipes(&self.candidate.path)?.is_empty())
    }
}

/// Images, and what is needed to score by them.
pub(crate) struct Measured {
    pub(crate) images: Images,
    labels: Option<Labels>,
    batch: usize,
}

impl MeasureArguments {
    /// Opens what is named.
    pub(crate) fn open(&self, subject: &Subject) -> Result<Measured> {
        let candidate = &subject.candidate;
        let recipes = recipes(&candidate.path)?;
        let resolution = candidate.model.config().image.resolution;
        let data =
            Data::of_soup(self.data.as_deref(), self.columns.as_ref(), &[recipes], resolution)?;
        let held_out = data.held_out()?.is_some().then_some(Part::Val);
        let limit = self.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let (_, images) = data.part_of_any(self.split.or(held_out), limit)?;
        let names =
            Names { templates: self.templates.as_deref(), classes: self.class_names.as_deref() };
        let candidates = std::slice::from_ref(candidate);
        let (labels, images) = names.of(candidates, images)?;
        check_names(candidates, &images)?;
        let count = grouped(images.data.len() as u64);
        note(format!("measured by {count} images: {}", images.name));
        Ok(Measured { images, labels, batch: self.batch.into() })
    }
}

impl Measured {
    /// What counts and scores the subject, and what is made of it.
    pub(crate) fn judge<'a>(&'a self, subject: &'a Subject, device: &'a Device) -> Judge<'a> {
        let labels = self.labels.as_ref();
        Judge {
            tokenizer: subject.candidate.tokenizer.as_ref(),
            labels: labels.map(|labels| (labels.names.as_slice(), &labels.templates)),
            ..Judge::new(&self.images, self.batch, device)
        }
    }
}

/// Parameters of a model, with what else is known of it.
pub(crate) fn record(
    model: &VisionTransformer,
    per_second: Option<f64>,
    score: Option<ModelScore>,
) -> ModelRecord {
    let all = parameters(model).into_iter();
    let parameters = all.map(|one| one.shape.iter().product::<usize>() as u64).sum();
    ModelRecord { parameters, bytes: 4 * parameters, per_second, score }
}

/// `81.25 %, NLL 0.6012`
pub(crate) fn score_in_words(score: &ModelScore) -> String {
    let nll = score.nll.map_or(String::new(), |nll| format!(", NLL {nll:.4}"));
    format!("{:.2} %{nll}", 100.0 * score.accuracy)
}
