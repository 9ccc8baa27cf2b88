//! Products and other work of every part of a model.

use omma_base::Resolution;
use omma_routing::{Affinity, Allocation};

use super::{Counted, ValueWork, kind_of};
use crate::{
    config::{
        ClassifierConfig, ContrastConfig, EncoderConfig, FeedForwardKind, HeadConfig, ImageConfig,
        ModelConfig, MoeConfig, Pooling, Position, TextConfig, TextPooling,
    },
    error::Result,
};

/// How tokens get to their experts and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatching {
    /// By their indices, which costs no multiplication.
    Gather,
    /// By products with one-hot tensors over groups of this many images, which is the "simplified, but
    /// less computationally efficient expert-routing implementation" of paper 000's ablations; its
    /// Table 22 comes out with groups of 2. Multi-pred does not combine in its last layer.
    Einsum {
        /// Images of a group.
        images: usize,
    },
}

/// One row, before its parameters are counted.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) kind: String,
    /// Beginnings of the names of its parameters.
    pub(super) parts: Vec<String>,
    pub(super) forward: u64,
    pub(super) training: u64,
    /// Values that experts take.
    pub(super) taken: u64,
}

/// What a part of a model does to one image.
#[derive(Default, Clone, Copy)]
struct Work {
    /// Multiply-adds at inference.
    forward: u64,
    /// Multiply-adds of a forward pass in training, each of which is done three times.
    training: u64,
    /// Operations value by value in training.
    values: u64,
    /// Values of the rows that routed experts take.
    taken: u64,
}

impl Work {
    /// Products that are the same at inference and in training.
    fn product(mut self, macs: usize) -> Self {
        self.forward += macs as u64;
        self.training += macs as u64;
        self
    }

    /// Products that differ between the two.
    fn products(mut self, inference: usize, training: f64) -> Self {
        self.forward += inference as u64;
        self.training += training as u64;
        self
    }

    fn values(mut self, count: f64, operations: u64) -> Self {
        self.values = self.values.saturating_add((count * operations as f64) as u64);
        self
    }

    /// Rows of some width that routed experts take.
    fn taken(mut self, rows: usize, width: usize) -> Self {
        self.taken += (rows * width) as u64;
        self
    }

    fn training_flops(&self) -> u64 {
        (2 * 3 * self.training).saturating_add(self.values)
    }
}

pub(super) struct Products {
    pub(super) rows: Vec<Row>,
}

impl Products {
    /// Of images, of texts, or of an image with its text, which is the sum of both: attention stays inside
    /// each, and experts take the tokens of both.
    pub(super) fn new(
        config: &ModelConfig,
        counted: Counted,
        resolution: Resolution,
        dispatching: Dispatching,
    ) -> Result<Self> {
        let mut rows: Vec<Row> = Vec::new();
        if counted != Counted::Texts {
            rows = Self::of_images(config, resolution, dispatching)?.rows;
        }
        if let (Counted::Texts | Counted::Pairs, Some(text)) = (counted, &config.text) {
            for row in Self::of_texts(config, text, dispatching)?.rows {
                match rows.iter_mut().find(|known| known.name == row.name) {
                    Some(known) => {
                        known.forward += row.forward;
                        known.training += row.training;
                        known.taken += row.taken;
                    }
                    None => rows.push(row),
                }
            }
        }
        Ok(Self { rows })
    }

    fn of_texts(config: &ModelConfig, text: &TextConfig, dispatching: Dispatching) -> Result<Self> {
        let encoder = text.tower.as_ref().unwrap_or(&config.encoder);
        let prefix = if text.tower.is_some() { "text." } else { "" };
        let values = (text.length * encoder.width) as f64;
        let embedding = Work::default().values(values, ValueWork::BIAS + ValueWork::RESIDUAL);
        let kind = format!("{} tokens of {}", text.length, text.vocabulary);
        let parts = ["text.embedding", "text.position"].map(str::to_owned);
        let mut rows = vec![row("text", kind, &parts, embedding)];
        blocks(encoder, prefix, text.length, dispatching, &mut rows)?;
        if encoder.norm {
            let norm = Work::default().values(values, ValueWork::NORM);
            let name = format!("{prefix}norm");
            rows.push(row(&name, "layer norm".to_owned(), &[format!("{name}.")], norm));
        }
        if let Some(head) = config.head.contrast() {
            if head.text_pooling == TextPooling::Map {
                rows.push(pooling(encoder, "text.pool", text.length, 1));
            }
            rows.push(projection("text", encoder, head));
        }
        Ok(Self { rows })
    }

    fn of_images(
        config: &ModelConfig,
        resolution: Resolution,
        dispatching: Dispatching,
    ) -> Result<Self> {
        let encoder = &config.encoder;
        let tokens = config.image.tokens(resolution);
        let mut rows = vec![embedding(config, resolution)];
        let members = blocks(encoder, "", tokens, dispatching, &mut rows)?;
        let normed = if config.head.normalises_features() { 1 } else { tokens };
        let values = (normed * members * encoder.width) as f64;
        if encoder.norm {
            let norm = Work::default().values(values, ValueWork::NORM);
            rows.push(row("norm", "layer norm".to_owned(), &["norm.".to_owned()], norm));
        }
        match &config.head {
            HeadConfig::Classifier(head) => classifier(config, head, tokens, members, &mut rows),
            HeadConfig::Segmenter(head) => {
                let patches = (tokens - config.image.prefix_tokens()) * members;
                let values = (patches * head.classes) as f64;
                let work = Work::default()
                    .product(patches * encoder.width * head.classes)
                    .values(values, ValueWork::BIAS);
                let kind = format!("{} classes per patch", head.classes);
                rows.push(row("head", kind, &["head.".to_owned()], work));
            }
            HeadConfig::Contrast(head) => {
                if head.pooling == Pooling::Map {
                    rows.push(pooling(encoder, "pool", tokens, members));
                }
                rows.push(projection("image", encoder, head));
                let work = Work::default().product(head.embedding * head.classes);
                let parts = ["head.scale", "head.bias", "head.labels"].map(str::to_owned);
                rows.push(row("head", "scale".to_owned(), &parts, work));
            }
        }
        let repetition = config.mimo.as_ref().map_or(1, |mimo| mimo.batch_repetition as u64);
        rows.iter_mut().for_each(|row| row.training *= repetition);
        Ok(Self { rows })
    }
}

/// The blocks' rows; returns the copies that leave the last one.
fn blocks(
    config: &EncoderConfig,
    prefix: &str,
    tokens: usize,
    dispatching: Dispatching,
    rows: &mut Vec<Row>,
) -> Result<usize> {
    let kinds = config.feed_forwards()?;
    let tiling = config.tiling()?;
    let last_moe = kinds.iter().rposition(|kind| *kind == FeedForwardKind::Moe);
    let mut members = 1;
    for (index, kind) in kinds.iter().enumerate() {
        if let Some(tiling) = tiling.filter(|tiling| tiling.block == index) {
            members = tiling.members;
        }
        let name = format!("{prefix}blocks.{index}");
        if config.attention {
            rows.push(row(
                &format!("{name}.attention"),
                format!("{} heads", config.heads),
                &["norm1.", "attention.", "scale1"].map(|part| format!("{name}.{part}")),
                attention(config, tokens, members),
            ));
        }
        let layer = Layer { config, index, tokens, members, dispatching };
        let apart = config.moe.as_ref().filter(|moe| moe.multi_pred && last_moe == Some(index));
        rows.push(row(
            &format!("{name}.feed_forward"),
            kind_of((index, *kind), config),
            &["norm2.", "feed_forward.", "scale2"].map(|part| format!("{name}.{part}")),
            layer.feed_forward(*kind, apart.is_some()),
        ));
        members *= apart.map_or(1, MoeConfig::experts_per_token);
    }
    Ok(members)
}

/// What becomes of `members` copies of an image's tokens.
fn classifier(
    config: &ModelConfig,
    head: &ClassifierConfig,
    tokens: usize,
    members: usize,
    rows: &mut Vec<Row>,
) {
    if head.pooling == Pooling::Map {
        rows.push(pooling(&config.encoder, "pool", tokens, members));
    }
    let mut features = config.feature_width();
    if let Some(size) = head.representation {
        let work = Work::default().product(members * features * size);
        let parts = ["representation.".to_owned()];
        rows.push(row("representation", "linear, tanh".to_owned(), &parts, work));
        features = size;
    }
    if head.classes > 0 {
        let outputs = head.classes * config.images_per_input();
        let work = Work::default()
            .product(members * features * outputs)
            .values((members * outputs) as f64, ValueWork::SOFTMAX);
        let kind = format!("{} classes", head.classes);
        rows.push(row("head", kind, &["head.".to_owned()], work));
    }
}

/// A query that attends to all tokens, and what follows it.
fn pooling(config: &EncoderConfig, name: &str, tokens: usize, members: usize) -> Row {
    let EncoderConfig { width, mlp, .. } = *config;
    let pool = Work::default()
        .product(members * (2 * tokens + 2) * width * width)
        .product(members * 2 * tokens * width)
        .product(members * 2 * width * mlp)
        .values((members * mlp) as f64, ValueWork::GELU);
    row(name, "attention pooling".to_owned(), &[format!("{name}.")], pool)
}

/// From features of a modality to its vector.
fn projection(modality: &str, config: &EncoderConfig, head: &ContrastConfig) -> Row {
    let size = head.embedding;
    let work = Work::default().product(config.width * size).values(size as f64, ValueWork::NORM);
    let name = format!("head.{modality}");
    row(&name, format!("to {size} numbers"), &[format!("{name}.")], work)
}

fn row(name: &str, kind: String, parts: &[String], work: Work) -> Row {
    let (forward, training) = (work.forward, work.training_flops());
    let taken = work.taken;
    Row { name: name.to_owned(), kind, parts: parts.to_vec(), forward, training, taken }
}

fn embedding(config: &ModelConfig, resolution: Resolution) -> Row {
    let ImageConfig { patch, channels, .. } = config.image;
    let width = config.encoder.width;
    let (rows, columns) = config.image.grid(resolution);
    let patches = rows * columns;
    let macs = match config.image.projection {
        true => patches * patch * patch * channels * config.images_per_input() * width,
        false => 0,
    };
    let values = match config.image.projection || config.image.position != Position::None {
        true => (patches * width) as u64 * (ValueWork::BIAS + ValueWork::RESIDUAL),
        false => 0,
    };
    Row {
        name: "embed".to_owned(),
        kind: format!("{patch} × {patch} patches"),
        parts: vec!["embed.".to_owned()],
        forward: macs as u64,
        training: 2 * 2 * macs as u64 + values,
        taken: 0,
    }
}

fn attention(config: &EncoderConfig, tokens: usize, members: usize) -> Work {
    let EncoderConfig { width, heads, .. } = *config;
    let rows = tokens * members;
    Work::default()
        .product(4 * rows * width * width)
        .product(2 * rows * tokens * width)
        .values((rows * width) as f64, norm(config) + 4 * ValueWork::BIAS + ValueWork::RESIDUAL)
        .values((rows * tokens * heads) as f64, ValueWork::SOFTMAX)
}

/// Operations per token and expert of what solves for an affinity, which has no gradient: Sinkhorn at its cap of
/// iterations, so at most; it mostly ends before.
fn solver(affinity: &Affinity) -> u64 {
    match affinity {
        Affinity::Softmax => 0,
        Affinity::Sinkhorn(sinkhorn) => {
            (sinkhorn.max_iterations as u64).saturating_mul(ValueWork::SINKHORN)
        }
        Affinity::SparseTransport(transport) => {
            (transport.steps as u64).saturating_mul(ValueWork::TRANSPORT)
        }
    }
}

/// Of every value in front of a half of a block.
fn norm(config: &EncoderConfig) -> u64 {
    if config.norm { ValueWork::NORM } else { 0 }
}

struct Layer<'a> {
    config: &'a EncoderConfig,
    /// Which block.
    index: usize,
    tokens: usize,
    members: usize,
    dispatching: Dispatching,
}

impl Layer<'_> {
    fn feed_forward(&self, kind: FeedForwardKind, apart: bool) -> Work {
        let EncoderConfig { width, mlp, dropout, .. } = *self.config;
        let rows = self.tokens * self.members;
        let added = match (kind, &self.config.moe) {
            (FeedForwardKind::Moe, Some(moe)) if !moe.residual => 0,
            _ => ValueWork::RESIDUAL,
        };
        let work = Work::default().values((rows * width) as f64, norm(self.config) + added);
        match (kind, &self.config.moe) {
            (FeedForwardKind::Moe, Some(moe)) => self.moe(work, moe, apart),
            (FeedForwardKind::BatchEnsemble, _) => {
                let fast = 2 * rows * (width + mlp);
                self.mlp(work, rows, rows as f64, mlp, dropout).values(fast as f64, 3)
            }
            _ => self.mlp(work, rows, rows as f64, mlp, dropout),
        }
    }

    /// Two products and what is between them, on `rows` rows at inference and `trained` in training.
    fn mlp(&self, work: Work, rows: usize, trained: f64, hidden: usize, dropout: f32) -> Work {
        let width = self.config.width;
        let work = work
            .products(2 * rows * width * hidden, 2.0 * trained * (width * hidden) as f64)
            .values(trained * hidden as f64, ValueWork::GELU + ValueWork::BIAS)
            .values(trained * width as f64, ValueWork::BIAS);
        match dropout > 0.0 {
            true => work.values(trained * hidden as f64, ValueWork::DROPOUT),
            false => work,
        }
    }

    fn moe(&self, work: Work, moe: &MoeConfig, apart: bool) -> Work {
        let width = self.config.width;
        let rows = self.tokens * self.members;
        let hidden = moe.hidden.unwrap_or(self.config.mlp);
        let work = match moe.shared_expert {
            true => self.mlp(work, rows, rows as f64, hidden, moe.dropout),
            false => work,
        };
        if let Allocation::Soft(soft) = moe.router.allocation {
            let experts = moe.experts_in(self.index);
            let serving = soft.subset.map_or(experts, |subset| subset.min(experts));
            let slots = experts * soft.slots * self.members;
            let served = serving * soft.slots * self.members;
            // The router has all slots; those of the experts that serve are mixed and combined.
            let mixing = |slots: usize| 2 * self.tokens * slots * width;
            return self
                .mlp(work, served, slots as f64, hidden, moe.dropout)
                .taken(slots, width)
                .product(self.tokens * slots * width)
                .products(mixing(served), mixing(slots) as f64)
                .values((self.tokens * slots) as f64, 2 * ValueWork::SOFTMAX);
        }
        let factor = moe.capacity_factor().unwrap_or(1.0);
        let (served, capacity) = match moe.router.allocation {
            Allocation::TokenChoice(_) => {
                let chosen = rows * moe.experts_per_token();
                // MC samples are drawn at prediction, where nothing is padded.
                let padding = if self.config.mc_samples > 1 { 1.0 } else { factor };
                (chosen, chosen as f64 * padding)
            }
            // Experts take as much at inference.
            _ => {
                let taken = rows as f64 * factor;
                (taken as usize, taken)
            }
        };
        let columns = moe.columns_per_gate(self.index);
        let work = self
            .mlp(work, served, capacity, hidden, moe.dropout)
            .taken(served.min(capacity as usize), width)
            .product(rows * width * columns)
            .values((rows * columns) as f64, ValueWork::SOFTMAX + solver(&moe.router.affinity))
            .values(capacity * width as f64, ValueWork::COMBINE);
        match self.dispatching {
            Dispatching::Gather => work,
            Dispatching::Einsum { images } => {
                // Rows of a group times slots of an image times width. Forward and the gradient of the
                // tokens for dispatching; forward and both gradients for combining.
                let times = if apart { 2.0 } else { 5.0 };
                let macs = (images * rows) as f64 * capacity * width as f64;
                work.products(0, times / 3.0 * macs)
            }
        }
    }
}
