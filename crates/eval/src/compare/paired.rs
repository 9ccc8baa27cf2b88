//! Two systems image by image. What is hard for one is hard for the other, so that their difference is known far
//! better than either.
//!
//! Seeds are paired in their order, the first of the system with the first of the baseline. The difference is the
//! mean over pairs and images; its interval is that of a bootstrap that draws images, and where there are several
//! pairs also pairs, so that it is wide where seeds differ.

use serde::Serialize;

use super::McNemar;
use crate::{
    digits::{decimals, range},
    metrics::{Interval, draw, intervals, resamples},
    outcomes::Outcomes,
    protocols::{Evaluation, ImageResults},
};

/// What is taken for a difference.
const LEVEL: f64 = 0.05;

/// The system's number less the baseline's; below 0 the system is better.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Difference {
    /// Over all images and pairs of seeds.
    pub mean: f64,
    /// What it may be, at 95 %.
    pub interval: Interval,
}

/// A system and the baseline on the same images.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Paired {
    /// Images.
    pub images: usize,
    /// Pairs of seeds.
    pub pairs: usize,
    /// Seeds of either side that have no counterpart.
    pub left_out: usize,
    /// Of the negative log-likelihood.
    pub nll: Difference,
    /// Of the error.
    pub error: Difference,
    /// Of the error too, by another test.
    pub mcnemar: McNemar,
}

/// Better, worse, or neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Better,
    Worse,
    Open,
}

impl Difference {
    fn verdict(&self) -> Verdict {
        match self.interval {
            interval if interval.high < 0.0 => Verdict::Better,
            interval if interval.low > 0.0 => Verdict::Worse,
            _ => Verdict::Open,
        }
    }

    /// `−0.05 (−0.08 to −0.02)`
    fn text(&self, factor: f64) -> String {
        let interval = self.interval.times(factor);
        let digits = decimals(interval.width());
        let mean = format!("{:+.digits$}", self.mean * factor).replace('-', "−");
        format!("{mean} ({})", range(interval, digits))
    }
}

impl Paired {
    /// Fails with a reason where the results of single images are not there, or not of the same images.
    ///
    /// - `own`, `base`: the seeds of the system and of the baseline
    pub(super) fn new(own: &[&Evaluation], base: &[&Evaluation]) -> Result<Self, String> {
        let pairs: Vec<(&Outcomes, &Outcomes)> = own
            .iter()
            .zip(base)
            .map(|(own, base)| Ok((outcomes(own)?, outcomes(base)?)))
            .collect::<Result<_, String>>()?;
        let Some((first, _)) = pairs.first() else { return Err("there are no seeds".to_owned()) };
        let images = first.images.len();
        let same = |one: &Outcomes| one.identity == first.identity && one.images.len() == images;
        if images == 0 || !pairs.iter().all(|(own, base)| same(own) && same(base)) {
            let (own, base) = (&own[0].label, &base[0].label);
            return Err(format!("{own} and {base} were judged by different images"));
        }
        let [nll, error] = differences(&pairs, images);
        let seeds: Vec<McNemar> = pairs.iter().map(|(own, base)| mcnemar(own, base)).collect();
        let left_out = own.len().abs_diff(base.len());
        let mcnemar = McNemar::combined(&seeds);
        Ok(Self { images, pairs: pairs.len(), left_out, nll, error, mcnemar })
    }

    fn error_verdict(&self) -> Verdict {
        match self.mcnemar.p < LEVEL {
            true if self.error.mean < 0.0 => Verdict::Better,
            true if self.error.mean > 0.0 => Verdict::Worse,
            _ => Verdict::Open,
        }
    }

    /// In a word or two: `not distinguishable`, `better in NLL`.
    pub fn verdict(&self) -> String {
        let both = [("NLL", self.nll.verdict()), ("error", self.error_verdict())];
        let of = |verdict: Verdict| -> Vec<&str> {
            both.iter().filter(|(_, own)| *own == verdict).map(|(name, _)| *name).collect()
        };
        let (better, worse) = (of(Verdict::Better), of(Verdict::Worse));
        let part = |word: &str, names: Vec<&str>| {
            (!names.is_empty()).then(|| format!("{word} in {}", names.join(" and ")))
        };
        let parts: Vec<String> =
            [part("better", better), part("worse", worse)].into_iter().flatten().collect();
        match parts.as_slice() {
            [] => "not distinguishable".to_owned(),
            parts => parts.join(", "),
        }
    }

    /// `not distinguishable from vit on 120 images: NLL …`
    pub fn in_words(&self, baseline: &str) -> String {
        let verdict = match self.verdict() {
            verdict if verdict.starts_with("not") => format!("{verdict} from {baseline}"),
            verdict => format!("{verdict} than {baseline}"),
        };
        let mut pairs = match self.pairs {
            1 => String::new(),
            pairs => format!(" and {pairs} pairs of seeds"),
        };
        if self.left_out > 0 {
            pairs += &format!(" ({} more without a counterpart)", self.left_out);
        }
        let [nll, error, _, p] = self.cells();
        let images = self.images;
        format!("{verdict} on {images} images{pairs}: NLL {nll}, error {error} points, p = {p}")
    }

    /// Differences of NLL and of the error in points, images that only one gets right, McNemar's p-value.
    pub(super) fn cells(&self) -> [String; 4] {
        let McNemar { gained, lost, p } = self.mcnemar;
        let p = if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") };
        [self.nll.text(1.0), self.error.text(100.0), format!("{gained} : {lost}"), p]
    }
}

fn outcomes(one: &Evaluation) -> Result<&Outcomes, String> {
    let why = match &one.images {
        ImageResults::Whole(outcomes) => return Ok(outcomes),
        ImageResults::None => "it was judged by an earlier version; judge it again".to_owned(),
        ImageResults::Lost(why) => why.clone(),
    };
    Err(format!("{} has no results of single images: {why}", one.label))
}

/// Of NLL and error.
fn differences(pairs: &[(&Outcomes, &Outcomes)], images: usize) -> [Difference; 2] {
    let wrong =
        |outcomes: &Outcomes, place: usize| f64::from(u8::from(outcomes.images[place].is_wrong()));
    let nll = |outcomes: &Outcomes, place: usize| f64::from(outcomes.images[place].nll);
    // `[pairs, images]`, small enough to be drawn from quickly.
    let table: Vec<Vec<[f32; 2]>> = pairs
        .iter()
        .map(|(own, base)| {
            let one = |place: usize| {
                let nll = nll(own, place) - nll(base, place);
                [nll as f32, (wrong(own, place) - wrong(base, place)) as f32]
            };
            (0..images).map(one).collect()
        })
        .collect();
    let sum = |row: &[[f32; 2]], places: &mut dyn Iterator<Item = usize>| {
        places.fold([0.0, 0.0], |[nll, error], place| {
            [nll + f64::from(row[place][0]), error + f64::from(row[place][1])]
        })
    };
    let over = |sums: [f64; 2]| sums.map(|sum| sum / (images * pairs.len()) as f64);
    let add = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
    let means = over(table.iter().fold([0.0; 2], |all, row| add(all, sum(row, &mut (0..images)))));
    let found = intervals(resamples(images * pairs.len()), |seed| {
        let rows = draw(seed.named("pairs"), pairs.len());
        over(rows.fold([0.0; 2], |all, row| {
            // The same images for every pair.
            add(all, sum(&table[row], &mut draw(seed.named("images"), images)))
        }))
    });
    std::array::from_fn(|place| Difference { mean: means[place], interval: found[place] })
}

fn mcnemar(own: &Outcomes, base: &Outcomes) -> McNemar {
    let both = own.images.iter().zip(&base.images);
    let (mut gained, mut lost) = (0, 0);
    for (own, base) in both {
        gained += u64::from(base.is_wrong() && !own.is_wrong());
        lost += u64::from(own.is_wrong() && !base.is_wrong());
    }
    McNemar::of(gained, lost)
}
