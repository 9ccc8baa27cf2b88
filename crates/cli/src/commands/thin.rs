//! `omma thin`

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use omma_base::files::write_atomically;
use omma_eval::pruning::{Judge, LayerUsage, ModelRecord, ModelScore, expert_usage};
use omma_model::{
    Placement, VisionTransformer,
    systems::{DenseBlock, DenseFrom, thin},
};
use serde::Serialize;

use super::{check_output, save, written};
use crate::{
    beside::write_beside,
    lighter::{MeasureArguments, Measured, Subject, record, score_in_words},
    table::{say, say_json, table},
    watch::Watch,
};

/// Turn layers of experts back into dense ones, but for those that matter (paper 003).
///
/// The layers outside --keep become dense feed-forward networks: the shared expert, the busiest expert, or the mean
/// of the experts by the share of the tokens that each serves; the last two as they are, and multiplied by what the
/// weights of a token's experts add up to on average. With data, every one of these is measured and the best is
/// taken, or --by says which. The result is a plain checkpoint, ready for fine-tuning.
///
/// Examples:
///   omma thin runs/vimoe-1 efficient/ --keep 10,11
///   omma thin vmoe/ half/ --keep last-1 --data photos/ --by busiest
///   omma thin runs/vmoe-1 dense/ --keep none
///   omma train finetune --init efficient/ --data photos/
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Thin {
    /// A run or a checkpoint, of ours or of another project
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    input: PathBuf,
    /// The folder to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// The blocks that keep their experts, such as 9,11, last-1 or tail-2; none for a dense model
    #[arg(long, value_name = "BLOCKS")]
    keep: String,
    /// What the others become; without it, what scores best
    #[arg(long, value_enum)]
    by: Option<By>,
    #[command(flatten)]
    measure: MeasureArguments,
    /// Replace a checkpoint that is there
    #[arg(long)]
    force: bool,
    /// Print thin.json instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum By {
    /// The expert that every token passes
    Shared,
    /// The expert that serves most tokens
    Busiest,
    /// The mean of the experts, each by the share of the tokens that it serves
    Mean,
}

/// `thin.json`
#[derive(Serialize)]
struct Record {
    /// What it was measured by, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<usize>,
    /// What the accuracies are called.
    #[serde(skip_serializing_if = "Option::is_none")]
    measure: Option<&'static str>,
    /// The blocks that keep their experts.
    kept: Vec<usize>,
    /// Those that have lost them.
    thinned: Vec<usize>,
    /// What these have become.
    #[serde(flatten)]
    way: Way,
    before: ModelRecord,
    after: ModelRecord,
    /// Everything that was tried.
    candidates: Vec<Tried>,
}

/// What layers become.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
struct Way {
    by: By,
    /// Whether outputs are multiplied by what the weights of a token's experts add up to.
    weighted: bool,
}

#[derive(Serialize)]
struct Tried {
    #[serde(flatten)]
    way: Way,
    #[serde(flatten)]
    score: Option<ModelScore>,
}

impl Thin {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_output(&self.output, self.force)?;
        let mut watch = Watch::new();
        let subject = Subject::read(&self.input, device)?;
        let model = &subject.candidate.model;
        let (kept, thinned) = self.blocks(model)?;
        let ways = self.ways(model)?;
        let has_data = self.measure.data.is_some() || subject.knows_data()?;
        let measured = has_data.then(|| self.measure.open(&subject)).transpose()?;
        let (ways, usage) = match &measured {
            Some(measured) => {
                (ways, expert_usage(model, &measured.judge(&subject, device), &mut watch)?)
            }
            None => (without_data(ways)?, Vec::new()),
        };
        let judge = measured.as_ref().map(|measured| measured.judge(&subject, device));
        let judge = judge.filter(|judge| judge.measure(model).is_some());
        if judge.is_none() && ways.len() > 1 {
            let names: Vec<&str> = ways.iter().map(|by| by.word()).collect();
            bail!("nothing says which is best; choose with --by {}", names.join("|"));
        }
        let weighted = |by: &By| judge.is_some() && *by != By::Shared;
        let ways = ways.iter().flat_map(|by| {
            let both = [false, true].into_iter().take(if weighted(by) { 2 } else { 1 });
            both.map(|weighted| Way { by: *by, weighted })
        });
        let ways: Vec<Way> = ways.collect();
        let measure = judge.as_ref().and_then(|judge| judge.measure(model));
        let score =
            |what: &str, model: &VisionTransformer, judge: &Option<Judge>, watch: &mut Watch| {
                let found = judge.as_ref().map(|judge| judge.score(what, model, model, watch));
                found.transpose()
            };
        let whole = score("the whole model", model, &judge, &mut watch)?;
        let (mut best, mut candidates) = (None, Vec::new());
        for way in ways {
            let dense = dense(way, &thinned, &usage)?;
            let made = thin(model, &dense, device)?;
            let found = score(&way.in_words(), &made, &judge, &mut watch)?;
            candidates.push(Tried { way, score: found });
            let better = match (&best, found) {
                (None, _) => true,
                (Some((_, _, Some(other))), Some(found)) => found.beats(other),
                _ => false,
            };
            if better {
                best = Some((way, made, found));
            }
        }
        drop(watch);
        let Some((way, made, found)) = best else { bail!("there is nothing to choose from") };
        save(&made, &self.output)?;
        write_beside(&self.output, &subject.beside)?;
        let images = |measured: &Measured| measured.images.data.len();
        let record = Record {
            data: measured.as_ref().map(|measured| measured.images.name.clone()),
            images: measured.as_ref().map(images),
            measure,
            kept,
            thinned,
            way,
            before: record(model, None, whole),
            after: record(&made, None, found),
            candidates,
        };
        let path = self.output.join("thin.json");
        let text = serde_json::to_string_pretty(&record)? + "\n";
        write_atomically(&path, |temporary| std::fs::write(temporary, text))
            .with_context(|| path.display().to_string())?;
        if self.json {
            return say_json(&record);
        }
        show(&record)?;
        written(&made, &self.output, None)
    }

    /// Blocks that keep their experts, and those that do not.
    fn blocks(&self, model: &VisionTransformer) -> Result<(Vec<usize>, Vec<usize>)> {
        let encoder = &model.config().encoder;
        let all = match &encoder.moe {
            Some(moe) => moe.placement.blocks(encoder.depth)?,
            None => Vec::new(),
        };
        let kept = match self.keep.trim() {
            "none" => Vec::new(),
            text => text.parse::<Placement>()?.blocks(encoder.depth)?,
        };
        if let Some(other) = kept.iter().find(|block| !all.contains(block)) {
            let all: Vec<String> = all.iter().map(usize::to_string).collect();
            bail!("block {other} has no experts to keep; blocks {} have", all.join(", "));
        }
        let thinned: Vec<usize> = all.into_iter().filter(|block| !kept.contains(block)).collect();
        if thinned.is_empty() {
            bail!("all layers keep their experts: there is nothing to do");
        }
        Ok((kept, thinned))
    }

    /// What layers can become.
    fn ways(&self, model: &VisionTransformer) -> Result<Vec<By>> {
        let shared = model.config().moe().is_some_and(|moe| moe.shared_expert);
        match self.by {
            Some(By::Shared) if !shared => {
                bail!("{} has no shared expert; --by busiest or mean", self.input.display())
            }
            Some(by) => Ok(vec![by]),
            None if shared => Ok(vec![By::Shared, By::Busiest, By::Mean]),
            None => Ok(vec![By::Busiest, By::Mean]),
        }
    }
}

/// Those that nothing has to be counted for.
fn without_data(ways: Vec<By>) -> Result<Vec<By>> {
    match ways.contains(&By::Shared) {
        true => Ok(vec![By::Shared]),
        false => bail!(
            "who serves most is counted on data, which a checkpoint does not know; name some with --data"
        ),
    }
}

/// What every thinned block becomes.
fn dense(way: Way, thinned: &[usize], usage: &[LayerUsage]) -> Result<Vec<DenseBlock>> {
    let block = |block: &usize| {
        let layer = usage.iter().find(|layer| layer.block == *block);
        let shares = || {
            let counted = layer.map(|layer| layer.shares(None));
            counted.with_context(|| format!("block {block} was not counted"))
        };
        let from = match way.by {
            By::Shared => DenseFrom::Shared,
            By::Busiest => DenseFrom::Experts(busiest(&shares()?)),
            By::Mean => DenseFrom::Experts(shares()?),
        };
        let scale = layer.filter(|_| way.weighted).map_or(1.0, |layer| layer.mean_weight() as f32);
        Ok(DenseBlock { block: *block, from, scale })
    };
    thinned.iter().map(block).collect()
}

/// 1 for the largest share, of equals the first.
fn busiest(shares: &[f64]) -> Vec<f64> {
    let largest = shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let place = shares.iter().position(|share| *share == largest);
    (0..shares.len()).map(|expert| f64::from(u8::from(Some(expert) == place))).collect()
}

impl By {
    fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Busiest => "busiest",
            Self::Mean => "mean",
        }
    }
}

impl Way {
    fn in_words(self) -> String {
        let weighted = if self.weighted { " × mean weight" } else { "" };
        format!("{}{weighted}", self.by.word())
    }
}

fn show(record: &Record) -> Result<()> {
    let words = |score: &Option<ModelScore>| score.as_ref().map_or(String::new(), score_in_words);
    let mut rows = vec![["as it is".to_owned(), String::new(), words(&record.before.score)]];
    rows.extend(record.candidates.iter().map(|one| {
        let taken = if one.way == record.way { "taken" } else { "" };
        [one.way.in_words(), taken.to_owned(), words(&one.score)]
    }));
    say(table(["dense layers from", "", record.measure.unwrap_or("")], rows, 2))?;
    let list = |blocks: &[usize]| match blocks {
        [] => "none".to_owned(),
        some => some.iter().map(usize::to_string).collect::<Vec<String>>().join(", "),
    };
    say(format!("dense: blocks {}; experts: {}", list(&record.thinned), list(&record.kept)))
}
