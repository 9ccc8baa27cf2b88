//! The router: weights, and the way from tokens to a plan.

mod allocate;
mod batch;
mod context;
mod soft;
mod sparse;

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor, TensorData},
};
use omma_base::{Seed, transfer};
use rand::RngExt;
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};

pub use context::Context;

use crate::{
    allocation::Allocation,
    config::RouterConfig,
    error::{Result, RoutingError},
    gate::GateTable,
    losses::AuxiliaryLosses,
    modalities::ModalityStatistics,
    plan::Plan,
    pool::Gate,
    statistics::Statistics,
};

/// A router of any kind: one weight matrix and a [`RouterConfig`].
#[derive(Module, Debug)]
pub struct Router {
    /// `[D, columns]`: one column per expert of every gate, or for soft routing one per slot of every
    /// expert, `[D, E · P]`; less those of experts that were dropped for good.
    pub weight: Param<Tensor<2>>,
    /// `[1]`: the factor of the normalised soft form.
    pub scale: Option<Param<Tensor<1>>>,
    #[module(skip)]
    config: RouterConfig,
    #[module(skip)]
    gates: Vec<Gate>,
}

/// What a router made of a batch. Processes can say it to each other, but for what it costs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Routing {
    /// Who goes where.
    pub plan: Plan,
    /// What it costs.
    #[serde(skip)]
    pub losses: AuxiliaryLosses,
    /// The gates' values, one table per gate; empty for soft routing.
    pub tables: Vec<GateTable>,
    /// The share of tokens whose best expert was not pruned, if any was.
    pub(crate) coverage: Option<f64>,
    /// The modality of every routed row, where there are several.
    pub(crate) modality: Option<Vec<usize>>,
}

impl Routing {
    /// Load, drops, entropy, and what else tells how healthy the routing is.
    pub fn statistics(&self) -> Statistics {
        Statistics::of(self)
    }

    /// The same for the tokens of every modality by themselves; empty where there is but one.
    pub fn by_modality(&self) -> Vec<ModalityStatistics> {
        ModalityStatistics::of(self)
    }
}

impl RouterConfig {
    /// A router for tokens of `width` features, with weights drawn from a normal distribution of
    /// variance `1 / width`, cut off at two standard deviations.
    pub fn init(&self, width: usize, seed: Seed, device: &Device) -> Result<Router> {
        let columns = self.columns()?;
        let mut rng = seed.named("router").rng();
        // A normal distribution cut off at ±2 has this standard deviation.
        const STANDARD_DEVIATION: f32 = 0.879_625_7;
        let scale = (width as f32).sqrt().recip() / STANDARD_DEVIATION;
        let mut draw = || {
            loop {
                let value: f32 = rng.sample(StandardNormal);
                if value.abs() <= 2.0 {
                    return value * scale;
                }
            }
        };
        let weight: Vec<f32> = (0..width * columns).map(|_| draw()).collect();
        let weight = Tensor::from_data(TensorData::new(weight, [width, columns]), device);
        self.init_with(weight)
    }

    /// A router with the given weight, `[D, columns]`, and a scale of 1 if it has one.
    pub fn init_with(&self, weight: Tensor<2>) -> Result<Router> {
        self.check()?;
        let [width, columns] = weight.dims();
        let expected = self.columns()?;
        if columns != expected {
            let (expected, found) = (vec![width, expected], vec![width, columns]);
            return Err(RoutingError::Shape { what: "the router's weight", expected, found });
        }
        let normalised = matches!(self.allocation, Allocation::Soft(soft) if soft.normalised);
        let scale = normalised.then(|| Tensor::ones([1], &weight.device()));
        Ok(Router {
            weight: Param::from_tensor(weight),
            scale: scale.map(Param::from_tensor),
            config: self.clone(),
            gates: self.gates()?,
        })
    }

    /// Columns of the router's weight.
    pub fn columns(&self) -> Result<usize> {
        Ok(match &self.allocation {
            Allocation::Soft(soft) => self.slotted()?.len() * soft.slots,
            _ => self.gates()?.last().map_or(0, |gate| gate.columns.end),
        })
    }
}

impl RouterConfig {
    /// The experts whose slots soft routing has columns for.
    fn slotted(&self) -> Result<Vec<usize>> {
        match self.pruning.cuts_columns() {
            true => self.pruning.present(self.experts),
            false => Ok((0..self.experts).collect()),
        }
    }
}

impl Router {
    /// What this router is.
    pub fn config(&self) -> &RouterConfig {
        &self.config
    }

    /// The same weights under another configuration, for example with experts pruned.
    pub fn with_config(self, config: RouterConfig) -> Result<Self> {
        let router = config.init_with(self.weight.val())?;
        let Self { scale: fresh, config, gates, .. } = router;
        let scale = fresh.map(|fresh| self.scale.unwrap_or(fresh));
        Ok(Self { weight: self.weight, scale, config, gates })
    }

    /// Routes a batch.
    ///
    /// - `tokens`: `X [N, D]`, with rows as `context.layout` says
    pub fn route(&self, tokens: Tensor<2>, context: &Context) -> Result<Routing> {
        context.check(&self.config)?;
        let [rows, width] = tokens.dims();
        let [expected_width, columns] = self.weight.dims();
        let (expected, found) = (vec![context.layout.rows(), expected_width], vec![rows, width]);
        if rows == 0 {
            return Err(RoutingError::EmptyBatch);
        }
        if expected != found {
            return Err(RoutingError::Shape { what: "the tokens", expected, found });
        }
        if rows.saturating_mul(columns) > i32::MAX as usize {
            return Err(RoutingError::TooLarge { tokens: rows, columns });
        }
        match &self.config.allocation {
            Allocation::Soft(soft) => self.route_soft(soft, tokens, context),
            _ => self.route_sparse(tokens, context),
        }
    }
}

/// The values of a tensor, on the host.
fn host<const R: usize>(tensor: &Tensor<R>) -> Vec<f32> {
    let values: Vec<f32> =
        tensor.clone().try_into_vec_as().expect("a tensor of floats can be read");
    transfer::fetched(&values);
    values
}

/// Whether a device has found all values finite, by one number that leaves it. On the CPU values are looked at where
/// they are, and nothing is said here.
fn is_finite_on_device(values: &Tensor<2>) -> bool {
    if values.device() == Device::flex() {
        return false;
    }
    let sum: f32 = values.clone().abs().sum().into_scalar();
    transfer::fetched(&[sum]);
    sum.is_finite()
}

/// Fails on the first value that is not finite, naming the token and the expert that the value's row
/// and column stand for.
fn check_finite(
    logits: &[f32],
    columns: usize,
    token: impl Fn(usize) -> usize,
    expert: impl Fn(usize) -> usize,
) -> Result<()> {
    match logits.iter().position(|logit| !logit.is_finite()) {
        None => Ok(()),
        Some(cell) => Err(RoutingError::NonFiniteLogit {
            token: token(cell / columns),
            expert: expert(cell % columns),
            value: logits[cell],
        }),
    }
}
