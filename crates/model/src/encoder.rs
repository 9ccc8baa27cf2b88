//! The encoder: blocks that tokens pass, whatever they were before.

use std::ops::Range;

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use omma_base::Seed;
use omma_routing::{Layout, Routing};

use crate::{
    config::{EncoderConfig, FeedForwardKind, Tiling},
    early::Taps,
    error::Result,
    layers::{Block, FeedForward, Norm, tile},
    mode::Mode,
};

/// A stack of blocks. It sees rows of features and how they lie, and knows nothing of pixels, words or
/// classes; attention stays inside a sequence, and an MoE layer routes all rows together.
#[derive(Module, Debug)]
pub struct Encoder {
    /// One after the other.
    pub blocks: Vec<Block>,
    /// Behind the last block, unless the head normalises what it makes of the tokens.
    pub norm: Option<Norm>,
    #[module(skip)]
    config: EncoderConfig,
    /// Who hears gradients of blocks before a backward pass has come to its end.
    #[module(skip)]
    pub(crate) taps: Option<Taps>,
}

/// What leaves an encoder.
#[derive(Debug)]
pub struct Encoded {
    /// `[N, D]`, rows as `layout` says.
    pub tokens: Tensor<2>,
    /// With more members than before, where the encoder is an ensemble.
    pub layout: Layout,
    /// The blocks with experts, and who went where in them.
    pub routings: Vec<(usize, Routing)>,
}

/// A place between two parts of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In front of the first block.
    Embedded,
    /// Behind a block.
    Block(usize),
    /// What leaves the encoder.
    Encoded,
}

impl EncoderConfig {
    /// Blocks with fresh parameters, and a normalisation behind them if there is to be one.
    pub(crate) fn init(&self, normalises: bool, seed: Seed, device: &Device) -> Result<Encoder> {
        let kinds = self.feed_forwards()?;
        let last_moe = kinds.iter().rposition(|kind| *kind == FeedForwardKind::Moe);
        let multi_pred = self.moe.as_ref().filter(|moe| moe.multi_pred);
        let choices = |block| {
            multi_pred.filter(|_| Some(block) == last_moe).map(|moe| moe.experts_per_token())
        };
        let blocks = kinds.iter().enumerate().map(|(index, kind)| {
            let seed = seed.named("block").numbered(index as u64);
            Block::new(self, (index, *kind), choices(index), seed, device)
        });
        Ok(Encoder {
            blocks: blocks.collect::<Result<_>>()?,
            norm: (normalises && self.norm).then(|| Norm::new(self.width, device)),
            config: self.clone(),
            taps: None,
        })
    }
}

impl Encoder {
    /// What this encoder is.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// - `tokens`: `[N, D]`, rows as `layout` says
    pub fn forward(&self, tokens: Tensor<2>, layout: Layout, mode: &Mode) -> Result<Encoded> {
        self.forward_observed(tokens, layout, mode, |_, _, _| {})
    }

    /// The same, showing the tokens of every stage, `[N, D]`, and how they lie, to `observe`.
    pub fn forward_observed(
        &self,
        tokens: Tensor<2>,
        layout: Layout,
        mode: &Mode,
        mut observe: impl FnMut(Stage, &Tensor<2>, &Layout),
    ) -> Result<Encoded> {
        observe(Stage::Embedded, &tokens, &layout);
        let Encoded { tokens, layout, routings } =
            self.pass(0..self.blocks.len(), tokens, layout, mode, &mut observe)?;
        let tokens = self.normed(tokens);
        observe(Stage::Encoded, &tokens, &layout);
        Ok(Encoded { tokens, layout, routings })
    }

    /// What tokens are when they enter block `first`, made by the blocks below it as in predictions. These
    /// must be blocks that members of an ensemble share ([`EncoderConfig::shared_blocks`]).
    pub(crate) fn trunk(
        &self,
        first: usize,
        tokens: Tensor<2>,
        layout: Layout,
    ) -> Result<Tensor<2>> {
        let shared = self.config.shared_blocks()?;
        assert!(first <= shared, "trunk: members share {shared} blocks, not {first}");
        Ok(self.pass(0..first, tokens, layout, &Mode::Inference, &mut |_, _, _| {})?.tokens)
    }

    /// What becomes of tokens that enter block `first`.
    pub(crate) fn forward_from(
        &self,
        first: usize,
        tokens: Tensor<2>,
        layout: Layout,
        mode: &Mode,
    ) -> Result<Encoded> {
        let blocks = first..self.blocks.len();
        let encoded = self.pass(blocks, tokens, layout, mode, &mut |_, _, _| {})?;
        Ok(Encoded { tokens: self.normed(encoded.tokens), ..encoded })
    }

    /// The same parameters under the routers of another configuration.
    pub(crate) fn rerouted(mut self, config: &EncoderConfig) -> Result<Self> {
        for (index, block) in self.blocks.iter_mut().enumerate() {
            if let (FeedForward::Moe(layer), Some(moe)) = (&mut block.feed_forward, &config.moe) {
                layer.router = layer.router.clone().with_config(moe.router_of(index))?;
            }
        }
        Ok(Self { config: config.clone(), ..self })
    }

    /// Tokens through some of the blocks.
    fn pass(
        &self,
        blocks: Range<usize>,
        tokens: Tensor<2>,
        layout: Layout,
        mode: &Mode,
        observe: &mut dyn FnMut(Stage, &Tensor<2>, &Layout),
    ) -> Result<Encoded> {
        let (mut x, mut layout) = (tokens, layout);
        let mut routings = Vec::new();
        let tiling = self.tiling(mode)?;
        for index in blocks {
            let heard = self.taps.as_ref().map(|taps| taps.on(&self.blocks[index], &x));
            let block = heard.as_ref().unwrap_or(&self.blocks[index]);
            if let Some(Tiling { members, .. }) = tiling.filter(|tiling| tiling.block == index) {
                x = tile(x, &layout, members);
                layout = layout.clone().tiled(layout.members() * members);
            }
            x = block.attend(x, &layout);
            let seed = mode.seed().named("block").numbered(index as u64);
            let output = block.feed(x, layout, mode, seed)?;
            (x, layout) = (output.tokens, output.layout);
            routings.extend(output.routing.map(|routing| (index, routing)));
            observe(Stage::Block(index), &x, &layout);
        }
        Ok(Encoded { tokens: x, layout, routings })
    }

    /// What the normalisation behind the last block makes of tokens, if there is one.
    pub(crate) fn normed(&self, tokens: Tensor<2>) -> Tensor<2> {
        match &self.norm {
            Some(norm) => norm.forward(tokens),
            None => tokens,
        }
    }

    /// MC samples are drawn at inference only; other members exist always.
    fn tiling(&self, mode: &Mode) -> Result<Option<Tiling>> {
        let sampled = self.config.mc_samples > 1;
        let samples = matches!(mode, Mode::Sampling { dropout: true, .. });
        Ok(self.config.tiling()?.filter(|_| !sampled || samples))
    }
}
