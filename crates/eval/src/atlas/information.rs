//! How much two things know of each other: the mutual information of class and expert.

use serde::{Deserialize, Serialize};

/// What the class of a token and its expert know of each other, in nats.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Information {
    /// `I(C; E)`.
    pub nats: f64,
    /// `H(C)`, of the classes.
    pub class_entropy: f64,
    /// `H(E)`, of the experts' load.
    pub expert_entropy: f64,
    /// `I / H(E)`: the share of the choice of expert that the class settles; 1 where tokens of a class have one
    /// expert. Nothing where there is but one expert in use.
    pub of_expert_entropy: f64,
    /// `I / H(C)`: the share of the class that the expert gives away; with few experts and many classes it
    /// stays below `ln E / ln C`.
    pub of_class_entropy: f64,
}

impl Information {
    /// Of a table of counts.
    ///
    /// - `table`: `[classes, columns]`, row by row
    pub(crate) fn of(table: &[f64], columns: usize) -> Self {
        let mut sums = Sums::new(columns);
        let nats = sums.information(table);
        let share = |entropy: f64| if entropy > 1e-12 { (nats / entropy).min(1.0) } else { 0.0 };
        let (class_entropy, expert_entropy) = (sums.class_entropy, sums.expert_entropy);
        Self {
            nats,
            class_entropy,
            expert_entropy,
            of_expert_entropy: share(expert_entropy),
            of_class_entropy: share(class_entropy),
        }
    }
}

/// Room for sums over a table's columns, which many tables of one shape share.
pub(super) struct Sums {
    columns: Vec<f64>,
    class_entropy: f64,
    expert_entropy: f64,
}

impl Sums {
    pub(super) fn new(columns: usize) -> Self {
        Self { columns: vec![0.0; columns], class_entropy: 0.0, expert_entropy: 0.0 }
    }

    /// `H(C) + H(E) − H(C, E)`, never below 0.
    pub(super) fn information(&mut self, table: &[f64]) -> f64 {
        self.columns.fill(0.0);
        let (mut total, mut joint, mut classes) = (0.0, 0.0, 0.0);
        for row in table.chunks_exact(self.columns.len().max(1)) {
            let mut own = 0.0;
            for (sum, count) in self.columns.iter_mut().zip(row) {
                *sum += count;
                own += count;
                joint += x_ln_x(*count);
            }
            classes += x_ln_x(own);
            total += own;
        }
        if total <= 0.0 {
            (self.class_entropy, self.expert_entropy) = (0.0, 0.0);
            return 0.0;
        }
        let experts: f64 = self.columns.iter().map(|count| x_ln_x(*count)).sum();
        // H = ln n − Σ x ln x / n of counts x that add up to n.
        let entropy = |sum: f64| (total.ln() - sum / total).max(0.0);
        self.class_entropy = entropy(classes);
        self.expert_entropy = entropy(experts);
        (self.class_entropy + self.expert_entropy - entropy(joint)).max(0.0)
    }
}

fn x_ln_x(x: f64) -> f64 {
    if x > 0.0 { x * x.ln() } else { 0.0 }
}

/// Of shares or counts of any sum, in nats.
pub(crate) fn entropy(counts: &[f64]) -> f64 {
    let total: f64 = counts.iter().sum();
    if total <= 0.0 {
        return 0.0;
    }
    let sum: f64 = counts.iter().map(|count| x_ln_x(*count)).sum();
    (total.ln() - sum / total).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LN2: f64 = std::f64::consts::LN_2;

    /// `Σ p(c, e) ln (p(c, e) / p(c) p(e))`, literally.
    fn brute_force(table: &[f64], columns: usize) -> f64 {
        let total: f64 = table.iter().sum();
        let rows: Vec<f64> = table.chunks(columns).map(|row| row.iter().sum::<f64>()).collect();
        let column = |e: usize| table.iter().skip(e).step_by(columns).sum::<f64>();
        let mut sum = 0.0;
        for (c, row) in rows.iter().enumerate() {
            for e in 0..columns {
                let p = table[c * columns + e] / total;
                if p > 0.0 {
                    sum += p * (p / (row / total * column(e) / total)).ln();
                }
            }
        }
        sum
    }

    #[test]
    fn known_tables_have_known_information() {
        let own_expert = Information::of(&[5.0, 0.0, 0.0, 5.0], 2);
        assert!((own_expert.nats - LN2).abs() < 1e-12);
        assert_eq!((own_expert.of_expert_entropy, own_expert.of_class_entropy), (1.0, 1.0));
        let nothing = Information::of(&[3.0, 1.0, 6.0, 2.0], 2);
        assert!(nothing.nats < 1e-12, "rows in proportion: {nothing:?}");
        // Four classes in pairs on two experts: the class settles the expert, the expert half of the class.
        let pairs = Information::of(&[2.0, 0.0, 2.0, 0.0, 0.0, 2.0, 0.0, 2.0], 2);
        assert!((pairs.nats - LN2).abs() < 1e-12);
        assert!((pairs.of_expert_entropy - 1.0).abs() < 1e-12);
        assert!((pairs.of_class_entropy - 0.5).abs() < 1e-12);
    }

    #[test]
    fn it_is_the_sum_over_all_cells_of_any_table() {
        for (table, columns) in [
            (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3),
            (vec![0.0, 7.0, 0.25, 0.0, 9.0, 1.5, 2.0, 0.0], 2),
        ] {
            let found = Information::of(&table, columns).nats;
            assert!((found - brute_force(&table, columns)).abs() < 1e-12);
        }
    }

    #[test]
    fn one_expert_or_no_token_is_no_information() {
        assert_eq!(Information::of(&[4.0, 2.0], 1).of_expert_entropy, 0.0);
        assert_eq!(Information::of(&[0.0; 6], 3), Information::default());
        assert_eq!(entropy(&[]), 0.0);
        assert!((entropy(&[2.0, 2.0, 0.0]) - LN2).abs() < 1e-12);
    }
}
