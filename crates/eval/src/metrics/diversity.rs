//! How the members of an ensemble differ (paper 000 §5, App. L).

use super::largest;

/// Differences between all pairs of members, summed as predictions come.
#[derive(Debug, Clone, PartialEq)]
pub struct Diversity {
    samples: usize,
    pairs: usize,
    kl: f64,
    cosine: f64,
    disagreement: usize,
}

/// A probability below this is taken for this in a logarithm.
const SMALLEST: f64 = 1e-38;

impl Diversity {
    /// Of an ensemble of so many members; nothing for less than two.
    pub fn new(members: usize) -> Option<Self> {
        let pairs = members * members.saturating_sub(1) / 2;
        (pairs > 0).then_some(Self { samples: 0, pairs, kl: 0.0, cosine: 0.0, disagreement: 0 })
    }

    /// Adds all members' probabilities for one input.
    ///
    /// - `members`: `[M]` of `[classes]`
    pub fn add(&mut self, members: &[&[f64]]) {
        self.samples += 1;
        for (place, a) in members.iter().enumerate() {
            for b in &members[place + 1..] {
                self.kl += kl(a, b) + kl(b, a);
                self.cosine += dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
                self.disagreement += usize::from(largest(a) != largest(b));
            }
        }
    }

    /// Kullback–Leibler divergence, mean over ordered pairs and inputs, in nats.
    pub fn kl(&self) -> f64 {
        self.kl / (2.0 * self.comparisons())
    }

    /// Cosine of the probabilities, mean over pairs and inputs.
    pub fn cosine(&self) -> f64 {
        self.cosine / self.comparisons()
    }

    /// Share of inputs on which two members predict different classes, mean over pairs.
    pub fn disagreement(&self) -> f64 {
        self.disagreement as f64 / self.comparisons()
    }

    fn comparisons(&self) -> f64 {
        (self.samples.max(1) * self.pairs) as f64
    }
}

fn kl(p: &[f64], q: &[f64]) -> f64 {
    let term = |(p, q): (&f64, &f64)| match *p > 0.0 {
        true => p * (p.max(SMALLEST) / q.max(SMALLEST)).ln(),
        false => 0.0,
    };
    p.iter().zip(q).map(term).sum()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
