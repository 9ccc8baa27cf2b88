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

/// Steps of a length that is a share of the run below 1.
fn steps(length: f64, total: u64) -> f64 {
    if length < 1.0 { length * total.max(1) as f64 } else { length }
}

impl Schedule {
    /// The first step, counted from 0, that is part of a reverse square root's cooldown in a run of `total`
    /// steps; nothing where there is none.
    pub(crate) fn cooled_from(&self, total: u64) -> Option<u64> {
        let cooldown = steps(self.cooldown, total);
        // The last step alone is taken at its full rate.
        (cooldown > 1.0).then(|| (total as f64 - cooldown).max(0.0) as u64)
    }

    /// The same reverse square root, of a run of `total` steps, with a cooldown of the last `cooldown` steps of
    /// one that has `end`: a warm-up keeps its steps.
    pub(crate) fn cooling_down(&self, total: u64, end: u64, cooldown: u64) -> Self {
        let warmup = match steps(self.warmup, total) {
            // As a share again.
            short if short < 1.0 => short / end.max(1) as f64,
            steps => steps,
        };
        Self { warmup, cooldown: cooldown as f64, ..*self }
    }

    /// The share at a step, counted from 0, of a run of `total` steps. The first step of a warm-up is
    /// not zero, and neither is the last of a run.
    pub fn share(&self, step: u64, total: u64) -> f64 {
        let steps = |length: f64| steps(length, total);
        let (now, total) = (step as f64, total.max(1) as f64);
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

    /// big_vision's `rsqrt`: `1 / √(1 + (step - warmup) / timescale)`, times what is left of the cooldown. Its
    /// warm-up is `step / warmup`, which begins at 0; ours does not waste that step.
    #[test]
    fn a_reverse_square_root_is_that_of_big_vision() {
        for (warmup, timescale, cooldown, total) in
            [(10.0, 100.0, 50.0, 1000), (0.0, 10_000.0, 0.0, 300), (1.0, 3.0, 299.0, 300)]
        {
            let kind = ScheduleKind::ReverseSqrt;
            let schedule = Schedule { kind, warmup, timescale, cooldown, ..Schedule::default() };
            for step in warmup as u64..total {
                let slope = 1.0 / (1.0 + (step as f64 - warmup) / timescale).sqrt();
                let left = if cooldown > 0.0 { (total - step) as f64 / cooldown } else { 1.0 };
                let expected = slope * left.min(1.0);
                let found = schedule.share(step, total);
                assert!((found - expected).abs() < 1e-12, "step {step}: {found} {expected}");
            }
        }
    }

    #[test]
    fn a_cooldown_has_its_first_step_and_none_without_one() {
        let of = |cooldown| Schedule {
            kind: ScheduleKind::ReverseSqrt,
            cooldown,
            ..Schedule::default()
        };
        let found = [of(0.0), of(1.0), of(50.0), of(0.25), of(5000.0)].map(|s| s.cooled_from(1000));
        assert_eq!(found, [None, None, Some(950), Some(750), Some(0)]);
    }
}
