//! Experts that live on several ranks.
//!
//! Every rank routes its own tokens, as if it had all experts. Rows then travel to the rank whose expert they were
//! given to, and what that makes of them travels back; gradients do the same the other way (`omma_kernels`'
//! [`to_experts`] and [`from_experts`]). Before rows travel, ranks say how many there are, or that they have nothing to
//! compute, or that something went wrong: so no rank waits for one that is not coming.

use std::{ops::Range, sync::Arc};

use burn::tensor::Tensor;
use omma_kernels::{Dispatch, Dropout, Exchange, Journey, Origin, from_experts, to_experts};
use omma_ranks::World;

use crate::{
    error::{ModelError, Result},
    spread::experts_of_rank,
};

/// What a rank says before rows travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// Rows for the experts of a layer, by its number among those of the model.
    Rows { layer: usize },
    /// Nothing to compute of its own; its experts are there for the others.
    Idle,
    /// A forward pass is done.
    Ready,
    /// Something went wrong.
    Fault,
}

/// What a rank has heard of another.
#[derive(Debug, Clone)]
struct Heard {
    word: Word,
    /// The stream of dropout, where values are dropped.
    dropout: Option<u64>,
    /// For every expert of this rank, how many rows it gets, and the place of the first in the other's dispatch.
    rows: Vec<(usize, usize)>,
}

/// Numbers of a message beside those of the experts.
const HEAD: usize = 4;

/// The ranks that have the experts of a model between them, as one of them sees them.
#[derive(Debug, Clone)]
pub struct ExpertGroup {
    world: World,
    /// The most experts that a rank has in any layer: messages are of one size.
    room: usize,
}

impl Exchange for ExpertGroup {
    fn swap(&self, values: Vec<f32>, sent: &[usize], received: &[usize]) -> Vec<f32> {
        self.world.all_to_all(values, sent, received)
    }
}

impl ExpertGroup {
    /// - `world`: the ranks, each of which gets about as many experts of every layer
    /// - `experts`: of the layer that has most
    pub(crate) fn new(world: World, experts: usize) -> Self {
        let room = experts.div_ceil(world.size());
        Self { world, room }
    }

    /// Those of `experts` that a rank has.
    pub(crate) fn of_rank(&self, rank: usize, experts: usize) -> Range<usize> {
        experts_of_rank(rank, self.world.size(), experts)
    }

    /// Which of `experts` are here.
    pub(crate) fn own(&self, experts: usize) -> Range<usize> {
        self.of_rank(self.world.rank(), experts)
    }

    /// Ends a forward pass, where all ranks come to its end; an error of one is one of all, which all learn of before
    /// they begin with the backward pass.
    pub fn ready(&self) -> Result<()> {
        self.speak(Word::Ready, None, |_| Vec::new()).map(|_| ())
    }

    /// Says that this rank does not come to the end of a forward pass, unless that is [what it has
    /// heard](ModelError::Elsewhere) of another.
    pub fn fail(&self) {
        let heard = self.speak(Word::Fault, None, |_| Vec::new());
        heard.expect("who has failed does not fail by what others say");
    }

    /// Says something to all, and hears what all say; fails where something went wrong with one of them.
    ///
    /// - `rows`: for every expert of a rank, how many rows it gets, and the place of the first
    fn speak(
        &self,
        own: Word,
        dropout: Option<u64>,
        rows: impl Fn(usize) -> Vec<(usize, usize)>,
    ) -> Result<Vec<Heard>> {
        let (ranks, size) = (self.world.size(), HEAD + 2 * self.room);
        let (kind, layer) = match own {
            Word::Rows { layer } => (0, layer),
            Word::Idle => (1, 0),
            Word::Ready => (2, 0),
            Word::Fault => (3, 0),
        };
        let head = [kind, layer as u64, u64::from(dropout.is_some()), dropout.unwrap_or(0)];
        let message = |rank: usize| {
            let rows = rows(rank).into_iter().flat_map(|(count, first)| [count, first]);
            let mut message: Vec<u64> = head.into_iter().chain(rows.map(|n| n as u64)).collect();
            message.resize(size, 0);
            message
        };
        let messages: Vec<f32> = (0..ranks).flat_map(|rank| in_parts(&message(rank))).collect();
        let counts = vec![PARTS * size; ranks];
        let all = self.world.all_to_all(messages, &counts, &counts);
        let heard = all.chunks_exact(PARTS * size).map(|message| {
            let numbers = of_parts(message);
            let word = match numbers[0] {
                0 => Word::Rows { layer: numbers[1] as usize },
                1 => Word::Idle,
                2 => Word::Ready,
                _ => Word::Fault,
            };
            let rows = numbers[HEAD..].chunks_exact(2);
            Heard {
                word,
                dropout: (numbers[2] == 1).then_some(numbers[3]),
                rows: rows.map(|pair| (pair[0] as usize, pair[1] as usize)).collect(),
            }
        });
        let heard: Vec<Heard> = heard.collect();
        match heard.iter().any(|heard| heard.word == Word::Fault) && own != Word::Fault {
            true => Err(ModelError::Elsewhere),
            false => Ok(heard),
        }
    }

    /// What the others compute, for a rank that has nothing to: the number of a layer, and what was said; nothing
    /// when no rank has.
    pub(crate) fn called(&self) -> Result<Option<Call>> {
        let heard = self.speak(Word::Idle, None, |_| Vec::new())?;
        let layer = heard.iter().find_map(|heard| match heard.word {
            Word::Rows { layer } => Some(layer),
            _ => None,
        });
        Ok(layer.map(|layer| Call { layer, heard }))
    }
}

/// That other ranks have rows for a layer.
pub(crate) struct Call {
    /// Its number among those of the model.
    pub(crate) layer: usize,
    heard: Vec<Heard>,
}

/// Numbers that a value of a message has room for are those of 16 bits.
const PARTS: usize = 4;

/// Whole numbers as values that any link carries.
fn in_parts(numbers: &[u64]) -> Vec<f32> {
    let parts = |number: &u64| [0, 16, 32, 48].map(|shift| f32::from((number >> shift) as u16));
    numbers.iter().flat_map(parts).collect()
}

fn of_parts(values: &[f32]) -> Vec<u64> {
    let number = |parts: &[f32]| parts.iter().rev().fold(0, |sum, part| sum << 16 | *part as u64);
    values.chunks_exact(PARTS).map(number).collect()
}

/// A layer whose experts are spread.
#[derive(Debug, Clone)]
pub(super) struct Spread {
    pub(super) group: ExpertGroup,
    /// Its number among those of the model.
    pub(super) layer: usize,
    /// Experts that are there in all.
    pub(super) experts: usize,
    /// Of dropout.
    pub(super) rate: f32,
}

impl Spread {
    /// Runs the experts of all ranks on a dispatch of this rank's tokens, and those of this rank on everybody's.
    ///
    /// - `tokens`: `[N, D]`; `weights`: `[rows]`
    /// - `own`: runs the experts of this rank
    /// - returns: `[N, D]`
    pub(super) fn run(
        &self,
        tokens: Tensor<2>,
        weights: Tensor<1>,
        dispatch: &Dispatch,
        dropout: Option<Dropout>,
        own: impl FnOnce(Tensor<2>, Tensor<1>, &Dispatch, Option<Dropout>) -> Tensor<2>,
    ) -> Result<Tensor<2>> {
        let word = Word::Rows { layer: self.layer };
        let heard = self.group.speak(word, dropout.map(|dropout| dropout.seed), |rank| {
            let experts = self.group.of_rank(rank, self.experts);
            let offsets = &dispatch.offsets()[experts.start..=experts.end];
            offsets.windows(2).map(|pair| (pair[1] - pair[0], pair[0])).collect()
        })?;
        Ok(self.travel(tokens, weights, dispatch, &heard, own))
    }

    /// The same without tokens of its own.
    ///
    /// - `nothing`: `[0, D]`
    pub(super) fn serve(
        &self,
        nothing: Tensor<2>,
        call: &Call,
        own: impl FnOnce(Tensor<2>, Tensor<1>, &Dispatch, Option<Dropout>) -> Tensor<2>,
    ) {
        let weights = Tensor::zeros([0], (&nothing.device(), nothing.dtype()));
        let dispatch = Dispatch::new(vec![0; self.experts + 1], Vec::new(), 0);
        self.travel(nothing, weights, &dispatch, &call.heard, own);
    }

    fn travel(
        &self,
        tokens: Tensor<2>,
        weights: Tensor<1>,
        dispatch: &Dispatch,
        heard: &[Heard],
        own: impl FnOnce(Tensor<2>, Tensor<1>, &Dispatch, Option<Dropout>) -> Tensor<2>,
    ) -> Tensor<2> {
        let elsewhere = |heard: &Heard| match heard.word {
            Word::Rows { layer } => layer != self.layer,
            Word::Idle => false,
            Word::Ready | Word::Fault => true,
        };
        assert!(!heard.iter().any(elsewhere), "all ranks are in layer {}: {heard:?}", self.layer);
        let rows_of = |rank: usize| {
            let experts = self.group.of_rank(rank, self.experts);
            dispatch.offsets()[experts.end] - dispatch.offsets()[experts.start]
        };
        let sent: Vec<usize> = (0..heard.len()).map(rows_of).collect();
        let count = |heard: &Heard| heard.rows.iter().map(|(count, _)| count).sum::<usize>();
        let received: Vec<usize> = heard.iter().map(count).collect();
        let journey = Journey::new(Arc::new(self.group.clone()), sent, received);
        let arrived = to_experts(tokens, dispatch, &journey);
        let ones = Tensor::ones([journey.arriving()], (&arrived.device(), arrived.dtype()));
        let drops = heard.iter().any(|heard| heard.dropout.is_some());
        let dropout = drops.then_some(Dropout { rate: self.rate, seed: 0 });
        let here = by_expert(heard, self.group.own(self.experts).len(), journey.arriving());
        let outputs = own(arrived, ones, &here, dropout);
        from_experts(outputs, weights, dispatch, &journey)
    }
}

/// Rows that arrive lie by rank, and by expert within those of a rank; experts want them by expert.
fn by_expert(heard: &[Heard], experts: usize, arriving: usize) -> Dispatch {
    let mut first = 0;
    let mut firsts: Vec<Vec<usize>> = Vec::with_capacity(heard.len());
    for heard in heard {
        let place = |(count, _): &(usize, usize)| {
            first += count;
            first - count
        };
        firsts.push(heard.rows.iter().map(place).collect());
    }
    let (mut offsets, mut rows, mut origins) = (vec![0], Vec::with_capacity(arriving), Vec::new());
    for expert in 0..experts {
        for (heard, firsts) in heard.iter().zip(&firsts) {
            let (count, row) = heard.rows[expert];
            if count > 0 {
                let seed = heard.dropout.unwrap_or(0);
                origins.push(Origin { first: rows.len(), seed, row });
                rows.extend((firsts[expert]..firsts[expert] + count).map(|row| row as u32));
            }
        }
        offsets.push(rows.len());
    }
    Dispatch::new(offsets, rows, arriving).from_elsewhere(origins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_are_told() {
        let numbers = [0, 1, 65_535, 65_536, 1 << 40, u64::MAX, 0x0123_4567_89ab_cdef];
        assert_eq!(of_parts(&in_parts(&numbers)), numbers);
    }

    #[test]
    fn a_fault_of_one_rank_is_heard_by_all() {
        let said = omma_ranks::threads(3, |world| {
            let rank = world.rank();
            let group = ExpertGroup::new(world, 5);
            assert!(group.ready().is_ok());
            let heard = match rank {
                1 => {
                    group.fail();
                    false
                }
                _ => matches!(group.ready(), Err(ModelError::Elsewhere)),
            };
            // Whoever has nothing to do ends when nobody has.
            assert!(group.called().unwrap().is_none());
            heard
        });
        assert_eq!(said, [true, false, true]);
    }

    #[test]
    fn rows_are_sorted_by_expert_and_keep_their_origins() {
        let heard = |seed: u64, rows: Vec<(usize, usize)>| Heard {
            word: Word::Idle,
            dropout: Some(seed),
            rows,
        };
        let dispatch =
            by_expert(&[heard(7, vec![(2, 10), (1, 12)]), heard(8, vec![(0, 0), (3, 4)])], 2, 6);
        assert_eq!(dispatch.offsets(), [0, 2, 6]);
        assert_eq!(dispatch.tokens(), [0, 1, 2, 3, 4, 5]);
        let origin = |first, seed, row| Origin { first, seed, row };
        let origins = [origin(0, 7, 10), origin(2, 7, 12), origin(3, 8, 4)];
        assert_eq!(dispatch.origins(), Some(&origins[..]));
    }
}
