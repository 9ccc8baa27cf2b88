//! How the learning rate goes up and down.

use serde::{Deserialize, Serialize};

/// What the learning rate does after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// Half a cosine down to `final_share`.
    #[default]
    Cosine,
    /// One over the square root of time, with a linear cooldown to zero (big_vision, vmoe).
    ReverseSqrt,
    /// Stays.
    Constant,
}

/// The learning rate over a run, as a share of its highest value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// What it does after the warm-up.
    pub kind: ScheduleKind,
    /// Steps of a linear warm-up; below 1, a share of the run.
    pub warmup: f64,
    /// Where a cosine ends.
    pub final_share: f64,
    /// Steps in which a reverse square root falls from 1 to √½.
    pub timescale: f64,
    /// Steps of a reverse square root's linear cooldown; below 1, a share of the run.
    pub cooldown: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::Cosine,
            warmup: 0.05,
            final_share: 0.0,
            timescale: 10_000.0,
            cooldown: 0.1,
        }
    }
}

impl Schedule {
    /// The share at a step, counted from 0, of a run of `total` steps. The first step of a warm-up is
    /// not zero, and neither is the last of a run.
    pub fn share(&self, step: u64, total: u64) -> f64 {
        let (now, total) = (step as f64, total.max(1) as f64);
        let steps = |length: f64| if length < 1.0 { length * total } else { length };
        let warmup = steps(self.warmup);
        if now < warmup {
            return (now + 1.0) / (warmup + 1.0);
        }
        match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Cosine => {
                let done = (now - warmup) / (total - warmup).max(1.0);
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos());
                self.final_share + (1.0 - self.final_share) * cosine
            }
            ScheduleKind::ReverseSqrt => {
                let slope = (self.timescale / (now - warmup + self.timescale)).sqrt();
                slope * ((total - now) / steps(self.cooldown).max(1.0)).clamp(0.0, 1.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warmup_rises_and_the_rest_falls() {
        let total = 1000;
        for kind in [ScheduleKind::Cosine, ScheduleKind::ReverseSqrt, ScheduleKind::Constant] {
            let schedule = Schedule { kind, warmup: 100.0, ..Schedule::default() };
            let shares: Vec<f64> = (0..total).map(|step| schedule.share(step, total)).collect();
            assert!(shares.iter().all(|share| *share > 0.0 && *share <= 1.0), "{kind:?}");
            assert!(shares[..100].windows(2).all(|pair| pair[0] < pair[1]), "{kind:?}");
            assert!(shares[100..].windows(2).all(|pair| pair[0] >= pair[1]), "{kind:?}");
            assert_eq!(shares[100], 1.0);
        }
    }

    #[test]
    fn each_kind_is_its_formula() {
        let cosine = Schedule { warmup: 0.0, final_share: 0.1, ..Schedule::default() };
        assert!((cosine.share(500, 1000) - 0.55).abs() < 1e-12);
        let kind = ScheduleKind::ReverseSqrt;
        let sqrt = Schedule {
            kind,
            warmup: 10.0,
            timescale: 100.0,
            cooldown: 50.0,
            ..Schedule::default()
        };
        assert!((sqrt.share(110, 1000) - 0.5_f64.sqrt()).abs() < 1e-12);
        let before = (100.0_f64 / 1065.0).sqrt();
        assert!((sqrt.share(975, 1000) - 0.5 * before).abs() < 1e-12);
    }
}
