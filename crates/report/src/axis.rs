//! Axes: a range of values, their place, and round ticks.

use crate::text::{decimals, signed};

/// Beyond this a span would overflow, and no figure has a use for it.
const LARGEST: f64 = 1e300;

/// How values are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    Log,
}

impl Scale {
    pub(crate) fn of(log: bool) -> Self {
        if log { Self::Log } else { Self::Linear }
    }

    /// Whether a value has a place on this scale.
    pub(crate) fn shows(self, value: f64) -> bool {
        value.abs() <= LARGEST && (self == Self::Linear || value >= 1.0 / LARGEST)
    }
}

/// A range with ticks.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    pub(crate) scale: Scale,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<f64>,
    /// The distance of linear ticks, which sets their decimals.
    step: f64,
}

impl Axis {
    /// An axis over the values that can be shown, or over a fixed range; `None` if there are no
    /// values. About `ticks` ticks, fewer rather than more.
    pub(crate) fn over(
        values: impl IntoIterator<Item = f64>,
        scale: Scale,
        fixed: Option<(f64, f64)>,
        ticks: usize,
    ) -> Option<Self> {
        let shown = values.into_iter().filter(|value| scale.shows(*value));
        let (low, high) = shown.fold(None, |range: Option<(f64, f64)>, value| {
            let (low, high) = range.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        })?;
        let fixed = fixed.filter(|(a, b)| scale.shows(*a) && scale.shows(*b) && a < b);
        let (low, high) = fixed.unwrap_or((low, high));
        Some(match scale {
            Scale::Linear => Self::linear(low, high, ticks),
            Scale::Log => Self::log(low, high, ticks),
        })
    }

    /// The same axis, grown to the next tick at either end; a logarithmic one only where that takes
    /// little room.
    pub(crate) fn grown(mut self, ticks: usize) -> Self {
        match self.scale {
            Scale::Linear => {
                let low = (self.low / self.step + 1e-9).floor() * self.step;
                let high = (self.high / self.step - 1e-9).ceil() * self.step;
                (self.low, self.high) = (low.min(self.low), high.max(self.high));
                self.ticks = multiples(self.low, self.high, self.step);
                self
            }
            Scale::Log => {
                let round = |value: f64| {
                    let power = 10f64.powf(value.log10().floor());
                    [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power)
                };
                let low = round(self.low).into_iter().rfind(|tick| *tick <= self.low);
                let high = round(self.high).into_iter().find(|tick| *tick >= self.high);
                let near = |tick: &f64| (-0.12..1.12).contains(&self.place(*tick));
                let low = low.filter(near).unwrap_or(self.low);
                Self::log(low, high.filter(near).unwrap_or(self.high), ticks)
            }
        }
    }

    /// The same axis with a margin at both ends, as a share of its length.
    pub(crate) fn with_margin(self, share: f64, ticks: usize) -> Self {
        match self.scale {
            Scale::Linear => {
                let margin = (self.high - self.low) * share;
                Self::linear(self.low - margin, self.high + margin, ticks)
            }
            Scale::Log => {
                let factor = (self.high / self.low).powf(share);
                Self::log(self.low / factor, self.high * factor, ticks)
            }
        }
    }

    fn linear(low: f64, high: f64, ticks: usize) -> Self {
        let (low, high) = apart(low, high);
        let step = round_step(low, high, ticks);
        Self { scale: Scale::Linear, low, high, ticks: multiples(low, high, step), step }
    }

    fn log(low: f64, high: f64, ticks: usize) -> Self {
        let (low, high) =
            if high / low < 1.0 + 1e-9 { (low / 2.0, high * 2.0) } else { (low, high) };
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let inside = |value: &f64| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(value);
        let stride = (last - first).unsigned_abs().div_ceil(ticks.max(1) as u32).max(1);
        let powers = (first..=last).filter(|power| power.rem_euclid(stride as i32) == 0);
        let mut marks: Vec<f64> = powers.map(|power| 10f64.powi(power)).filter(inside).collect();
        let mut step = 0.0;
        if marks.len() < 3 {
            let between = (first..=last)
                .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
            marks = between.filter(inside).collect();
        }
        if marks.len() < 3 {
            step = round_step(low, high, ticks);
            marks = multiples(low, high, step);
        }
        Self { scale: Scale::Log, low, high, ticks: marks, step }
    }

    /// Where a value stands: 0 at the low end, 1 at the high end.
    pub(crate) fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    /// What a tick says.
    pub(crate) fn label(&self, tick: f64) -> String {
        if self.step > 0.0 {
            let largest = self.low.abs().max(self.high.abs());
            return stepped(tick, self.step, largest);
        }
        let power = tick.log10().floor();
        let power = if tick / 10f64.powf(power) > 9.99 { power + 1.0 } else { power };
        if (-3.0..4.0).contains(&power) {
            return decimals(tick, (-power).max(0.0) as usize);
        }
        let digit = (tick / 10f64.powf(power)).round();
        let power = superscript(power as i32);
        if digit == 1.0 { format!("10{power}") } else { format!("{digit}·10{power}") }
    }
}

/// A range that is not empty.
fn apart(low: f64, high: f64) -> (f64, f64) {
    let size = low.abs().max(high.abs());
    if high - low > size * 1e-9 && high - low > 1.0 / LARGEST {
        return (low, high);
    }
    if size > 1.0 / LARGEST { (low - size * 0.1, high + size * 0.1) } else { (0.0, 1.0) }
}

/// The smallest of 1, 2, 5 times a power of ten that needs no more than `ticks` intervals.
fn round_step(low: f64, high: f64, ticks: usize) -> f64 {
    let rough = (high - low) / ticks.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

fn multiples(low: f64, high: f64, step: f64) -> Vec<f64> {
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    let count = (last - first).clamp(-1.0, 100.0) as i32;
    (0..=count).map(|i| (first + f64::from(i)) * step).collect()
}

/// A tick of a linear axis, with the decimals that its neighbours need.
fn stepped(tick: f64, step: f64, largest: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")];
    if let Some((unit, name)) = units.into_iter().find(|(unit, _)| largest >= *unit)
        && largest < 1e15
    {
        let unit = if name == "k" { 1e3 } else { unit };
        let text = decimals(tick / unit, places(step / unit));
        return if tick == 0.0 { "0".to_owned() } else { format!("{text}{name}") };
    }
    if !(1e-4..1e15).contains(&largest) {
        return if tick == 0.0 { "0".to_owned() } else { signed(&format!("{tick:.1e}")) };
    }
    decimals(tick, places(step))
}

fn places(step: f64) -> usize {
    (-(step * (1.0 + 1e-9)).log10().floor()).clamp(0.0, 12.0) as usize
}

fn superscript(power: i32) -> String {
    let raised = |symbol| match symbol {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        digit => char::from_u32(digit as u32 - u32::from(b'0') + 0x2070).unwrap_or(digit),
    };
    power.to_string().chars().map(raised).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: [f64; 2], scale: Scale) -> Vec<String> {
        let axis = Axis::over(values, scale, None, 5).unwrap();
        axis.ticks.iter().map(|tick| axis.label(*tick)).collect()
    }

    #[test]
    fn linear_ticks_are_round() {
        assert_eq!(labels([0.0, 1.0], Scale::Linear), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels([-3.0, 7.1], Scale::Linear), ["0", "5"]);
        assert_eq!(labels([0.0, 23_400.0], Scale::Linear), ["0", "5k", "10k", "15k", "20k"]);
        assert_eq!(labels([0.912, 0.948], Scale::Linear), ["0.92", "0.93", "0.94"]);
        assert_eq!(labels([0.0, 2e-6], Scale::Linear)[1], "5.0e−7");
    }

    #[test]
    fn log_ticks_are_powers_or_parts_of_them() {
        assert_eq!(labels([1e-5, 10.0], Scale::Log), ["10⁻⁴", "0.01", "1"]);
        assert_eq!(labels([1.0, 60.0], Scale::Log), ["1", "2", "5", "10", "20", "50"]);
        assert_eq!(labels([0.61, 0.79], Scale::Log), ["0.65", "0.70", "0.75"]);
        assert_eq!(labels([1e6, 1e9], Scale::Log), ["10⁶", "10⁷", "10⁸", "10⁹"]);
    }

    #[test]
    fn growth_ends_at_ticks() {
        let axis = Axis::over([0.13, 0.97], Scale::Linear, None, 5).unwrap().grown(5);
        assert_eq!((axis.low, axis.high, axis.ticks.len()), (0.0, 1.0, 6));
        assert_eq!([axis.place(0.0), axis.place(0.5), axis.place(1.0)], [0.0, 0.5, 1.0]);
        let axis = Axis::over([0.21, 1100.0], Scale::Log, None, 5).unwrap().grown(5);
        assert_eq!((axis.low, axis.high), (0.2, 2000.0));
    }

    #[test]
    fn strange_values_make_no_strange_axes() {
        for scale in [Scale::Linear, Scale::Log] {
            assert!(Axis::over([f64::NAN, f64::INFINITY], scale, None, 5).is_none());
            for range in [[3.0, 3.0], [f64::MIN_POSITIVE, 1e299], [1e-310, 0.0], [-1e299, 1e300]] {
                let Some(axis) = Axis::over(range, scale, None, 5) else { continue };
                let axis = axis.grown(5);
                let places = axis.ticks.iter().map(|tick| axis.place(*tick));
                assert!(places.clone().all(|place| (-0.01..1.01).contains(&place)), "{axis:?}");
                assert!(axis.ticks.len() < 20, "{axis:?}");
            }
        }
        assert!(Axis::over([0.0, -1.0], Scale::Log, None, 5).is_none());
        let axis = Axis::over([1.0], Scale::Linear, Some((2.0, f64::NAN)), 5).unwrap();
        assert!(axis.low < 1.0 && axis.high > 1.0);
    }
}
