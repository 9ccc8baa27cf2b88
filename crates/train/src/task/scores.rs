//! Numbers that a task is judged by.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a score is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A share of one; more is better.
    Share,
    /// A loss in nats; less is better.
    Nats,
}

/// A score that a task has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// Its name in logs.
    pub key: &'static str,
    /// Its name in a report.
    pub title: &'static str,
    /// What it is counted in.
    pub unit: Unit,
}

impl Measure {
    /// Whether one value is better than another.
    pub fn is_better(&self, value: f64, than: f64) -> bool {
        match self.unit {
            Unit::Share => value > than,
            Unit::Nats => value < than,
        }
    }

    /// A value as it is shown.
    pub fn show(&self, value: f64) -> String {
        match self.unit {
            Unit::Share => format!("{:.2} %", 100.0 * value),
            Unit::Nats => format!("{value:.4}"),
        }
    }
}

/// Values by the keys of their measures.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskScores(BTreeMap<String, f64>);

impl TaskScores {
    /// Of one measure; nothing where it was not taken.
    pub fn get(&self, key: &str) -> Option<f64> {
        self.0.get(key).copied()
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(key, value)| (key.as_str(), *value))
    }

    /// Adds sums of the same measures.
    pub(crate) fn add(&mut self, other: &Self) {
        for (key, value) in other.iter() {
            *self.0.entry(key.to_owned()).or_default() += value;
        }
    }

    /// From sums to means.
    pub(crate) fn divided(mut self, count: f64) -> Self {
        self.0.values_mut().for_each(|value| *value /= count);
        self
    }
}

impl<K: Into<String>> FromIterator<(K, f64)> for TaskScores {
    fn from_iter<T: IntoIterator<Item = (K, f64)>>(all: T) -> Self {
        Self(all.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_shares_and_lower_losses_are_better() {
        let better = |unit: Unit, value: f64, than: f64| {
            Measure { key: "score", title: "score", unit }.is_better(value, than)
        };
        assert!(better(Unit::Share, 0.6, 0.5) && !better(Unit::Share, 0.5, 0.6));
        assert!(better(Unit::Nats, 0.5, 0.6) && !better(Unit::Nats, 0.6, 0.5));
        for unit in [Unit::Share, Unit::Nats] {
            assert!(!better(unit, 0.5, 0.5), "an equal score is not better");
            assert!(!better(unit, f64::NAN, 0.5), "a score that is not a number is not better");
        }
    }
}
