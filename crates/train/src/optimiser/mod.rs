//! Optimisers, written over plain slices: one pass per parameter, the same bits for any number of
//! threads. Beside that every rule has a second form of plain Burn operations, for parameters that stay on a
//! device; tests hold it to the first.
//!
//! | file | rule |
//! |---|---|
//! | `adamw.rs` | AdamW |
//! | `sgd.rs` | SGD with momentum |
//! | `adafactor.rs` | Adafactor, as optax and as big_vision have it |
//! | `lamb.rs` | LAMB |
//! | `clip.rs` | clipping by the global norm |
//! | `on_device.rs` | all of it for parameters and memories that stay on a device |
//! | `groups.rs` | which parameters decay, and how fast each layer learns |
//! | `schedule.rs` | how the learning rate goes up and down |

mod adafactor;
mod adamw;
mod clip;
mod groups;
mod lamb;
mod on_device;
mod schedule;
mod sgd;
mod sums;

use std::ops::Range;

use burn::tensor::Tensor;
use omma_ranks::Owners;
use serde::{Deserialize, Serialize};

use self::{adafactor::Adafactor, adamw::AdamW, lamb::Lamb, sgd::Sgd, sums::PART};
pub(crate) use self::{
    clip::clip,
    sums::{squares_by_part, sum_of_squares},
};
pub use self::{
    clip::clip_global_norm,
    groups::Group,
    schedule::{Schedule, ScheduleKind},
};
pub(crate) use self::{
    clip::global_norm,
    on_device::{DeviceMemories, read, row},
};

/// Which rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimiserKind {
    /// Adam with decoupled weight decay.
    #[default]
    AdamW,
    /// Stochastic gradient descent with momentum, as for fine-tuning in paper 000 App. A.3.
    Sgd,
    /// Adafactor as optax has it: updates clipped by their RMS and scaled by that of the parameter.
    Adafactor,
    /// Adafactor as big_vision and vmoe use it: with momentum, neither clipped nor scaled.
    BigVisionAdafactor,
    /// Layer-wise adaptive moments.
    Lamb,
}

/// How parameters follow their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimiserConfig {
    /// Which rule.
    pub kind: OptimiserKind,
    /// The highest learning rate of the schedule.
    pub learning_rate: f64,
    /// Decoupled weight decay, multiplied by the learning rate; not for biases, norms and embeddings.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; 0 for any.
    pub clip_norm: f64,
    /// How much slower each layer learns than the one above it; 1 for none.
    pub layer_decay: f64,
    /// The learning rate of BatchEnsemble's fast weights as a share of that of the others; paper 000
    /// App. G.1 tries 0.5, 1 and 2.
    pub fast_weight_rate: f64,
    /// Decay of the first moment, and momentum of the others.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// What keeps a division finite; without it, the rule's own.
    pub epsilon: Option<f64>,
    /// The smallest side of a matrix that Adafactor factors.
    pub factor_from: usize,
}

impl Default for OptimiserConfig {
    fn default() -> Self {
        Self {
            kind: OptimiserKind::AdamW,
            learning_rate: 1e-3,
            weight_decay: 0.05,
            clip_norm: 1.0,
            layer_decay: 1.0,
            fast_weight_rate: 1.0,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: None,
            factor_from: 32,
        }
    }
}

/// What a rule is told about one step of one parameter.
#[derive(Debug, Clone, Copy)]
struct Step<'a> {
    /// Counted from 1.
    number: u64,
    rate: f64,
    decay: f64,
    shape: &'a [usize],
}

/// How one parameter follows its gradient.
trait Rule: Send + Sync {
    /// Sizes of what it remembers about a parameter.
    fn memory(&self, shape: &[usize]) -> Vec<usize>;

    /// Whether it makes the same of parts of a parameter, cut along the first axis, as of the whole: then what it
    /// remembers of the whole is what it remembers of its parts, one after the other.
    ///
    /// - `parts`: lengths of the first axis that a part may have
    fn takes_parts(&self, _shape: &[usize], _parts: &[usize]) -> bool {
        true
    }

    /// Moves a parameter.
    fn update(&self, step: Step<'_>, values: &mut [f32], gradient: &[f32], memory: &mut [Vec<f32>]);

    /// The same on a device: where a parameter goes. Everything lies in one row, as on the host.
    fn update_on_device(
        &self,
        step: Step<'_>,
        values: Tensor<1>,
        gradient: Tensor<1>,
        memory: &mut [Tensor<1>],
    ) -> Tensor<1>;
}

/// A parameter's name and shape, and what its rule remembers.
#[derive(Debug, Clone, PartialEq)]
pub struct Memory {
    /// Of which parameter.
    pub name: String,
    shape: Vec<usize>,
    group: Group,
    /// Elements that are moved here, whole rows of the first axis: all, unless another process moves the others.
    own: Range<usize>,
    /// The rule's vectors about these, in the order that it has them.
    pub vectors: Vec<Vec<f32>>,
}

impl Memory {
    /// How many numbers the parameter has.
    pub fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// The shape of what is moved here.
    fn own_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if self.own.len() < self.size() {
            shape[0] = shape[0] * self.own.len() / self.size();
        }
        shape
    }

    /// What one remembers of the elements that are moved here, of a vector about all.
    fn own_part(&self, vector: Vec<f32>) -> Vec<f32> {
        if self.own.len() == self.size() {
            return vector;
        }
        let place = |element: usize| vector.len() * element / self.size();
        vector[place(self.own.start)..place(self.own.end)].to_vec()
    }
}

/// A rule and its memory of all parameters.
pub struct Optimiser {
    config: OptimiserConfig,
    rule: Box<dyn Rule>,
    memories: Vec<Memory>,
    steps: u64,
}

impl Optimiser {
    /// Nothing remembered yet. Parameters of a model of `depth` blocks are given by name and shape, in
    /// a fixed order.
    pub fn new<'a>(
        config: OptimiserConfig,
        depth: usize,
        parameters: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    ) -> Self {
        let group = |(name, shape)| (name, shape, Group::of(name, shape, depth, &config));
        Self::with_groups(config, parameters.into_iter().map(group))
    }

    /// The same with groups of the caller's.
    pub fn with_groups<'a>(
        config: OptimiserConfig,
        parameters: impl IntoIterator<Item = (&'a str, &'a [usize], Group)>,
    ) -> Self {
        let rule = config.rule();
        let remember = |(name, shape, group): (&str, &[usize], Group)| Memory {
            name: name.to_owned(),
            shape: shape.to_vec(),
            group,
            own: 0..shape.iter().product(),
            vectors: rule.memory(shape).into_iter().map(|size| vec![0.0; size]).collect(),
        };
        let memories = parameters.into_iter().map(remember).collect();
        Self { config, rule, memories, steps: 0 }
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What is remembered, in the order of the parameters.
    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    /// Goes on from `steps`, with what `read` says that was remembered: by the name of a parameter, the number of a
    /// vector, and its length.
    pub fn restore<E>(
        &mut self,
        steps: u64,
        mut read: impl FnMut(&str, usize, usize) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        self.steps = steps;
        for memory in &mut self.memories {
            for (number, length) in self.rule.memory(&memory.shape).into_iter().enumerate() {
                let vector = read(&memory.name, number, length)?;
                memory.vectors[number] = memory.own_part(vector);
            }
        }
        Ok(())
    }

    /// The same for a process that moves some elements of every parameter and remembers nothing of the others.
    ///
    /// - `own`: by the parameter's place; of a rule that [takes no parts](OptimiserConfig::takes_parts) all or none
    pub(crate) fn owning(mut self, own: impl Fn(usize) -> Range<usize>) -> Self {
        for (place, memory) in self.memories.iter_mut().enumerate() {
            memory.own = own(place);
            let vectors = std::mem::take(&mut memory.vectors).into_iter();
            memory.vectors = vectors.map(|vector| memory.own_part(vector)).collect();
        }
        self
    }

    /// How long a vector about a whole parameter is, of which this process may have a part.
    pub(crate) fn whole_length(&self, parameter: &str, number: usize) -> Option<usize> {
        let memory = self.memories.iter().find(|memory| memory.name == parameter)?;
        self.rule.memory(&memory.shape).get(number).copied()
    }

    /// One step at a learning rate.
    pub fn step(&mut self, rate: f64, values: &mut [Vec<f32>], gradients: &[Vec<f32>]) {
        self.steps += 1;
        for ((memory, values), gradient) in self.memories.iter_mut().zip(values).zip(gradients) {
            let (shape, own) = (memory.own_shape(), memory.own.clone());
            if own.is_empty() {
                continue;
            }
            let step = self.config.step_of(self.steps, rate, &shape, &memory.group);
            self.rule.update(step, &mut values[own.clone()], &gradient[own], &mut memory.vectors);
        }
    }
}

impl OptimiserConfig {
    /// Whether a parameter may be cut along its first axis, about evenly over so many ranks, without a difference.
    pub(crate) fn takes_parts(&self, shape: &[usize], ranks: usize) -> bool {
        let whole = shape.first().copied().unwrap_or(0);
        // Where there are fewer ranks than were asked for, parts are larger.
        let parts: Vec<usize> =
            (1..=ranks).flat_map(|ranks| [whole / ranks, whole.div_ceil(ranks)]).collect();
        self.rule().takes_parts(shape, &parts)
    }

    /// Where a parameter may be cut over ranks that each move a part of it: whole rows of its first axis, and as many
    /// as are squared and added at a time, so that its norm is added up in the same way. Nothing where it may not.
    pub(crate) fn grain(&self, shape: &[usize], ranks: usize) -> Option<usize> {
        let row = shape.iter().skip(1).product::<usize>().max(1);
        let grain = row.checked_mul(PART / greatest_common_divisor(row, PART))?;
        let size = shape.iter().product();
        let owners = Owners::cut([(size, Some(grain))], ranks);
        let parts: Vec<usize> = (0..ranks).map(|rank| owners.range(0, rank).len() / row).collect();
        let cut: Vec<usize> = parts.into_iter().filter(|rows| *rows > 0).collect();
        self.rule().takes_parts(shape, &cut).then_some(grain)
    }

    /// Numbers that are remembered of every parameter, about.
    pub(crate) fn vectors_per_parameter(&self) -> u64 {
        match self.kind {
            OptimiserKind::AdamW | OptimiserKind::Lamb => 2,
            OptimiserKind::Sgd | OptimiserKind::BigVisionAdafactor => 1,
            OptimiserKind::Adafactor => 0,
        }
    }

    /// What a rule is told about step `number` of a parameter.
    fn step_of<'a>(&self, number: u64, rate: f64, shape: &'a [usize], group: &Group) -> Step<'a> {
        let decay = if group.decays { self.weight_decay } else { 0.0 };
        Step { number, rate: rate * group.rate, decay, shape }
    }

    fn rule(&self) -> Box<dyn Rule> {
        let Self { beta1, beta2, epsilon, factor_from, .. } = *self;
        match self.kind {
            OptimiserKind::AdamW => {
                Box::new(AdamW { beta1, beta2, epsilon: epsilon.unwrap_or(1e-8) })
            }
            OptimiserKind::Sgd => Box::new(Sgd { momentum: beta1 }),
            OptimiserKind::Adafactor => Box::new(Adafactor::optax(factor_from)),
            OptimiserKind::BigVisionAdafactor => {
                Box::new(Adafactor::big_vision(factor_from, beta1))
            }
            OptimiserKind::Lamb => {
                Box::new(Lamb { beta1, beta2, epsilon: epsilon.unwrap_or(1e-6) })
            }
        }
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
