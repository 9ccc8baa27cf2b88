//! The ways of tokens from layer to layer (paper 002 App. F.4, Fig. 30).

use serde::{Deserialize, Serialize};

use super::permutation::NOWHERE;

/// Tokens that went from an expert of one layer to one of the next. Of several experts it is the one with the largest
/// gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Whose tokens: `images` or `texts`.
    pub modality: String,
    /// The block that they come from.
    pub from: usize,
    /// The block that they go to.
    pub to: usize,
    /// `[E + 1, E' + 1]`: tokens; the last row and column are those that no expert took.
    pub tokens: Vec<Vec<f64>>,
}

/// Transitions between two layers, as they come.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Transitions {
    pub(super) from: usize,
    pub(super) to: usize,
    experts: (usize, usize),
    /// Images, texts.
    counts: [Vec<f64>; 2],
}

impl Transitions {
    /// - `from`, `to`: a block and how many experts it has
    pub(super) fn new(from: (usize, usize), to: (usize, usize)) -> Self {
        let cells = (from.1 + 1) * (to.1 + 1);
        let counts = [vec![0.0; cells], vec![0.0; cells]];
        Self { from: from.0, to: to.0, experts: (from.1, to.1), counts }
    }

    pub(super) fn add(&mut self, modality: u8, from: u16, to: u16) {
        let place = |expert: u16, experts: usize| match expert {
            NOWHERE => experts,
            expert => usize::from(expert).min(experts),
        };
        let (row, column) = (place(from, self.experts.0), place(to, self.experts.1));
        self.counts[usize::from(modality)][row * (self.experts.1 + 1) + column] += 1.0;
    }

    /// One for every modality that came.
    pub(super) fn record(&self) -> impl Iterator<Item = Flow> {
        let Self { from, to, experts, counts } = self;
        let came =
            counts.iter().enumerate().filter(|(_, own)| own.iter().any(|count| *count > 0.0));
        came.map(move |(modality, own)| Flow {
            modality: crate::routing::modality_name(modality),
            from: *from,
            to: *to,
            tokens: own.chunks_exact(experts.1 + 1).map(<[f64]>::to_vec).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_from_expert_to_expert() {
        let mut seen = Transitions::new((1, 2), (3, 3));
        for (modality, from, to) in [(0, 0, 2), (0, 0, 2), (0, 1, NOWHERE), (1, NOWHERE, 0)] {
            seen.add(modality, from, to);
        }
        let flows: Vec<Flow> = seen.record().collect();
        assert_eq!(
            flows.iter().map(|flow| flow.modality.as_str()).collect::<Vec<_>>(),
            ["images", "texts"]
        );
        assert_eq!((flows[0].from, flows[0].to), (1, 3));
        assert_eq!(
            flows[0].tokens,
            [vec![0.0, 0.0, 2.0, 0.0], vec![0.0, 0.0, 0.0, 1.0], vec![0.0; 4]]
        );
        assert_eq!(flows[1].tokens[2][0], 1.0);
    }
}
