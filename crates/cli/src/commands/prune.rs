//! `omma prune`

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use omma_eval::{
    pruning::{
        CurveProtocol, Judge, KeepOrder, LayerRecord, LayerUsage, ModelRecord, Pace, PruningCurve,
        PruningRecord, Wish, expert_usage, pace, pruning_curve, pruning_page,
    },
    report::write_report,
};
use omma_model::{
    IMAGES, TEXTS, VisionTransformer,
    systems::{KeptExperts, prune},
};
use omma_routing::PruneMode;

use super::{check_output, save, written};
use crate::{
    beside::write_beside,
    lighter::{MeasureArguments, Subject, record, score_in_words},
    table::{grouped, note, rate, say, say_json, table},
    watch::Watch,
};

/// Take experts that serve few tokens out of a checkpoint (paper 002 App. E.4).
///
/// One pass over data counts which share of the tokens each expert of every layer serves. The busiest stay: so
/// many (--keep), or as few as serve a share of the tokens (--coverage). The others are really gone from the file.
/// By --mode pred the router still predicts gates for them, so that the others keep the weights that they were
/// trained with; by --mode drop its softmax is over those that stay. Says what was kept, how much smaller and
/// faster the model is, and what it scores. --curve scores every number of experts in both modes, and experts that
/// were drawn beside the busiest, and writes prune.html with figures; alone, it writes no checkpoint.
///
/// Examples:
///   omma prune runs/vmoe-1 lighter/ --coverage 0.99
///   omma prune vmoe/ four/ --data photos/ --keep 4 --mode drop
///   omma prune runs/limoe-1 texts/ --modality text --keep 4
///   omma prune runs/vmoe-1 curve/ --curve
///   omma eval lighter/ --data photos/
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Prune {
    /// A run or a checkpoint, of ours or of another project
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    input: PathBuf,
    /// The folder to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Experts that every layer keeps
    #[arg(long, value_name = "EXPERTS", conflicts_with = "coverage", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Share of the tokens that the experts which stay have served, such as 0.99
    #[arg(long, value_name = "SHARE", value_parser = share)]
    coverage: Option<f64>,
    /// What becomes of the gates of experts that go
    #[arg(long, value_enum, default_value_t = Mode::Pred)]
    mode: Mode,
    /// Prune for images or for texts alone, of a model that takes both
    #[arg(long, value_enum)]
    modality: Option<Modality>,
    /// Score every number of experts, in both modes, by rank and at random
    #[arg(long)]
    curve: bool,
    /// With --curve: random choices of experts
    #[arg(long, default_value_t = 3, requires = "curve")]
    seeds: u16,
    #[command(flatten)]
    measure: MeasureArguments,
    /// Replace a checkpoint that is there
    #[arg(long)]
    force: bool,
    /// Print prune.json instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The router predicts gates for them, which nobody uses (router-pred)
    Pred,
    /// They are gone from the softmax (router-drop)
    Drop,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Modality {
    /// Images
    Image,
    /// Texts
    Text,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "it is a share above 0 and up to 1, such as 0.99".to_owned())
}

impl Prune {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_output(&self.output, self.force)?;
        let wish = match (self.keep, self.coverage) {
            (Some(keep), _) => Some(Wish::Experts(keep as usize)),
            (_, Some(coverage)) => Some(Wish::Coverage(coverage)),
            _ if self.curve => None,
            _ => bail!("say how much to keep, with --keep or --coverage, or look at --curve first"),
        };
        let mut watch = Watch::new();
        let subject = Subject::read(&self.input, device)?;
        let model = &subject.candidate.model;
        let modality = self.modality(model)?;
        let measured = self.measure.open(&subject)?;
        let judge = measured.judge(&subject, device);
        let usage = expert_usage(model, &judge, &mut watch)?;
        check_texts(&usage, modality)?;
        let measure = judge.measure(model);
        if measure.is_none() {
            note("not scored: these images have no classes that the model tells apart");
        }
        let orders = usage.iter().map(|layer| KeepOrder::by_share(layer, modality));
        let orders = orders.collect::<omma_eval::Result<Vec<KeepOrder>>>()?;
        let kept = wish.map(|wish| kept(&usage, &orders, modality, wish)).transpose()?;
        let mode = match self.mode {
            Mode::Pred => PruneMode::Predict,
            Mode::Drop => PruneMode::Drop,
        };
        let pruned = match &kept {
            Some(kept) => Some(prune(model, kept, mode, device)?),
            None => None,
        };
        let (before, after, speed_ratio) =
            compared(model, pruned.as_ref(), &judge, modality, &mut watch)?;
        let curve = match self.curve {
            true => {
                let protocol = CurveProtocol { modality, seeds: self.seeds.into() };
                pruning_curve(model, &usage, &judge, protocol, &mut watch)?
            }
            false => None,
        };
        if self.curve && curve.is_none() {
            bail!("there is no curve without scores; name data with the model's classes by --data");
        }
        drop(watch);
        let layers = usage.iter().enumerate().map(|(place, layer)| {
            let kept = kept.as_ref().map(|kept| kept[place].experts.as_slice());
            layer_record(layer, kept, modality)
        });
        let record = PruningRecord {
            model: subject.candidate.name(),
            data: measured.images.name.clone(),
            images: measured.images.data.len(),
            modality: self.modality.map(|modality| modality.word().to_owned()),
            mode: pruned.as_ref().map(|_| mode),
            layers: layers.collect(),
            measure: measure.map(str::to_owned),
            before,
            after,
            speed_ratio,
            curve,
        };
        if let Some(pruned) = &pruned {
            save(pruned, &self.output)?;
            write_beside(&self.output, &subject.beside)?;
        }
        write_report(&self.output, "prune", &pruning_page(&record), &record)?;
        if self.json {
            return say_json(&record);
        }
        show(&record, self.modality == Some(Modality::Text))?;
        if let Some(pruned) = &pruned {
            written(pruned, &self.output, None)?;
        }
        say(format!("report: {}", self.output.join("prune.html").display()))
    }

    /// The modality that is asked for, which the model must have in this tower.
    fn modality(&self, model: &VisionTransformer) -> Result<Option<usize>> {
        let Some(modality) = self.modality else { return Ok(None) };
        if !model.reads() {
            bail!("--modality is for models that take images and texts, and this one takes images");
        }
        match modality {
            Modality::Image => Ok(Some(IMAGES)),
            Modality::Text if model.config().text_tower().is_some() => {
                bail!(
                    "texts pass a tower of their own here, and the one that images pass is pruned"
                )
            }
            Modality::Text => Ok(Some(TEXTS)),
        }
    }
}

impl Modality {
    fn word(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Text => "text",
        }
    }
}

/// Fails where texts are to be pruned for and there are none.
fn check_texts(usage: &[LayerUsage], modality: Option<usize>) -> Result<()> {
    match modality {
        Some(TEXTS) if !usage.iter().any(|layer| layer.saw(TEXTS)) => {
            bail!("these data have no texts to count: neither captions nor names of classes")
        }
        _ => Ok(()),
    }
}

/// What every layer keeps; fails where a number of experts is asked for that leaves all of them.
fn kept(
    usage: &[LayerUsage],
    orders: &[KeepOrder],
    modality: Option<usize>,
    wish: Wish,
) -> Result<Vec<KeptExperts>> {
    let kept = usage.iter().zip(orders).map(|(layer, order)| {
        let experts = order.keep(&layer.shares(modality), wish)?;
        Ok(KeptExperts { block: layer.block, experts })
    });
    let kept: Vec<KeptExperts> = kept.collect::<omma_eval::Result<_>>()?;
    if orders.iter().zip(&kept).all(|(order, kept)| kept.experts.len() == order.most()) {
        match wish {
            Wish::Experts(count) => bail!("every layer keeps its {count} experts: none would go"),
            Wish::Coverage(share) => {
                note(format!("all experts are needed to serve {} %: none goes", 100.0 * share));
            }
        }
    }
    Ok(kept)
}

/// Both models with their sizes, speeds and scores, and how much faster the second is.
fn compared(
    model: &VisionTransformer,
    pruned: Option<&VisionTransformer>,
    judge: &Judge,
    modality: Option<usize>,
    watch: &mut Watch,
) -> Result<(ModelRecord, Option<ModelRecord>, Option<f64>)> {
    let scored = judge.measure(model).is_some();
    let whole = match scored {
        true => Some(judge.score("the whole model", model, model, watch)?),
        false => None,
    };
    let Some(pruned) = pruned else { return Ok((record(model, None, whole), None, None)) };
    let left = match scored {
        true => {
            let of_images = if modality == Some(TEXTS) { model } else { pruned };
            let of_texts = if modality == Some(IMAGES) { model } else { pruned };
            Some(judge.score("what is left", of_images, of_texts, watch)?)
        }
        false => None,
    };
    let Pace { per_second: [before, after], ratio } =
        pace([model, pruned], judge, modality, watch)?;
    let after = record(pruned, Some(after), left);
    Ok((record(model, Some(before), whole), Some(after), Some(ratio)))
}

fn layer_record(
    layer: &LayerUsage,
    kept: Option<&[usize]>,
    modality: Option<usize>,
) -> LayerRecord {
    let shares = layer.shares(modality);
    let coverage = kept.map(|kept| kept.iter().map(|expert| shares[*expert]).sum());
    let seen = [(IMAGES, "image"), (TEXTS, "text")].into_iter();
    let seen: Vec<(usize, &str)> = seen.filter(|(modality, _)| layer.saw(*modality)).collect();
    let modalities = match seen.len() {
        0 | 1 => BTreeMap::new(),
        _ => {
            let own =
                |(modality, name): (usize, &str)| (name.to_owned(), layer.shares(Some(modality)));
            seen.into_iter().map(own).collect()
        }
    };
    LayerRecord {
        block: layer.block,
        kept: kept.map(<[usize]>::to_vec),
        coverage,
        shares,
        modalities,
    }
}

fn show(record: &PruningRecord, texts: bool) -> Result<()> {
    let rows = record.layers.iter().map(|layer| {
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let list = |experts: &Vec<usize>| {
            experts.iter().map(usize::to_string).collect::<Vec<String>>().join(", ")
        };
        let busiest = layer.shares.iter().copied().fold(0.0, f64::max);
        [
            layer.block.to_string(),
            layer.kept.as_ref().map_or(String::new(), list),
            match &layer.kept {
                Some(kept) => format!("{} of {}", kept.len(), layer.shares.len()),
                None => layer.shares.len().to_string(),
            },
            layer.coverage.map_or(String::new(), percent),
            percent(busiest),
        ]
    });
    say(table(["block", "kept", "experts", "coverage", "busiest serves"], rows, 2))?;
    if let Some(after) = &record.after {
        show_change(record, after, texts)?;
    }
    match &record.curve {
        Some(curve) => show_curve(curve),
        None => Ok(()),
    }
}

fn show_change(record: &PruningRecord, after: &ModelRecord, texts: bool) -> Result<()> {
    let before = &record.before;
    let megabytes = |bytes: u64| format!("{:.2} MB", bytes as f64 / 1e6);
    say(format!(
        "parameters: {} → {} ({:.1} %), {} → {}",
        grouped(before.parameters),
        grouped(after.parameters),
        100.0 * after.parameters as f64 / before.parameters.max(1) as f64,
        megabytes(before.bytes),
        megabytes(after.bytes)
    ))?;
    if let (Some(old), Some(new)) = (before.per_second, after.per_second) {
        let unit = if texts { "text" } else { "image" };
        let words = [old, new].map(|pace| rate(pace, unit));
        let ratio = record.speed_ratio.map_or(String::new(), |ratio| format!(" ({ratio:.2} ×)"));
        say(format!("speed: {} → {}{ratio}", words[0], words[1]))?;
    }
    if let (Some(old), Some(new)) = (&before.score, &after.score) {
        let measure = record.measure.as_deref().unwrap_or("accuracy");
        say(format!("{measure}: {} → {}", score_in_words(old), score_in_words(new)))?;
    }
    Ok(())
}

fn show_curve(curve: &PruningCurve) -> Result<()> {
    say(format!("{} against experts left in every layer, in per cent", curve.measure))?;
    let rows = curve.rows().into_iter();
    let rows = rows.filter_map(|row| <[String; PruningCurve::HEADER.len()]>::try_from(row).ok());
    say(table(PruningCurve::HEADER, rows, 0))
}
