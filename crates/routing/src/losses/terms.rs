//! Which losses a router has, and their values.

use std::ops::Range;

use burn::tensor::{Device, Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use super::{
    balance_loss, global_entropy_loss, global_entropy_loss_of, importance_loss, information_loss,
    load_loss, local_entropy_loss, marginal, merged_entropy_loss, modality_information_loss,
    target_entropy_loss, z_loss,
};
use crate::plan::indices;

/// An auxiliary loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Loss {
    /// [`importance_loss`] of the clean gates.
    Importance,
    /// [`load_loss`]; only where noise was drawn.
    Load,
    /// [`balance_loss`] of the gates that route.
    Balance,
    /// [`z_loss`].
    Z,
    /// [`local_entropy_loss`].
    LocalEntropy,
    /// [`global_entropy_loss`], with the soft minimum `τ` of the entropy, if any.
    GlobalEntropy {
        /// `τ`, in nats.
        #[serde(default)]
        threshold: Option<f64>,
    },
    /// [`global_entropy_loss_of`] the mean of the modalities' marginals.
    GlobalEntropyOfModalities {
        /// `τ`, in nats.
        #[serde(default)]
        threshold: Option<f64>,
    },
    /// [`information_loss`].
    Information,
    /// [`modality_information_loss`].
    ModalityInformation,
    /// [`target_entropy_loss`].
    TargetEntropy,
    /// [`merged_entropy_loss`].
    MergedEntropy,
}

impl Loss {
    /// Whether the loss depends on `K`, which only token choice has.
    pub fn needs_choices(&self) -> bool {
        matches!(self, Self::Load | Self::TargetEntropy | Self::MergedEntropy)
    }

    /// Whether the loss compares modalities, which all must share their experts.
    pub fn compares_modalities(&self) -> bool {
        matches!(self, Self::GlobalEntropyOfModalities { .. } | Self::ModalityInformation)
    }
}

/// A weighted loss on all tokens or on those of one modality.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossTerm {
    /// What is measured.
    pub loss: Loss,
    /// Its factor in the total; a term of weight 0 is not computed.
    pub weight: f64,
    /// Only the tokens of this modality count; groups and gates without any do not count. Losses that
    /// compare modalities look at all of them.
    #[serde(default)]
    pub modality: Option<usize>,
}

impl LossTerm {
    /// A loss on all tokens.
    pub fn new(loss: Loss, weight: f64) -> Self {
        Self { loss, weight, modality: None }
    }

    /// The same on the tokens of one modality.
    pub fn on_modality(self, modality: usize) -> Self {
        Self { modality: Some(modality), ..self }
    }

    /// V-MoE's losses: importance and load, averaged, times 0.01 (paper 000 App. C.2).
    pub fn vmoe() -> Vec<Self> {
        vec![Self::new(Loss::Importance, 0.005), Self::new(Loss::Load, 0.005)]
    }

    /// LIMoE's losses (paper 002 App. B): importance, load, z, the local entropy of texts, and the global
    /// entropies of texts and of images with thresholds given as the number of experts that shall be used
    /// at least, `S = e^τ`. Their average, times 0.04 (B.1).
    pub fn limoe(text_experts: f64, image_experts: f64) -> Vec<Self> {
        let (images, texts) = (0, 1);
        let global = |experts: f64| Loss::GlobalEntropy { threshold: Some(experts.ln()) };
        let terms = vec![
            Self::new(Loss::Importance, 1.0),
            Self::new(Loss::Load, 1.0),
            Self::new(Loss::Z, 1.0),
            Self::new(Loss::LocalEntropy, 1.0).on_modality(texts),
            Self::new(global(text_experts), 1.0).on_modality(texts),
            Self::new(global(image_experts), 1.0).on_modality(images),
        ];
        Self::averaged(terms, 0.04)
    }

    /// The average of losses, times a weight.
    pub fn averaged(terms: Vec<Self>, weight: f64) -> Vec<Self> {
        let each = weight / terms.len().max(1) as f64;
        terms.into_iter().map(|term| Self { weight: each, ..term }).collect()
    }
}

/// The value of one term.
#[derive(Debug, Clone)]
pub struct LossValue {
    /// Which term.
    pub term: LossTerm,
    /// `[G, M]`: unweighted, for every group and gate; 0 where nobody is counted.
    pub values: Tensor<2>,
    /// Groups and gates with tokens that count.
    pub counted: usize,
}

/// The values of a router's auxiliary losses for one batch.
#[derive(Debug, Clone, Default)]
pub struct AuxiliaryLosses {
    /// The terms that applied.
    pub terms: Vec<LossValue>,
}

impl AuxiliaryLosses {
    /// `[G, M]`: the weighted sum for every group and gate; nothing if no term applied.
    pub fn per_group(&self) -> Option<Tensor<2>> {
        let weighted = self.terms.iter().map(|value| value.values.clone() * value.term.weight);
        weighted.reduce(|sum, term| sum + term)
    }

    /// `[1]`: the weighted sum of the terms, each averaged over the groups and gates that have tokens
    /// for it; nothing if no term applied.
    pub fn total(&self) -> Option<Tensor<1>> {
        let means = self.terms.iter().map(|value| {
            value.values.clone().sum() * (value.term.weight / value.counted.max(1) as f64)
        });
        means.reduce(|sum, term| sum + term)
    }

    /// Computes every term with a weight on every gate.
    pub(crate) fn new(
        terms: &[LossTerm],
        gates: &[GateTensors],
        modality: Option<&[usize]>,
        k: Option<usize>,
    ) -> Self {
        let terms = terms.iter().filter(|term| term.weight > 0.0);
        let terms = terms.filter_map(|term| {
            if term.loss.compares_modalities() {
                let values = across_modalities(term, gates, modality?);
                let counted = values.dims()[0];
                return Some(LossValue { term: *term, values, counted });
            }
            let gates: Vec<GateTensors> = gates
                .iter()
                .map(|gate| match (term.modality, modality) {
                    (Some(wanted), Some(modality)) => gate.only(wanted, modality),
                    _ => gate.clone(),
                })
                .collect();
            let values = gates.iter().map(|gate| gate.per_group(|part| part.loss(&term.loss, k)));
            let values = Tensor::stack::<2>(values.collect::<Option<Vec<_>>>()?, 1);
            let counted = gates.iter().map(GateTensors::busy_groups).sum();
            Some(LossValue { term: *term, values, counted })
        });
        Self { terms: terms.collect() }
    }
}

/// The differentiable values of one gate for the tokens that called it.
#[derive(Debug, Clone)]
pub(crate) struct GateTensors {
    /// Logits without noise, `[rows, columns]`.
    pub(crate) clean: Tensor<2>,
    /// Logits with noise and the noise's standard deviation, if there is any.
    pub(crate) noisy: Option<(Tensor<2>, f64)>,
    /// Softmax of the logits that route, `[rows, columns]`.
    pub(crate) gates: Tensor<2>,
    /// The token of every row.
    pub(crate) tokens: Vec<u32>,
    /// Rows of group `g` are `bounds[g]..bounds[g + 1]`.
    pub(crate) bounds: Vec<usize>,
}

impl GateTensors {
    /// The rows of one modality.
    fn only(&self, wanted: usize, modality: &[usize]) -> Self {
        let is_wanted = |row: &usize| modality[self.tokens[*row] as usize] == wanted;
        let mut rows = Vec::new();
        let mut bounds = vec![0];
        for group in self.bounds.windows(2) {
            rows.extend((group[0]..group[1]).filter(is_wanted).map(|row| row as u32));
            bounds.push(rows.len());
        }
        if rows.len() == self.tokens.len() {
            return self.clone();
        }
        let index = indices(&rows, &self.clean.device());
        let select = |tensor: &Tensor<2>| tensor.clone().select(0, index.clone());
        Self {
            clean: select(&self.clean),
            noisy: self.noisy.as_ref().map(|(noisy, sigma)| (select(noisy), *sigma)),
            gates: select(&self.gates),
            tokens: rows.iter().map(|row| self.tokens[*row as usize]).collect(),
            bounds,
        }
    }

    /// One value per group, `[G]`: all groups at once where they have the same size, otherwise one
    /// by one. An empty group has the value 0.
    fn per_group(&self, loss: impl Fn(Segment) -> Option<Tensor<1>>) -> Option<Tensor<1>> {
        let groups = self.bounds.len() - 1;
        let size = self.bounds[1];
        if size > 0 && self.bounds.windows(2).all(|group| group[1] - group[0] == size) {
            return loss(Segment { gate: self, rows: 0..self.tokens.len(), groups });
        }
        let values = self.bounds.windows(2).map(|group| {
            if group[0] == group[1] {
                Some(Tensor::zeros([1], &self.device()))
            } else {
                loss(Segment { gate: self, rows: group[0]..group[1], groups: 1 })
            }
        });
        Some(Tensor::cat(values.collect::<Option<Vec<_>>>()?, 0))
    }

    /// Groups that have tokens.
    fn busy_groups(&self) -> usize {
        self.bounds.windows(2).filter(|group| group[0] < group[1]).count()
    }

    fn device(&self) -> Device {
        self.clean.device()
    }
}

/// Groups of equal size that lie next to each other.
struct Segment<'a> {
    gate: &'a GateTensors,
    rows: Range<usize>,
    groups: usize,
}

impl Segment<'_> {
    /// `[rows, E]` to `[G, S, E]`.
    fn cut(&self, tensor: &Tensor<2>) -> Tensor<3> {
        let [_, columns] = tensor.dims();
        let rows = tensor.clone().narrow(0, self.rows.start, self.rows.len());
        rows.reshape([self.groups, self.rows.len() / self.groups, columns])
    }

    /// `[G]`; nothing where the loss is not defined.
    fn loss(&self, loss: &Loss, k: Option<usize>) -> Option<Tensor<1>> {
        let logits = || self.cut(&self.gate.clean);
        Some(match loss {
            Loss::Importance => importance_loss(softmax(logits(), 2)),
            Loss::Load => {
                let (noisy, sigma) = self.gate.noisy.as_ref()?;
                load_loss(logits(), self.cut(noisy), k?, *sigma)
            }
            Loss::Balance => balance_loss(self.cut(&self.gate.gates)),
            Loss::Z => z_loss(logits()),
            Loss::LocalEntropy => local_entropy_loss(logits()),
            Loss::GlobalEntropy { threshold } => global_entropy_loss(logits(), *threshold),
            Loss::Information => information_loss(logits()),
            Loss::TargetEntropy => target_entropy_loss(logits(), k?),
            Loss::MergedEntropy => merged_entropy_loss(logits(), k?),
            Loss::GlobalEntropyOfModalities { .. } | Loss::ModalityInformation => return None,
        })
    }
}

/// A loss that compares the modalities' marginals, `[G, 1]`. Every modality calls one gate, and all
/// gates have the same experts. A group that lacks a modality compares those it has.
fn across_modalities(term: &LossTerm, gates: &[GateTensors], modality: &[usize]) -> Tensor<2> {
    let groups = gates[0].bounds.len() - 1;
    let mut modalities = modality.to_vec();
    modalities.sort_unstable();
    modalities.dedup();
    let by_modality: Vec<GateTensors> = modalities
        .into_iter()
        .flat_map(|wanted| gates.iter().map(move |gate| gate.only(wanted, modality)))
        .filter(|gate| !gate.tokens.is_empty())
        .collect();
    let values = (0..groups).map(|group| {
        let marginals: Vec<Tensor<2>> = by_modality
            .iter()
            .filter(|gate| gate.bounds[group] < gate.bounds[group + 1])
            .map(|gate| {
                let rows = gate.bounds[group]..gate.bounds[group + 1];
                marginal(Segment { gate, rows, groups: 1 }.cut(&gate.clean))
            })
            .collect();
        match term.loss {
            Loss::GlobalEntropyOfModalities { threshold } => {
                let count = marginals.len() as f64;
                let sum = marginals.into_iter().reduce(|sum, marginal| sum + marginal);
                let sum = sum.expect("a group has tokens, and a token has a modality");
                global_entropy_loss_of(sum / count, threshold)
            }
            _ => modality_information_loss(&marginals),
        }
    });
    Tensor::cat(values.collect(), 0).unsqueeze_dim(1)
}
