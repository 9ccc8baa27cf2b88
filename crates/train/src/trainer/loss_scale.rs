//! What losses are multiplied by before they run backwards, where gradients travel in `f16`, which ends at 6e-8: as large
//! a power of two as they can bear (Micikevicius et al., Mixed Precision Training, 2018, §3.2).

use omma_model::Precision;
use serde::{Deserialize, Serialize};

/// Steps in a row that a scale must bear before it is doubled.
const DOUBLED_AFTER: u64 = 2000;

/// A scale that follows the gradients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// Losses are multiplied, and gradients divided by this.
    pub scale: f32,
    /// Steps that it has borne.
    pub borne: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: 65536.0, borne: 0 }
    }
}

impl LossScale {
    /// Where a precision takes one: as it was before, if there was one.
    pub(crate) fn of(precision: Precision, before: Option<Self>) -> Option<Self> {
        (precision == Precision::F16).then(|| before.unwrap_or_default())
    }

    /// Learns from a step, and whether that is to be skipped: its gradient is not finite, and with a smaller scale it may
    /// be. A loss that is not finite itself would be no other.
    pub(crate) fn skips(&mut self, loss: f64, gradient_norm: f64) -> bool {
        if gradient_norm.is_finite() {
            self.borne += 1;
            if self.borne == DOUBLED_AFTER {
                *self = Self { scale: self.scale * 2.0, borne: 0 };
            }
            return false;
        }
        let skips = loss.is_finite() && self.scale > 1.0;
        if skips {
            *self = Self { scale: self.scale / 2.0, borne: 0 };
        }
        skips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_halved_by_what_it_cannot_bear_and_doubled_by_what_it_can() {
        let mut scale = LossScale::default();
        assert!(scale.skips(1.0, f64::INFINITY) && scale.skips(1.0, f64::NAN));
        assert_eq!(scale, LossScale { scale: 16384.0, borne: 0 });
        for step in 1..DOUBLED_AFTER {
            assert!(!scale.skips(1.0, 3.0));
            assert_eq!(scale, LossScale { scale: 16384.0, borne: step });
        }
        assert!(!scale.skips(1.0, 3.0));
        assert_eq!(scale, LossScale { scale: 32768.0, borne: 0 });
    }

    /// Then the run has diverged.
    #[test]
    fn a_loss_that_is_not_finite_and_a_gradient_without_a_scale_are_not_skipped() {
        assert!(!LossScale::default().skips(f64::NAN, f64::NAN));
        assert!(!LossScale { scale: 1.0, borne: 0 }.skips(1.0, f64::INFINITY));
    }
}
