//! The MLPs of all experts on a sparse plan.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};

use crate::{
    cpu::{
        activation::Activation,
        dropout::{Dropout, Origin},
        expert_mlp::{Experts, Parameters, Routes, Sizes},
        scratch::Scratch,
    },
    fused::{Array, FusedOp, Input, apply},
    on_device, packed_weights,
};

/// Which token rows go to which expert: rows sorted by expert, with offsets.
#[derive(Debug, Clone)]
pub struct Dispatch {
    offsets: Arc<[usize]>,
    tokens: Arc<[u32]>,
    n_tokens: usize,
    origins: Option<Arc<[Origin]>>,
}

impl Dispatch {
    /// - `offsets`: `[E + 1]`, increasing from 0; rows of expert `e` are `offsets[e]..offsets[e + 1]`
    /// - `tokens`: the token of every row, below `n_tokens`
    pub fn new(
        offsets: impl Into<Arc<[usize]>>,
        tokens: impl Into<Arc<[u32]>>,
        n_tokens: usize,
    ) -> Self {
        let (offsets, tokens) = (offsets.into(), tokens.into());
        assert!(
            offsets.first() == Some(&0) && offsets.is_sorted(),
            "dispatch: offsets increase from 0"
        );
        assert_eq!(offsets.last(), Some(&tokens.len()), "dispatch: offsets end at the last row");
        assert!(tokens.iter().all(|token| (*token as usize) < n_tokens), "dispatch: tokens exist");
        Self { offsets, tokens, n_tokens, origins: None }
    }

    /// The same of rows that others have sent here; all of them come from one of `origins`, in increasing order.
    pub fn from_elsewhere(self, origins: impl Into<Arc<[Origin]>>) -> Self {
        let origins = origins.into();
        let begins = origins.first().map_or(self.tokens.len(), |origin| origin.first);
        assert!(self.tokens.is_empty() || begins == 0, "dispatch: every row has an origin");
        assert!(origins.is_sorted_by_key(|origin| origin.first), "dispatch: origins increase");
        Self { origins: Some(origins), ..self }
    }

    /// `[E + 1]`.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// `[rows]`.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens in all, whether they have rows or not.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Experts, `E`.
    pub fn n_experts(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Where rows come from that others have sent here.
    pub fn origins(&self) -> Option<&[Origin]> {
        self.origins.as_deref()
    }

    /// The same for the CPU.
    ///
    /// - `weights`: of all rows, if they have any
    pub(crate) fn routes<'a>(&'a self, weights: Option<&'a [f32]>) -> Routes<'a> {
        Routes {
            offsets: &self.offsets,
            tokens: Some(&self.tokens),
            weights,
            n_tokens: self.n_tokens,
            origins: self.origins(),
        }
    }
}

/// The stacked parameters of `E` experts.
#[derive(Debug, Clone)]
pub struct ExpertParameters {
    /// `[E, D, H]`.
    pub up: Tensor<3>,
    /// `[E, H]`.
    pub up_bias: Tensor<2>,
    /// `[E, H, D']`.
    pub down: Tensor<3>,
    /// `[E, D']`.
    pub down_bias: Tensor<2>,
}

impl ExpertParameters {
    /// The same in another type.
    pub(crate) fn cast(self, dtype: DType) -> Self {
        Self {
            up: self.up.cast(dtype),
            up_bias: self.up_bias.cast(dtype),
            down: self.down.cast(dtype),
            down_bias: self.down_bias.cast(dtype),
        }
    }

    fn check(&self, operation: &str, tokens: [usize; 2], dispatch: &Dispatch) {
        let [experts, inputs, hidden] = self.up.dims();
        let [_, _, outputs] = self.down.dims();
        assert_eq!(self.up_bias.dims(), [experts, hidden], "{operation}: up and its bias");
        assert_eq!(self.down.dims(), [experts, hidden, outputs], "{operation}: up and down");
        assert_eq!(self.down_bias.dims(), [experts, outputs], "{operation}: down and its bias");
        assert_eq!(tokens, [dispatch.n_tokens(), inputs], "{operation}: tokens");
        assert_eq!(experts, dispatch.n_experts(), "{operation}: experts");
    }
}

/// Runs every expert's MLP on its rows and adds the weighted results up for every token:
/// `y[t] = Σ_rows of t  weight · (act(x[t] · up + up_bias) · down + down_bias)`.
///
/// A token without rows gets zeros, an expert without rows costs nothing. Dropout acts on the
/// activated hidden rows.
///
/// - `tokens`: `[N, D]`; `weights`: `[rows]`
/// - returns: `[N, D']`, of the weights' type
pub fn expert_mlp(
    tokens: Tensor<2>,
    weights: Tensor<1>,
    parameters: ExpertParameters,
    dispatch: &Dispatch,
    activation: Activation,
    dropout: Option<Dropout>,
) -> Tensor<2> {
    parameters.check("expert_mlp", tokens.dims(), dispatch);
    assert_eq!(weights.dims(), [dispatch.tokens().len()], "expert_mlp: a weight per row");
    let op = ExpertMlp { dispatch: dispatch.clone(), activation, dropout };
    let inputs = [
        Input::new(&tokens),
        Input::new(&weights),
        Input::new(&parameters.up),
        Input::new(&parameters.up_bias),
        Input::new(&parameters.down),
        Input::new(&parameters.down_bias),
    ];
    apply(&op, inputs).unwrap_or_else(|| {
        on_device::expert_mlp(tokens, weights, parameters, dispatch, activation, dropout)
    })
}

#[derive(Debug, Clone)]
struct ExpertMlp {
    dispatch: Dispatch,
    activation: Activation,
    dropout: Option<Dropout>,
}

impl ExpertMlp {
    fn experts<'a>(
        &'a self,
        [_, weights, up, up_bias, down, down_bias]: &'a [Array; 6],
    ) -> Experts<'a> {
        let (up_shape, down_shape) = (up.shape(), down.shape());
        Experts {
            sizes: Sizes { inputs: up_shape[1], hidden: up_shape[2], outputs: down_shape[2] },
            parameters: Parameters {
                up: up.values(),
                up_bias: up_bias.values(),
                down: down.values(),
                down_bias: down_bias.values(),
            },
            routes: self.dispatch.routes(Some(weights.values())),
            activation: self.activation,
            dropout: self.dropout,
        }
    }
}

impl FusedOp<6> for ExpertMlp {
    type Saved = ([Array; 6], Arc<Scratch>);

    fn forward(&self, inputs: [Array; 6], keep: bool) -> (Array, Option<Self::Saved>) {
        let experts = self.experts(&inputs);
        let kept = [&inputs[2], &inputs[4]].map(|weights| packed_weights::kept(weights.values()));
        let (output, kept) = experts.forward(inputs[0].values(), kept, keep);
        let output = Array::new(output, &[self.dispatch.n_tokens, experts.sizes.outputs]);
        (output, kept.map(|kept| (inputs, Arc::new(kept))))
    }

    fn backward(
        &self,
        (inputs, kept): Self::Saved,
        gradient: Array,
        wanted: [bool; 6],
    ) -> [Option<Array>; 6] {
        let experts = self.experts(&inputs);
        let gradients = experts.backward(inputs[0].values(), &kept, gradient.values(), wanted);
        let mut gradients = gradients.into_iter().zip(&inputs);
        std::array::from_fn(|_| {
            let (values, input) = gradients.next().expect("six gradients");
            values.map(|values| Array::new(values, &input.shape()))
        })
    }
}
