//! What of a batch is routed, and who asks which gate.

use burn::tensor::Tensor;

use super::Context;
use crate::{
    layout::{Groups, Layout, Scope},
    pool::{Askers, Gate},
};

/// The part of a batch that is routed: all of it, or the tokens that decide for their images.
pub(super) struct Batch {
    pub(super) tokens: Tensor<2>,
    pub(super) layout: Layout,
    pub(super) modality: Option<Vec<usize>>,
    pub(super) span: usize,
    decided_by: usize,
}

impl Batch {
    pub(super) fn new(tokens: Tensor<2>, context: &Context, scope: Scope) -> Self {
        let layout = context.layout;
        let modality = context.modality.clone();
        let Scope::Image { decided_by } = scope else {
            return Self { tokens, layout, modality, span: 1, decided_by: 0 };
        };
        let [rows, width] = tokens.dims();
        let images = rows / layout.tokens;
        let deciding = tokens.reshape([images, layout.tokens, width]).narrow(1, decided_by, 1);
        let of_image = |image: usize| image * layout.tokens + decided_by;
        Self {
            tokens: deciding.reshape([images, width]),
            layout: Layout { tokens: 1, ..layout },
            modality: modality.map(|all| (0..images).map(|image| all[of_image(image)]).collect()),
            span: layout.tokens,
            decided_by,
        }
    }

    /// The row of the token matrix that a routed row stands for.
    pub(super) fn deciding_token(&self, unit: usize) -> usize {
        unit * self.span + self.decided_by
    }
}

/// The tokens that ask a gate, in routing order, and how many of them are in each group.
pub(super) struct Asked {
    pub(super) tokens: Vec<u32>,
    pub(super) bounds: Vec<usize>,
    pub(super) everyone_in_order: bool,
}

impl Asked {
    pub(super) fn new(gate: &Gate, groups: &Groups, batch: &Batch) -> Self {
        let asks = |token: &u32| match gate.askers {
            Askers::Everyone => true,
            Askers::Member(member) => batch.layout.member(*token as usize) == member,
            Askers::Modality(wanted) => {
                let modality = batch.modality.as_ref().expect("the context has modalities");
                modality[*token as usize] == wanted
            }
        };
        let mut tokens = Vec::new();
        let mut bounds = vec![0];
        for group in 0..groups.len() {
            tokens.extend(groups.tokens(group).iter().copied().filter(asks));
            bounds.push(tokens.len());
        }
        let everyone_in_order = tokens.len() == groups.order().len()
            && tokens.iter().copied().eq(0..tokens.len() as u32);
        Self { tokens, bounds, everyone_in_order }
    }
}
