//! From pixels to tokens.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_base::Seed;
use omma_kernels::{Precision, linear};

use super::position::{interpolate, sincos2d};
use crate::{
    config::{ImageConfig, Position},
    layers::{constant, normal, xavier},
};

/// Cuts an image into patches, projects them, and puts class and register tokens in front.
#[derive(Module, Debug)]
pub struct PatchEmbedding {
    /// `[patch · patch · channels, D]`, pixels in the order row, column, channel; nothing where these are the
    /// token.
    pub weight: Option<Param<Tensor<2>>>,
    /// `[D]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// `[D]`.
    pub class_token: Option<Param<Tensor<1>>>,
    /// `[R, D]`.
    pub registers: Option<Param<Tensor<2>>>,
    /// `[rows · columns, D]`, in front of them one for the class token if that has a position.
    pub position: Option<Param<Tensor<2>>>,
    #[module(skip)]
    config: ImageConfig,
    /// What the product is computed in.
    #[module(skip)]
    pub(crate) precision: Precision,
}

impl PatchEmbedding {
    /// Xavier uniform patches, tokens and positions near 0. With MIMO the images of a forward pass
    /// lie beside each other on the channel axis.
    ///
    /// - `width`: features of a token, `D`; `images`: of a forward pass, beside each other
    pub fn new(
        config: &ImageConfig,
        width: usize,
        images: usize,
        seed: Seed,
        device: &Device,
    ) -> Self {
        let ImageConfig { registers, projection, .. } = *config;
        let pixels = config.patch_values() * images;
        let (rows, columns) = config.position_grid();
        let positions = match config.position {
            Position::Learned => Some(rows * columns + usize::from(config.class_token)),
            Position::LearnedPatches => Some(rows * columns),
            Position::Sincos2d | Position::None => None,
        };
        let positions = positions.map(|n| normal([n, width], 0.02, seed.named("position"), device));
        let registers = (registers > 0)
            .then(|| normal([registers, width], 1e-6, seed.named("registers"), device));
        Self {
            weight: projection
                .then(|| xavier([pixels, width], (pixels, width), seed.named("patch"), device)),
            bias: projection.then(|| constant([width], 0.0, device)),
            class_token: config.class_token.then(|| constant([width], 0.0, device)),
            registers,
            position: positions,
            config: config.clone(),
            precision: Precision::default(),
        }
    }

    /// - `images`: `[B, H, W, channels]`; a margin narrower than a patch is cut off
    /// - returns: `[B, T, D]`: class token, registers, patches row by row
    pub fn forward(&self, images: Tensor<4>) -> Tensor<3> {
        let [batch, height, width, channels] = images.dims();
        let patch = self.config.patch;
        let (rows, columns) = (height / patch, width / patch);
        let images = match (height, width) == (rows * patch, columns * patch) {
            true => images,
            false => images.slice([0..batch, 0..rows * patch, 0..columns * patch, 0..channels]),
        };
        let patches = images
            .reshape([batch, rows, patch, columns, patch * channels])
            .swap_dims(2, 3) // [B, rows, columns, patch, patch · channels]
            .reshape([batch, rows * columns, patch * patch * channels]);
        let patches = match &self.weight {
            Some(weight) => self.precision.within(patches, |patches| {
                linear(patches, weight.val(), self.bias.as_ref().map(Param::val))
            }),
            None => patches,
        }; // [B, P, D]
        let [_, _, features] = patches.dims();
        let device = patches.device();

        let class_position = match (&self.position, &self.class_token, self.config.position) {
            (Some(position), Some(_), Position::Learned) => {
                Some(position.val().slice([0..1, 0..features]))
            }
            _ => None,
        };
        let first = usize::from(class_position.is_some());
        let positions = self.position.as_ref().map(|position| {
            let [all, _] = position.dims();
            let patches = position.val().slice([first..all, 0..features]);
            interpolate(patches, self.config.position_grid(), (rows, columns))
        });
        let positions = match self.config.position {
            Position::Sincos2d => Some(sincos2d((rows, columns), features, &device)),
            _ => positions,
        };
        let patches = match positions {
            Some(positions) => patches + positions.unsqueeze::<3>(),
            None => patches,
        };
        let class_token = self.class_token.as_ref().map(|token| {
            let token = token.val().unsqueeze::<2>(); // [1, D]
            class_position.map_or(token.clone(), |position| token + position)
        });
        let registers = self.registers.as_ref().map(Param::val);
        let prefix: Vec<Tensor<3>> = [class_token, registers]
            .into_iter()
            .flatten()
            .map(|tokens| {
                let [n, _] = tokens.dims();
                tokens.unsqueeze::<3>().expand([batch, n, features])
            })
            .collect();
        match prefix.is_empty() {
            true => patches,
            false => Tensor::cat(prefix.into_iter().chain([patches]).collect(), 1),
        }
    }
}
