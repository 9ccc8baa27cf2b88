//! What a training step keeps of an image, from the configuration alone.
//!
//! The fused operations keep their inputs and little else for the backward pass: a dense block keeps, per
//! token, its input, the normalised input, queries, keys and values, the attended values, the sum in its
//! middle, that normalised, and the hidden values before the activation: `8 D + H` floats. What is counted
//! here was compared with what processes really held (`crates/cli/tests/memory.rs`).

use omma_base::Resolution;
use omma_routing::Allocation;

use crate::{
    config::{EncoderConfig, FeedForwardKind, ModelConfig, MoeConfig},
    error::Result,
};

/// Floats of one image in a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImageMemory {
    /// Kept from the forward to the backward pass.
    pub kept: u64,
    /// Held beside these while the block that needs most is computed.
    pub working: u64,
}

impl ImageMemory {
    /// All of it.
    pub fn floats(&self) -> u64 {
        self.kept.saturating_add(self.working)
    }
}

/// Tensors of `[tokens, experts]` that a sparse router keeps: logits, noise, gates and their parts.
const GATE_TENSORS: u64 = 8;
/// Tensors of `[tokens, slots]` that a soft router keeps: logits and two softmaxes in plain operations.
const SLOT_TENSORS: u64 = 9;

impl ModelConfig {
    /// What a training step keeps of an image, of which the first `trunk` blocks are run without gradients.
    pub fn image_memory(
        &self,
        resolution: Resolution,
        trunk: Option<usize>,
    ) -> Result<ImageMemory> {
        let encoder = &self.encoder;
        let width = encoder.width as u64;
        let tokens = self.image.tokens(resolution) as u64;
        let patch = self.image.patch as u64;
        let values = patch * patch * (self.image.channels * self.images_per_input()) as u64;
        let repetition = self.mimo.as_ref().map_or(1, |mimo| mimo.batch_repetition as u64);
        let mut found = ImageMemory::default();
        // Patches as rows, what they are projected to, and that with its position.
        let embedding = tokens * (values + 2 * width);
        match trunk {
            None => found.kept += embedding,
            Some(_) => found.working = embedding,
        }
        blocks(encoder, tokens, trunk, &mut found)?;
        if let (Some(text), Some(encoder)) = (&self.text, self.text_encoder()) {
            let length = text.length as u64;
            found.kept += 2 * length * encoder.width as u64;
            blocks(encoder, length, None, &mut found)?;
        }
        Ok(ImageMemory { kept: repetition * found.kept, working: repetition * found.working })
    }
}

/// What blocks and the normalisation behind them keep of the tokens of one sequence.
fn blocks(
    encoder: &EncoderConfig,
    tokens: u64,
    trunk: Option<usize>,
    found: &mut ImageMemory,
) -> Result<()> {
    let width = encoder.width as u64;
    let kinds = encoder.feed_forwards()?;
    let tiling = encoder.tiling()?.filter(|_| encoder.mc_samples == 1);
    let mut rows = tokens;
    for (index, kind) in kinds.iter().enumerate() {
        if let Some(tiling) = tiling.filter(|tiling| tiling.block == index) {
            rows = tokens * tiling.members as u64;
        }
        let feed = feed_forward(encoder, *kind, rows);
        let kept = attention(encoder, rows) + feed;
        // A gradient of most of what it keeps while it is run backwards, and pages that an allocator
        // has not given back yet; 5 D fits what was measured.
        let working = kept + 5 * rows * width;
        if trunk.is_none_or(|trunk| index >= trunk) {
            found.kept += kept;
        }
        found.working = found.working.max(working);
    }
    // The normalised tokens, and their input.
    found.kept += 2 * rows * width;
    Ok(())
}

/// The first half of a block: input, normalised, queries, keys and values, attended values, the sum.
fn attention(encoder: &EncoderConfig, rows: u64) -> u64 {
    if !encoder.attention {
        return 0;
    }
    let mut tensors = 7;
    // Queries and keys once more, in plain operations.
    tensors += if encoder.qk_norm { 8 } else { 0 };
    tensors += if encoder.layer_scale.is_some() { 1 } else { 0 };
    tensors * rows * encoder.width as u64
}

/// The second half of a block: the normalised input and what is hidden.
fn feed_forward(encoder: &EncoderConfig, kind: FeedForwardKind, rows: u64) -> u64 {
    let width = encoder.width as u64;
    let scale = if encoder.layer_scale.is_some() { rows * width } else { 0 };
    let normed = rows * width + scale;
    normed
        + match (kind, &encoder.moe) {
            (FeedForwardKind::Moe, Some(moe)) => experts(encoder, moe, rows),
            // Fast weights are multiplied in plain operations, around both products.
            (FeedForwardKind::BatchEnsemble, _) => rows * (3 * encoder.mlp as u64 + 3 * width),
            _ => rows * encoder.mlp as u64,
        }
}

fn experts(encoder: &EncoderConfig, moe: &MoeConfig, rows: u64) -> u64 {
    let width = encoder.width as u64;
    let hidden = moe.hidden.unwrap_or(encoder.mlp) as u64;
    let shared = if moe.shared_expert { rows * (hidden + width) } else { 0 };
    if let Some(slots) = moe.slots() {
        let slots = (moe.router.experts * slots) as u64;
        // Mixed inputs, what is hidden, and outputs of every slot, of each image and member.
        let members = moe.members().max(1) as u64;
        return shared + SLOT_TENSORS * rows * slots + members * slots * (hidden + 2 * width);
    }
    let factor = moe.capacity_factor();
    let served = match moe.router.allocation {
        Allocation::TokenChoice(_) => {
            let chosen = (rows * moe.experts_per_token() as u64) as f64;
            chosen * factor.map_or(1.0, |factor| factor.min(1.0))
        }
        _ => rows as f64 * factor.unwrap_or(1.0),
    };
    let columns = moe.experts_per_gate() as u64;
    shared + (served * hidden as f64) as u64 + GATE_TENSORS * rows * columns + rows * width
}
