//! How many tokens one expert takes from one group.

use serde::{Deserialize, Serialize};

use crate::error::{Result, RoutingError};

/// How a fractional capacity becomes a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rounding {
    /// Up.
    #[default]
    Ceil,
    /// To the nearest; halves go to the even neighbour (2.5 to 2, 3.5 to 4).
    Round,
}

/// A buffer size per expert, relative to a perfectly balanced load.
///
/// `C = ⌈n · factor / E⌉` (or rounded), then up to the next multiple of `multiple_of`. The
/// arithmetic is in double precision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// 1 is just enough for a perfectly balanced load; V-MoE trains with 1.05 to 1.5.
    pub factor: f64,
    /// What happens to a fraction.
    #[serde(default)]
    pub rounding: Rounding,
    /// The capacity is rounded up to a multiple of this; 1 leaves it as it is.
    #[serde(default = "one")]
    pub multiple_of: usize,
}

fn one() -> usize {
    1
}

impl Capacity {
    /// `⌈n · factor / E⌉`.
    pub fn factor(factor: f64) -> Self {
        Self { factor, rounding: Rounding::Ceil, multiple_of: 1 }
    }

    /// Fails on a factor or a multiple that no number of tokens could make sense of.
    pub fn check(&self) -> Result<()> {
        if !(self.factor.is_finite() && self.factor > 0.0) {
            return Err(RoutingError::BadCapacityFactor { factor: self.factor });
        }
        if self.multiple_of == 0 {
            return Err(RoutingError::BadCapacityMultiple);
        }
        Ok(())
    }

    /// The capacity `C` of each of `experts` experts for `tokens` assignments.
    ///
    /// Token choice counts every choice (`n = S·K`); expert choice and soft routing count every
    /// token once (`n = S`).
    pub fn slots(&self, tokens: usize, experts: usize) -> Result<usize> {
        self.check()?;
        if experts == 0 {
            return Err(RoutingError::NoExperts);
        }
        let exact = tokens as f64 * self.factor / experts as f64;
        let slots = match self.rounding {
            Rounding::Ceil => exact.ceil(),
            Rounding::Round => exact.round_ties_even(),
        } as usize;
        if slots == 0 {
            return Err(RoutingError::ZeroCapacity { tokens, experts, factor: self.factor });
        }
        // Slots are counted in 32 bits.
        match slots.checked_next_multiple_of(self.multiple_of) {
            Some(slots) if slots <= u32::MAX as usize => Ok(slots),
            _ => Err(RoutingError::CapacityTooLarge { tokens, factor: self.factor }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_to_even_and_multiples_round_up() {
        let round = Capacity { rounding: Rounding::Round, ..Capacity::factor(1.0) };
        assert_eq!(round.slots(10, 4), Ok(2)); // 2.5
        assert_eq!(round.slots(14, 4), Ok(4)); // 3.5
        assert_eq!(Capacity::factor(1.0).slots(10, 4), Ok(3));
        let fours = Capacity { multiple_of: 4, ..Capacity::factor(1.0) };
        assert_eq!(fours.slots(50, 4), Ok(16)); // 12.5, 13, 16
    }

    #[test]
    fn a_capacity_of_zero_is_an_error_that_names_its_causes() {
        let round = Capacity { rounding: Rounding::Round, ..Capacity::factor(0.5) };
        let error = round.slots(2, 8).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 choices over 8 experts at factor 0.5 leave a capacity of 0"
        );
        assert!(Capacity::factor(1e30).slots(2, 8).is_err());
        assert!(Capacity { multiple_of: usize::MAX, ..Capacity::factor(1.0) }.slots(2, 1).is_err());
        assert!(Capacity::factor(f64::NAN).slots(2, 8).is_err());
        assert!(Capacity::factor(-1.0).slots(2, 8).is_err());
        assert!(Capacity { multiple_of: 0, ..Capacity::factor(1.0) }.slots(2, 8).is_err());
    }
}
