//! Feed-forward networks: one, or a stack of experts.

use std::ops::Range;

use burn::{
    module::{Module, Param},
    tensor::{Device, Int, Shape, Tensor, TensorData},
};
use omma_base::transfer;
use omma_kernels::{
    Activation, Dispatch, Dropout, ExpertParameters, expert_mlp, mlp, soft_moe, soft_moe_by,
};
use omma_routing::{Seed, SoftPlan, SparsePlan};
use rand::RngExt;

use super::{
    init::{normal, xavier, xavier_of_experts},
    spread::{Call, ExpertGroup, Spread},
};
use crate::{config::ExpertStart, error::Result};

/// Standard deviation of the biases of a fresh MLP (ViT).
pub(super) const BIAS_DEVIATION: f32 = 1e-6;

/// The sizes of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlpConfig {
    /// Features of a token, `D`.
    pub width: usize,
    /// Features of the hidden layer, `H`.
    pub hidden: usize,
    /// The nonlinearity between the two products.
    pub activation: Activation,
    /// Probability of a hidden value to be dropped while training.
    pub dropout: f32,
}

/// A dense feed-forward network.
#[derive(Module, Debug)]
pub struct Mlp {
    /// `[D, H]`.
    pub up: Param<Tensor<2>>,
    /// `[H]`.
    pub up_bias: Param<Tensor<1>>,
    /// `[H, D]`.
    pub down: Param<Tensor<2>>,
    /// `[D]`.
    pub down_bias: Param<Tensor<1>>,
    #[module(skip)]
    config: MlpConfig,
}

impl MlpConfig {
    /// Xavier uniform products, biases near zero.
    pub fn init(&self, seed: Seed, device: &Device) -> Mlp {
        let Self { width, hidden, .. } = *self;
        Mlp {
            up: xavier([width, hidden], (width, hidden), seed.named("up"), device),
            up_bias: normal([hidden], BIAS_DEVIATION, seed.named("up_bias"), device),
            down: xavier([hidden, width], (hidden, width), seed.named("down"), device),
            down_bias: normal([width], BIAS_DEVIATION, seed.named("down_bias"), device),
            config: *self,
        }
    }

    /// Dropout of this network under the step's seed; none without a seed.
    pub(crate) fn dropout_in(&self, seed: Option<Seed>) -> Option<Dropout> {
        let seed = seed.filter(|_| self.dropout > 0.0)?;
        Some(Dropout { rate: self.dropout, seed: seed.named("dropout").rng().random() })
    }
}

impl Mlp {
    /// What this network is.
    pub fn config(&self) -> &MlpConfig {
        &self.config
    }

    /// - `x`: `[..., D]`; `dropout`: the step's seed, where hidden values are dropped
    /// - returns: `[..., D]`
    pub fn forward<const R: usize>(&self, x: Tensor<R>, dropout: Option<Seed>) -> Tensor<R> {
        let up = (self.up.val(), self.up_bias.val());
        let down = (self.down.val(), self.down_bias.val());
        mlp(x, up, down, self.config.activation, self.config.dropout_in(dropout))
    }
}

/// Which experts, and their sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsConfig {
    /// The numbers of the experts that have parameters, in increasing order; all of `0..E` unless some are
    /// gone.
    pub experts: Vec<usize>,
    /// What each of them is.
    pub mlp: MlpConfig,
    /// What they start from.
    pub start: ExpertStart,
}

/// The feed-forward networks of the `E'` experts that are there, stacked; of experts that are spread over ranks, those
/// of one rank.
#[derive(Module, Debug)]
pub struct Experts {
    /// `[E', D, H]`.
    pub up: Param<Tensor<3>>,
    /// `[E', H]`, of experts with biases.
    pub up_bias: Option<Param<Tensor<2>>>,
    /// `[E', H, D]`.
    pub down: Param<Tensor<3>>,
    /// `[E', D]`, of experts with biases.
    pub down_bias: Option<Param<Tensor<2>>>,
    #[module(skip)]
    config: ExpertsConfig,
    /// Where the others are, if not here.
    #[module(skip)]
    spread: Option<Spread>,
}

impl ExpertsConfig {
    /// Products drawn as for [`MlpConfig::init`], once for all experts or for each; biases near zero.
    pub fn init(&self, seed: Seed, device: &Device) -> Experts {
        let Self { mlp: MlpConfig { width, hidden, .. }, start, .. } = *self;
        let experts = self.experts.len();
        let up = [experts, width, hidden];
        let down = [experts, hidden, width];
        let bias = |size: usize, name: &str| {
            Some(normal([experts, size], BIAS_DEVIATION, seed.named(name), device))
        };
        Experts {
            up: xavier_of_experts(up, start, seed.named("up"), device),
            up_bias: bias(hidden, "up_bias"),
            down: xavier_of_experts(down, start, seed.named("down"), device),
            down_bias: bias(width, "down_bias"),
            config: self.clone(),
            spread: None,
        }
    }
}

impl Experts {
    /// The numbers of the experts that are there, on whatever rank, in increasing order.
    pub(crate) fn present(&self) -> &[usize] {
        &self.config.experts
    }

    /// Those of them, by their places, that are on this rank; nothing where all are.
    pub(crate) fn own_of_spread(&self) -> Option<Range<usize>> {
        let spread = self.spread.as_ref()?;
        Some(spread.group.own(spread.experts))
    }

    /// The ranks that they are on, if these are several.
    pub(crate) fn group(&self) -> Option<&ExpertGroup> {
        self.spread.as_ref().map(|spread| &spread.group)
    }

    /// Keeps the experts of this rank.
    ///
    /// - `layer`: the number of this layer among those of the model
    pub(crate) fn spread_over(self, group: &ExpertGroup, layer: usize) -> Self {
        let experts = self.config.experts.len();
        let own = group.own(experts);
        let rate = self.config.mlp.dropout;
        Self {
            up: part(self.up, &own),
            up_bias: self.up_bias.map(|bias| part(bias, &own)),
            down: part(self.down, &own),
            down_bias: self.down_bias.map(|bias| part(bias, &own)),
            config: self.config,
            spread: Some(Spread { group: group.clone(), layer, experts, rate }),
        }
    }

    /// Runs the experts of this rank for others that have called.
    pub(crate) fn serve(&self, call: &Call) {
        let Some(spread) = &self.spread else { return };
        let nothing = Tensor::zeros([0, self.config.mlp.width], &self.up.val().device());
        spread.serve(nothing, call, |tokens, weights, dispatch, dropout| {
            self.run_own(tokens, weights, dispatch, dropout)
        });
    }

    /// The same experts, whose products are all that they have.
    pub(crate) fn without_biases(self) -> Self {
        Self { up_bias: None, down_bias: None, ..self }
    }

    fn parameters(&self) -> ExpertParameters {
        let (up, down) = (self.up.val(), self.down.val());
        let bias = |own: &Option<Param<Tensor<2>>>, [experts, _, outputs]: [usize; 3]| match own {
            Some(own) => own.val(),
            None => Tensor::zeros([experts, outputs], &up.device()),
        };
        ExpertParameters {
            up_bias: bias(&self.up_bias, up.dims()),
            down_bias: bias(&self.down_bias, down.dims()),
            up,
            down,
        }
    }

    /// Runs the experts on a sparse plan.
    ///
    /// - `tokens`: `[N, D]`
    /// - returns: `[N, D]`
    pub fn forward_sparse(
        &self,
        tokens: Tensor<2>,
        plan: &SparsePlan,
        dropout: Option<Seed>,
    ) -> Result<Tensor<2>> {
        let rows = plan.expanded();
        let [n_tokens, _] = tokens.dims();
        let dispatch = Dispatch::new(self.own(rows.offsets()), rows.tokens(), n_tokens);
        self.run(tokens, rows.weights().clone(), &dispatch, dropout)
    }

    /// Runs the experts on a sparse plan and keeps the contributions of a token's choices apart
    /// (multi-pred, paper 000 eq. 3). A dropped choice contributes zeros.
    ///
    /// - `tokens`: `[N, D]`
    /// - returns: one `[N, D]` for each of `choices` choices
    pub fn forward_choices(
        &self,
        tokens: Tensor<2>,
        plan: &SparsePlan,
        choices: usize,
        dropout: Option<Seed>,
    ) -> Result<Vec<Tensor<2>>> {
        let rows = plan.expanded();
        let [n_tokens, _] = tokens.dims();
        let of_choice = |choice: usize| {
            let is_it = |row: &usize| rows.choices()[*row] as usize == choice;
            let kept: Vec<usize> = (0..rows.n_assignments()).filter(is_it).collect();
            let before = |end: &usize| kept.partition_point(|row| row < end);
            let offsets: Vec<usize> = self.own(rows.offsets()).iter().map(before).collect();
            let of_tokens: Vec<u32> = kept.iter().map(|row| rows.tokens()[*row]).collect();
            let dispatch = Dispatch::new(offsets, of_tokens, n_tokens);
            let index: Vec<i32> = kept.iter().map(|row| *row as i32).collect();
            transfer::brought(&index);
            let index = Tensor::<1, Int>::from_data(index.as_slice(), &tokens.device());
            let weights = rows.weights().clone().select(0, index);
            let dropout = dropout.map(|seed| seed.named("choice").numbered(choice as u64));
            self.run(tokens.clone(), weights, &dispatch, dropout)
        };
        (0..choices).map(of_choice).collect()
    }

    /// `[E' + 1]`: the offsets of a plan, `[E + 1]`, for the experts that are there. The others have no rows.
    fn own(&self, offsets: &[usize]) -> Vec<usize> {
        let starts = self.config.experts.iter().map(|expert| offsets[*expert]);
        starts.chain(offsets.last().copied()).collect()
    }

    fn run(
        &self,
        tokens: Tensor<2>,
        weights: Tensor<1>,
        dispatch: &Dispatch,
        dropout: Option<Seed>,
    ) -> Result<Tensor<2>> {
        let dropout = self.config.mlp.dropout_in(dropout);
        match &self.spread {
            None => Ok(self.run_own(tokens, weights, dispatch, dropout)),
            Some(spread) => spread.run(
                tokens,
                weights,
                dispatch,
                dropout,
                |tokens, weights, dispatch, dropout| {
                    self.run_own(tokens, weights, dispatch, dropout)
                },
            ),
        }
    }

    /// Those that are here.
    fn run_own(
        &self,
        tokens: Tensor<2>,
        weights: Tensor<1>,
        dispatch: &Dispatch,
        dropout: Option<Dropout>,
    ) -> Tensor<2> {
        let MlpConfig { activation, .. } = self.config.mlp;
        expert_mlp(tokens, weights, self.parameters(), dispatch, activation, dropout)
    }

    /// Runs the experts on a soft plan, for every group those that serve it.
    ///
    /// - `tokens`: `[N, D]`
    /// - returns: `[N, D]`
    pub fn forward_soft(
        &self,
        tokens: Tensor<2>,
        plan: &SoftPlan,
        dropout: Option<Seed>,
    ) -> Result<Tensor<2>> {
        let [rows, width] = tokens.dims();
        let groups = plan.n_groups();
        // The plan's columns are those of the experts that are left.
        let column = |expert: &usize| plan.experts().iter().position(|other| other == expert);
        let columns = |experts: &Vec<usize>| experts.iter().filter_map(column).collect::<Vec<_>>();
        let run: Option<Vec<Vec<usize>>> = plan.run().map(|run| run.iter().map(columns).collect());
        let tokens = tokens.reshape([groups, rows / groups, width]);
        let tables = (plan.dispatch().clone(), plan.combine().clone());
        let output = match &self.spread {
            None => soft_moe(
                tokens,
                tables.0,
                tables.1,
                self.of(plan.experts()),
                run.as_deref(),
                self.config.mlp.activation,
                self.config.mlp.dropout_in(dropout),
            ),
            // Slots are the rows that travel.
            Some(_) => {
                let columns = plan.experts().len();
                soft_moe_by(tokens, tables, columns, run.as_deref(), |slots, weights, routes| {
                    let routes = self.with_those_left_out(routes, plan.experts());
                    self.run(slots, weights, &routes, dropout)
                })?
            }
        };
        Ok(output.reshape([rows, width]))
    }

    /// Routes to some experts as routes to all that are there.
    fn with_those_left_out(&self, routes: &Dispatch, experts: &[usize]) -> Dispatch {
        let before = |expert: &usize| experts.partition_point(|other| other < expert);
        let starts = self.config.experts.iter().map(|expert| routes.offsets()[before(expert)]);
        let offsets: Vec<usize> = starts.chain(routes.offsets().last().copied()).collect();
        Dispatch::new(offsets, routes.tokens(), routes.n_tokens())
    }

    /// The parameters of some experts.
    fn of(&self, experts: &[usize]) -> ExpertParameters {
        let all = self.parameters();
        if experts == self.config.experts {
            return all;
        }
        let row = |expert: &usize| self.config.experts.binary_search(expert).ok();
        let index: Vec<i32> = experts.iter().filter_map(row).map(|row| row as i32).collect();
        transfer::brought(&index);
        let index = Tensor::from_data(index.as_slice(), &all.up.device());
        ExpertParameters {
            up: all.up.select(0, index.clone()),
            up_bias: all.up_bias.select(0, index.clone()),
            down: all.down.select(0, index.clone()),
            down_bias: all.down_bias.select(0, index),
        }
    }
}

/// Some of a parameter's first axis. Values that were not drawn yet are 0: another rank has them.
fn part<const R: usize>(param: Param<Tensor<R>>, own: &Range<usize>) -> Param<Tensor<R>> {
    let (id, device) = (param.id, param.lazy_device());
    let mut shape: [usize; R] = param.lazy_shape().dims();
    let size: usize = shape[1..].iter().product();
    shape[0] = own.len();
    if !param.is_initialized() {
        let zeros = move |device: &Device, grad: bool| {
            Tensor::<R>::zeros(shape, device).set_require_grad(grad)
        };
        return Param::uninitialized(id, zeros, device, true, Shape::from(shape));
    }
    let all: Vec<f32> = param.val().detach().try_into_vec_as().expect("parameters are floats");
    let values = all[own.start * size..own.end * size].to_vec();
    param.transform_for_load(Tensor::from_data(TensorData::new(values, shape), &device), id)
}
