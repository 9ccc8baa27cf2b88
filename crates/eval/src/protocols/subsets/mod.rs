//! Some experts of a Soft MoE: how far do they come, and who are they? (paper 004 §4)
//!
//! | choice | which experts serve an image |
//! |---|---|
//! | best | those with the largest combine weights (Algorithm 1) |
//! | least | those with the smallest |
//! | random | any, drawn for every image (§4.4), several times |
//! | exhaustive | of all subsets, one that gives its label, which must be known (§4.2) |

mod run;
mod size;

use omma_report::{HeatMap, Lines, Series};
use serde::{Deserialize, Serialize};

pub(super) use self::run::subsets;
pub use self::size::{SubsetSize, SubsetSizeError};
use crate::report::{Draft, Figure};

/// Which subsets are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubsetsProtocol {
    /// How many experts serve; sizes that a model does not have are left out.
    pub sizes: Vec<SubsetSize>,
    /// How many times random experts are drawn.
    pub draws: usize,
    /// The most subsets that are all tried, of a model with one layer of experts.
    pub exhaustive: usize,
}

impl Default for SubsetsProtocol {
    /// Tables 2 and 10: a half, a quarter and an eighth, random experts of 10 seeds. Of 16 experts (Table 1) there
    /// are 1,820 subsets of four.
    fn default() -> Self {
        Self { sizes: SubsetSize::PAPER.to_vec(), draws: 10, exhaustive: 2_000 }
    }
}

/// What some experts of a Soft MoE get right, `eval.json`'s `subsets`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubsetsRecord {
    /// Experts of a layer, `n`.
    pub experts: usize,
    /// Images.
    pub samples: usize,
    /// Accuracy with all of them.
    pub all: f64,
    /// From many experts to few.
    pub sizes: Vec<SubsetRecord>,
}

/// Subsets of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubsetRecord {
    /// Experts that serve an image, `k`.
    pub serving: usize,
    /// Accuracy by the experts with the largest weights.
    pub best: f64,
    /// Accuracy by those with the smallest.
    pub least: f64,
    /// Accuracy by random ones, of every draw.
    pub random: Vec<f64>,
    /// Every subset tried, where these are few and there is one layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exhaustive: Option<ExhaustiveRecord>,
    /// Who the experts with the largest weights are, layer by layer.
    pub layers: Vec<LayerSubsets>,
}

/// What there is for those who know the label (§4.2).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExhaustiveRecord {
    /// Share of the images that some subset gets right.
    pub accuracy: f64,
    /// Subsets that were tried.
    pub subsets: usize,
    /// Those of them that serve an image: of the subsets that get it right, the one that is surest (Fig. 5).
    pub distinct: usize,
}

/// The experts of a layer that Algorithm 1 chooses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerSubsets {
    /// Which block.
    pub block: usize,
    /// Different subsets among all images.
    pub distinct: usize,
    /// `[classes, E]`: the share of a class's images that an expert serves.
    pub classes: Vec<Vec<f64>>,
}

impl SubsetRecord {
    /// The mean accuracy of random experts.
    pub fn random_mean(&self) -> f64 {
        self.random.iter().sum::<f64>() / self.random.len().max(1) as f64
    }

    /// The standard deviation between draws of them, `√(Σ(a − ā)² / (draws − 1))`.
    pub fn random_deviation(&self) -> f64 {
        let mean = self.random_mean();
        let squares: f64 = self.random.iter().map(|one| (one - mean).powi(2)).sum();
        (squares / self.random.len().saturating_sub(1).max(1) as f64).sqrt()
    }

    /// By how many of these Algorithm 1 is above random experts (Tables 2, 10–13); nothing where draws do not
    /// differ.
    pub fn deviations_above_random(&self) -> Option<f64> {
        let deviation = self.random_deviation();
        (deviation > 0.0).then(|| (self.best - self.random_mean()) / deviation)
    }

    /// `1/4 of 16`, or `3 of 16` where that is no such part.
    pub fn share_of(&self, experts: usize) -> String {
        match experts.is_multiple_of(self.serving) {
            true => format!("1/{} of {experts}", experts / self.serving),
            false => format!("{} of {experts}", self.serving),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.2}", 100.0 * share)
}

impl SubsetsRecord {
    /// Names of the columns of [`Self::rows`].
    pub const HEADER: [&'static str; 8] = [
        "experts",
        "share",
        "largest weights, %",
        "random, %",
        "deviations above",
        "smallest, %",
        "some subset, %",
        "different subsets",
    ];

    /// A row of words for every size, and one for all experts.
    pub fn rows(&self) -> Vec<[String; 8]> {
        let nothing = || "—".to_owned();
        let all = [self.experts.to_string(), "1".to_owned(), percent(self.all)];
        let [experts, share, best] = all;
        let mut rows =
            vec![[experts, share, best, nothing(), nothing(), nothing(), nothing(), nothing()]];
        rows.extend(self.sizes.iter().map(|size| {
            let distinct: Vec<String> =
                size.layers.iter().map(|layer| layer.distinct.to_string()).collect();
            let above = size.deviations_above_random();
            let of_all = size.exhaustive.map(|found| percent(found.accuracy));
            [
                size.serving.to_string(),
                size.share_of(self.experts),
                percent(size.best),
                format!("{} ± {}", percent(size.random_mean()), percent(size.random_deviation())),
                above.map_or_else(nothing, |above| format!("{above:.2}")),
                percent(size.least),
                of_all.unwrap_or_else(nothing),
                distinct.join(", "),
            ]
        }));
        rows
    }

    /// Whether its numbers belong together.
    pub(crate) fn is_of(&self, classes: usize) -> bool {
        let whole = |layer: &LayerSubsets| {
            layer.classes.len() == classes
                && layer.classes.iter().all(|experts| experts.len() == self.experts)
        };
        self.sizes
            .iter()
            .all(|size| (1..=self.experts).contains(&size.serving) && size.layers.iter().all(whole))
    }

    /// Accuracy against the share of experts, and which of them serve which classes.
    pub(crate) fn section(&self, draft: Draft, classes: &[String]) -> Draft {
        let text = "Some experts of every Soft MoE layer serve an image, the others are left out (paper 004 \
                    Algorithm 1): those with the largest combine weights, those with the smallest, or random ones, \
                    with the standard deviation between draws and by how many of these the first are above. \
                    Where few subsets exist, all are tried: some subset gets so many images right, for who knows \
                    the label. Different subsets are those that the largest weights choose, layer by layer.";
        let rows: Vec<Vec<String>> = self.rows().into_iter().map(Vec::from).collect();
        let draft = draft
            .add(|page| page.section("Subsets of experts").text(text).table(&Self::HEADER, &rows))
            .captioned(
                vec![("subsets".to_owned(), self.figure())],
                "Accuracy by the share of the experts that serve an image.",
            );
        draft.captioned(
            self.class_figures(classes),
            "Rows are classes: the darker a cell, the larger the share of what serves the class that is this \
             expert's.",
        )
    }

    fn figure(&self) -> String {
        let share = |size: &SubsetRecord| size.serving as f64 / self.experts as f64;
        let line = |name: &str, of: &dyn Fn(&SubsetRecord) -> Option<f64>, to_all: bool| {
            let points =
                self.sizes.iter().filter_map(|size| Some((share(size), 100.0 * of(size)?)));
            let all = to_all.then_some((1.0, 100.0 * self.all));
            let mut points: Vec<(f64, f64)> = points.chain(all).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series::new(name, points)
        };
        let some = line("some subset", &|size| Some(size.exhaustive?.accuracy), false);
        let series = [
            line("largest weights", &|size| Some(size.best), true),
            line("random", &|size| Some(size.random_mean()), true),
            line("smallest weights", &|size| Some(size.least), true),
        ];
        Lines {
            title: "Subsets of experts".to_owned(),
            x_label: "share of the experts".to_owned(),
            y_label: "accuracy, %".to_owned(),
            series: series.into_iter().chain((!some.points.is_empty()).then_some(some)).collect(),
            ..Lines::default()
        }
        .svg()
    }

    /// Of the fewest experts, where who serves says most.
    fn class_figures(&self, classes: &[String]) -> Vec<Figure> {
        let layers = self.sizes.last().into_iter().flat_map(|size| &size.layers);
        let figure = |layer: &LayerSubsets| {
            let map = HeatMap {
                title: format!("Experts of block {} by class", layer.block),
                row_label: "class".to_owned(),
                column_label: "expert".to_owned(),
                rows: classes.to_vec(),
                columns: (0..self.experts).map(|expert| expert.to_string()).collect(),
                values: layer.classes.clone(),
            };
            (format!("subsets-classes-{}", layer.block), map.svg_by_largest())
        };
        layers.map(figure).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_are_counted_between_draws() {
        let record = SubsetRecord {
            serving: 2,
            best: 0.9,
            least: 0.2,
            random: vec![0.5, 0.6, 0.7],
            exhaustive: None,
            layers: Vec::new(),
        };
        // (0.9 − 0.6) / √((0.01 + 0 + 0.01) / 2)
        assert!((record.deviations_above_random().unwrap() - 3.0).abs() < 1e-9);
        assert_eq!((record.share_of(8), record.share_of(7)), ("1/4 of 8".into(), "2 of 7".into()));
        let same = SubsetRecord { random: vec![0.5; 10], ..record };
        assert_eq!(same.deviations_above_random(), None);
    }
}
