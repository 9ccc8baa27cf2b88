//! Gradients that leave a backward pass block by block, instead of all at its end.

use std::{collections::HashMap, sync::Arc};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::Tensor,
};
use omma_kernels::{Listener, tap};

use crate::{layers::Block, vit::VisionTransformer};

/// Who hears the gradients of which parameters.
#[derive(Debug, Clone)]
pub(crate) struct Taps {
    listener: Arc<dyn Listener>,
    /// Places among all parameters that learn, in the order of the modules.
    places: Arc<HashMap<ParamId, usize>>,
}

impl Taps {
    /// A block whose gradients are heard when a backward pass has come to `tokens`, which enter it.
    pub(crate) fn on(&self, block: &Block, tokens: &Tensor<2>) -> Block {
        struct Hear<'a>(&'a Taps, &'a Tensor<2>);
        impl ModuleMapper for Hear<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Self(taps, tokens) = self;
                match taps.places.get(&param.id) {
                    Some(place) => {
                        param.map(|values| tap(values, *place, tokens, taps.listener.clone()))
                    }
                    None => param,
                }
            }
        }
        block.clone().map(&mut Hear(self, tokens))
    }
}

impl VisionTransformer {
    /// The same model, of whose blocks a listener hears the gradients while the backward pass goes on, the last block's
    /// first; they are then not among those that it returns. Not for models that read texts: what both
    /// modalities pass is used twice.
    ///
    /// The listener knows parameters by their places among all that learn, in the order of the modules.
    pub fn heard_by(mut self, listener: Arc<dyn Listener>) -> Self {
        struct Places(HashMap<ParamId, usize>);
        impl ModuleVisitor for Places {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if param.val().is_require_grad() {
                    self.0.insert(param.id, self.0.len());
                }
            }
        }
        if self.text.is_some() {
            return self;
        }
        let mut places = Places(HashMap::new());
        self.visit(&mut places);
        self.encoder.taps = Some(Taps { listener, places: Arc::new(places.0) });
        self
    }
}
