//! What of a batch is routed, and who calls which gate.

use burn::tensor::Tensor;

use super::Context;
use crate::{
    error::{Result, RoutingError},
    layout::{Groups, Layout, Scope, Sequences},
    pool::{Callers, Gate},
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
    /// Fails where images are to decide and there are other sequences beside them.
    pub(super) fn new(tokens: Tensor<2>, context: &Context, scope: Scope) -> Result<Self> {
        let layout = context.layout.clone();
        let modality = context.modalities();
        let Scope::Image { decided_by } = scope else {
            return Ok(Self { tokens, layout, modality, span: 1, decided_by: 0 });
        };
        let Some(kind) = layout.only_kind() else {
            let (what, kinds) = ("one decision per image", layout.kinds().len());
            return Err(RoutingError::SeveralKinds { what, kinds });
        };
        let [rows, width] = tokens.dims();
        let images = rows / kind.tokens;
        let deciding = tokens.reshape([images, kind.tokens, width]).narrow(1, decided_by, 1);
        let of_image = |image: usize| image * kind.tokens + decided_by;
        Ok(Self {
            tokens: deciding.reshape([images, width]),
            layout: Layout::of(vec![Sequences { tokens: 1, ..kind }]).tiled(layout.members()),
            modality: modality.map(|all| (0..images).map(|image| all[of_image(image)]).collect()),
            span: kind.tokens,
            decided_by,
        })
    }

    /// The row of the token matrix that a routed row stands for.
    pub(super) fn deciding_token(&self, unit: usize) -> usize {
        unit * self.span + self.decided_by
    }
}

/// The tokens that call a gate, in routing order, and how many of them are in each group.
pub(super) struct Calls {
    pub(super) tokens: Vec<u32>,
    pub(super) bounds: Vec<usize>,
    pub(super) everyone_in_order: bool,
}

impl Calls {
    pub(super) fn new(gate: &Gate, groups: &Groups, batch: &Batch) -> Self {
        let calls_it = |token: &u32| match gate.callers {
            Callers::Everyone => true,
            Callers::Member(member) => batch.layout.member(*token as usize) == member,
            Callers::Modality(wanted) => {
                let modality = batch.modality.as_ref().expect("the context has modalities");
                modality[*token as usize] == wanted
            }
        };
        let mut tokens = Vec::new();
        let mut bounds = vec![0];
        for group in 0..groups.len() {
            tokens.extend(groups.tokens(group).iter().copied().filter(calls_it));
            bounds.push(tokens.len());
        }
        let everyone_in_order = tokens.len() == groups.order().len()
            && tokens.iter().copied().eq(0..tokens.len() as u32);
        Self { tokens, bounds, everyone_in_order }
    }
}
