//! As many digits as mean something: the last one is about a tenth of how far a number may be off.

use crate::{
    metrics::Interval,
    protocols::test::TestRecord,
    summary::{Summary, SummaryIntervals},
};

/// More would only be read by other programs, which have the records.
const MOST: usize = 4;

/// Decimals of a number whose interval is so wide.
pub(crate) fn decimals(width: f64) -> usize {
    if !(width.is_finite() && width > 0.0) {
        return MOST;
    }
    (-(width / 10.0).log10().floor()).clamp(0.0, MOST as f64) as usize
}

/// Decimals of the scores of a test. Shares are in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digits {
    /// Of the errors.
    pub error: usize,
    /// Of the negative log-likelihood.
    pub nll: usize,
    /// Of the Brier score.
    pub brier: usize,
    /// Of the calibration error.
    pub ece: usize,
}

impl Digits {
    /// Of a test, from its intervals; in records that have none, from the number of images.
    pub fn of(test: &TestRecord) -> Self {
        let usual = Self::of_images(test.samples);
        let Some(SummaryIntervals { error, nll, brier, ece, .. }) = &test.intervals else {
            return usual;
        };
        // An interval without width, as of images that are all right, bears no more digits than others.
        let of = |width: f64, usual: usize| decimals(width).min(usual + 1);
        Self {
            error: of(100.0 * error.width(), usual.error),
            nll: of(nll.width(), usual.nll),
            brier: of(brier.width(), usual.brier),
            ece: of(100.0 * ece.width(), usual.ece),
        }
    }

    /// Of so many images, whose scores scatter as those of models usually do: by 0.4 for the error, by 1 nat,
    /// by 0.4 for the Brier score.
    pub fn of_images(images: usize) -> Self {
        let width = |scatter: f64| 4.0 * scatter / (images.max(1) as f64).sqrt();
        let percent = decimals(100.0 * width(0.4));
        Self {
            error: percent,
            nll: decimals(width(1.0)),
            brier: decimals(width(0.4)),
            ece: percent,
        }
    }

    /// `28.3 %`
    pub fn error(&self, share: f64) -> String {
        percent(share, self.error)
    }

    /// The scores in the order error, top-5 error, NLL, Brier score, calibration error.
    pub fn scores(&self, summary: &Summary) -> Scored<String> {
        let Summary { error, top5_error, nll, brier, ece } = *summary;
        Scored {
            error: percent(error, self.error),
            top5_error: top5_error.map(|share| percent(share, self.error)),
            nll: format!("{nll:.*}", self.nll),
            brier: format!("{brier:.*}", self.brier),
            ece: percent(ece, self.ece),
        }
    }

    /// Their intervals, `25.8–30.8`, in the same order.
    pub fn intervals(&self, intervals: &SummaryIntervals) -> Scored<String> {
        let SummaryIntervals { error, top5_error, nll, brier, ece, .. } = *intervals;
        Scored {
            error: range(error.times(100.0), self.error),
            top5_error: top5_error.map(|top5| range(top5.times(100.0), self.error)),
            nll: range(nll, self.nll),
            brier: range(brier, self.brier),
            ece: range(ece.times(100.0), self.ece),
        }
    }
}

/// Scores as they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Summary`")]
pub struct Scored<T> {
    pub error: T,
    pub top5_error: Option<T>,
    pub nll: T,
    pub brier: T,
    pub ece: T,
}

impl<T> Scored<T> {
    /// In the order of a table's columns.
    pub fn cells(self) -> Vec<T> {
        let Self { error, top5_error, nll, brier, ece } = self;
        [Some(error), top5_error, Some(nll), Some(brier), Some(ece)].into_iter().flatten().collect()
    }
}

/// `28.3 %`
pub(crate) fn percent(share: f64, digits: usize) -> String {
    format!("{:.digits$} %", 100.0 * share)
}

/// `25.8–30.8`
pub(crate) fn range(interval: Interval, digits: usize) -> String {
    let Interval { low, high } = interval;
    let dash = if low < 0.0 || high < 0.0 { " to " } else { "–" };
    format!("{low:.digits$}{dash}{high:.digits$}").replace('-', "−")
}

/// A share in percent with what it may be, `28.3 % (25.8–30.8)`; as many digits as the interval bears.
pub fn share_within(share: f64, interval: Option<&Interval>, images: usize) -> String {
    match interval {
        None => percent(share, Digits::of_images(images).error),
        Some(interval) => {
            let interval = interval.times(100.0);
            let digits = decimals(interval.width()).min(Digits::of_images(images).error + 1);
            format!("{} ({})", percent(share, digits), range(interval, digits))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_follow_the_width() {
        let widths = [16.0, 5.0, 0.8, 0.3, 0.02, 1e-9, 0.0, f64::NAN];
        assert_eq!(widths.map(decimals), [0, 1, 2, 2, 3, 4, 4, 4]);
        let few = Digits::of_images(120);
        assert_eq!((few.error(0.283), few.nll), ("28 %".to_owned(), 2));
        assert_eq!(Digits::of_images(50_000).error(0.2834), "28.34 %");
    }

    #[test]
    fn intervals_are_written_with_the_digits_that_they_bear() {
        let interval = Interval { low: 0.204, high: 0.367 };
        assert_eq!(share_within(0.2833, Some(&interval), 120), "28 % (20–37)");
        assert_eq!(share_within(0.2833, None, 120), "28 %");
        let certain = Interval { low: 1.0, high: 1.0 };
        assert_eq!(share_within(1.0, Some(&certain), 120), "100.0 % (100.0–100.0)");
        assert_eq!(range(Interval { low: -0.05, high: 0.031 }, 2), "−0.05 to 0.03");
    }
}
