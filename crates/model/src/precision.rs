//! A model whose products are computed in half precision. Parameters stay what they are, and so do tokens between
//! layers, normalisation, routing, what experts' outputs are weighted and summed by, and heads: single precision.

use omma_kernels::Precision;

use crate::{encoder::Encoder, vit::VisionTransformer};

impl VisionTransformer {
    /// The same model with products of patches, attention, feed-forward networks and experts in a precision.
    pub fn in_precision(mut self, precision: Precision) -> Self {
        self.embed.precision = precision;
        let texts = self.text.as_mut().and_then(|text| text.encoder.as_mut());
        let blocks = |encoder: &mut Encoder| {
            encoder.blocks.iter_mut().for_each(|block| block.set_precision(precision));
        };
        [Some(&mut self.encoder), texts].into_iter().flatten().for_each(blocks);
        self
    }
}
