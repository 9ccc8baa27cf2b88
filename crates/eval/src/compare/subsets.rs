//! Some experts of several Soft MoEs beside each other (paper 004 §4).

use omma_report::{Bars, Lines, Page, Series};
use serde::Serialize;

use super::Table;
use crate::{
    metrics::Estimate,
    protocols::{
        Evaluation,
        subsets::{SubsetRecord, SubsetsRecord},
    },
    report::Figure,
};

/// Soft MoEs of different numbers of experts, by what some of their experts get right.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SubsetComparison {
    /// From few experts to many.
    pub systems: Vec<SubsetSystem>,
}

/// A system over its seeds. Accuracies are shares of one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SubsetSystem {
    /// What it is called.
    pub label: String,
    /// Experts of a layer, `n`.
    pub experts: usize,
    /// Accuracy with all of them.
    pub all: Estimate,
    /// From many experts to few.
    pub sizes: Vec<SubsetEstimates>,
}

/// Subsets of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SubsetEstimates {
    /// Experts that serve an image, `k`.
    pub serving: usize,
    /// Accuracy by those with the largest weights (Algorithm 1).
    pub best: Estimate,
    /// Accuracy by random ones, the mean of all draws.
    pub random: Estimate,
    /// Accuracy by those with the smallest weights.
    pub least: Estimate,
    /// Standard deviations between draws that the first is above the second (Tables 2, 10–13).
    pub deviations_above_random: Option<Estimate>,
    /// Share of the images that some subset gets right (Table 1).
    pub some_subset: Option<Estimate>,
    /// Subsets that this takes (Fig. 5).
    pub subsets_used: Option<Estimate>,
}

impl SubsetComparison {
    /// Of systems over their seeds; nothing where no subset was asked for.
    ///
    /// - `groups`: what they are called, and the evaluations of all seeds
    pub(super) fn of(groups: &[(String, Vec<&Evaluation>)]) -> Option<Self> {
        let system = |(label, group): &(String, Vec<&Evaluation>)| {
            let records: Vec<&SubsetsRecord> =
                group.iter().filter_map(|one| one.subsets.as_ref()).collect();
            SubsetSystem::of(label, &records)
        };
        let mut systems: Vec<SubsetSystem> = groups.iter().filter_map(system).collect();
        systems.sort_by_key(|system| system.experts);
        (!systems.is_empty()).then_some(Self { systems })
    }

    /// `1/2`, `1/4`, …: the shares that any system has, from large to small.
    fn shares(&self) -> Vec<(usize, usize)> {
        let all = self.systems.iter().flat_map(|system| {
            system.sizes.iter().map(|size| reduced(size.serving, system.experts))
        });
        let mut all: Vec<(usize, usize)> = all.collect();
        all.sort_by(|a, b| (b.0 * a.1).cmp(&(a.0 * b.1)));
        all.dedup();
        all
    }

    /// Algorithm 1 beside random experts, deviations above these, and where all subsets were tried, what that found.
    pub(super) fn tables(&self) -> Vec<Table> {
        let shares = self.shares();
        let by_share = |first: &str, name: &str| {
            let own = shares.iter().map(|(k, n)| format!("{name} {k}/{n}"));
            std::iter::once(first.to_owned()).chain(own).collect::<Vec<String>>()
        };
        let row = |system: &SubsetSystem, cell: &dyn Fn(&SubsetEstimates) -> Option<String>| {
            let cells = shares
                .iter()
                .map(|share| system.size(*share).and_then(cell).unwrap_or_else(|| "—".to_owned()));
            cells.collect::<Vec<String>>()
        };
        let percent = |estimate: Estimate| format!("{:.2}", estimate.times(100.0));
        let mut header = by_share("experts that serve, accuracy in %", "largest weights,");
        header.insert(1, "all".to_owned());
        header.extend(by_share("", "random,").into_iter().skip(1));
        let accuracies = self.systems.iter().map(|system| {
            let all = [system.label.clone(), percent(system.all)];
            let best = row(system, &|size| Some(percent(size.best)));
            let random = row(system, &|size| Some(percent(size.random)));
            all.into_iter().chain(best).chain(random).collect()
        });
        let above = self.systems.iter().map(|system| {
            let cell =
                |size: &SubsetEstimates| Some(format!("{:.2}", size.deviations_above_random?));
            std::iter::once(system.label.clone()).chain(row(system, &cell)).collect()
        });
        let mut tables = vec![
            Table { header, rows: accuracies.collect() },
            Table { header: by_share("deviations above random", "k/n ="), rows: above.collect() },
        ];
        let exhaustive = self.systems.iter().flat_map(|system| {
            system.sizes.iter().filter_map(move |size| {
                let of = format!("{}, {} of {}", system.label, size.serving, system.experts);
                let used = format!("{:.0}", size.subsets_used?.mean);
                Some(vec![of, percent(size.some_subset?), percent(size.random), used])
            })
        });
        let rows: Vec<Vec<String>> = exhaustive.collect();
        let header = ["all subsets tried", "some subset, %", "random, %", "subsets used"];
        if !rows.is_empty() {
            tables.push(Table { header: header.map(str::to_owned).to_vec(), rows });
        }
        tables
    }

    /// What a page shows of it.
    pub(crate) fn section(&self, page: Page, figures: &mut Vec<Figure>) -> Page {
        let text = "Some experts of every Soft MoE layer serve an image: those with the largest combine weights \
                    (paper 004 Algorithm 1) or random ones. Then by how many standard deviations between random \
                    draws the first are above these (Tables 2 and 10), and what share of the images some subset gets \
                    right where all subsets were tried, for who knows the label (Table 1, Fig. 5).";
        let page = self.tables().iter().fold(
            page.section("Subsets of experts").text(text),
            |page, table| {
                let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
                page.table(&header, &table.rows)
            },
        );
        let own = [
            Some(("subsets-share".to_owned(), self.over_shares())),
            Some(("subsets-experts".to_owned(), self.over_experts())),
            self.subsets_used().map(|svg| ("subsets-used".to_owned(), svg)),
        ];
        let own: Vec<Figure> = own.into_iter().flatten().collect();
        figures.extend(own.iter().cloned());
        page.figures(own.into_iter().map(|(_, svg)| svg).collect::<Vec<_>>())
    }

    /// Fig. 1: a line per number of experts.
    fn over_shares(&self) -> String {
        let line = |system: &SubsetSystem| {
            let share = |size: &SubsetEstimates| size.serving as f64 / system.experts as f64;
            let sizes = system.sizes.iter().rev().map(|size| (share(size), size.best));
            line(&format!("n = {}", system.experts), sizes.chain([(1.0, system.all)]))
        };
        Lines {
            title: "Experts with the largest weights".to_owned(),
            x_label: "share of the experts, k/n".to_owned(),
            y_label: "accuracy, %".to_owned(),
            series: self.systems.iter().map(line).collect(),
            ..Lines::default()
        }
        .svg()
    }

    /// Fig. 2: a line per share, of the largest weights and of random experts.
    fn over_experts(&self) -> String {
        let of_share = |share: (usize, usize), name: &str, of: fn(&SubsetEstimates) -> Estimate| {
            let points = self
                .systems
                .iter()
                .filter_map(|system| Some((system.experts as f64, of(system.size(share)?))));
            line(&format!("{name}, {}/{}", share.0, share.1), points)
        };
        let all = self.systems.iter().map(|system| (system.experts as f64, system.all));
        let mut series = vec![line("all experts", all)];
        for share in self.shares() {
            series.push(of_share(share, "largest weights", |size| size.best));
            series.push(of_share(share, "random", |size| size.random));
        }
        Lines {
            title: "More and smaller experts".to_owned(),
            x_label: "experts, n".to_owned(),
            y_label: "accuracy, %".to_owned(),
            series,
            log_x: true,
            ..Lines::default()
        }
        .svg()
    }

    /// Fig. 5.
    fn subsets_used(&self) -> Option<String> {
        let bars = self.systems.iter().flat_map(|system| {
            system.sizes.iter().filter_map(move |size| {
                let label = format!("{} of {}", size.serving, system.experts);
                Some((label, size.subsets_used?.mean))
            })
        });
        let (labels, values): (Vec<String>, Vec<f64>) = bars.unzip();
        (!labels.is_empty()).then(|| {
            Bars {
                title: "Subsets that serve some image".to_owned(),
                x_label: "experts".to_owned(),
                y_label: "different subsets".to_owned(),
                labels,
                groups: vec![("label known".to_owned(), values)],
                reference: None,
                errors: Vec::new(),
            }
            .svg()
        })
    }
}

impl SubsetSystem {
    /// Nothing without records, or where these are of different models.
    fn of(label: &str, records: &[&SubsetsRecord]) -> Option<Self> {
        let first = records.first()?;
        let serving = |record: &SubsetsRecord| {
            record.sizes.iter().map(|size| size.serving).collect::<Vec<usize>>()
        };
        let alike = |other: &&SubsetsRecord| {
            other.experts == first.experts && serving(other) == serving(first)
        };
        if !records.iter().all(alike) {
            return None;
        }
        let all: Vec<f64> = records.iter().map(|record| record.all).collect();
        let sizes = (0..first.sizes.len()).map(|place| {
            let seeds: Vec<&SubsetRecord> =
                records.iter().map(|record| &record.sizes[place]).collect();
            SubsetEstimates::of(&seeds)
        });
        Some(Self {
            label: label.to_owned(),
            experts: first.experts,
            all: Estimate::of(&all),
            sizes: sizes.collect(),
        })
    }

    /// The subsets of a share of its experts, if it has them.
    fn size(&self, share: (usize, usize)) -> Option<&SubsetEstimates> {
        self.sizes.iter().find(|size| reduced(size.serving, self.experts) == share)
    }
}

impl SubsetEstimates {
    fn of(seeds: &[&SubsetRecord]) -> Self {
        let mean = |of: &dyn Fn(&SubsetRecord) -> f64| {
            Estimate::of(&seeds.iter().map(|seed| of(seed)).collect::<Vec<f64>>())
        };
        let maybe = |of: &dyn Fn(&SubsetRecord) -> Option<f64>| {
            let values: Vec<f64> = seeds.iter().filter_map(|seed| of(seed)).collect();
            (!values.is_empty()).then(|| Estimate::of(&values))
        };
        Self {
            serving: seeds[0].serving,
            best: mean(&|seed| seed.best),
            random: mean(&SubsetRecord::random_mean),
            least: mean(&|seed| seed.least),
            deviations_above_random: maybe(&SubsetRecord::deviations_above_random),
            some_subset: maybe(&|seed| Some(seed.exhaustive?.accuracy)),
            subsets_used: maybe(&|seed| Some(seed.exhaustive?.distinct as f64)),
        }
    }
}

/// `k/n` in lowest terms.
fn reduced(k: usize, n: usize) -> (usize, usize) {
    let (mut a, mut b) = (k, n);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    (k / a.max(1), n / a.max(1))
}

/// In percent, with standard errors where there are several seeds.
fn line(name: &str, points: impl Iterator<Item = (f64, Estimate)>) -> Series {
    let points: Vec<(f64, Estimate)> = points.map(|(x, y)| (x, y.times(100.0))).collect();
    let error = points.iter().map(|(_, y)| y.standard_error).collect();
    Series { error, ..Series::new(name, points.iter().map(|(x, y)| (*x, y.mean)).collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::subsets::ExhaustiveRecord;

    fn record(experts: usize, serving: &[usize], best: f64) -> SubsetsRecord {
        let size = |serving: &usize| SubsetRecord {
            serving: *serving,
            best,
            least: 0.1,
            random: vec![0.4, 0.5, 0.6],
            exhaustive: (experts < 8).then_some(ExhaustiveRecord {
                accuracy: 1.0,
                subsets: 6,
                distinct: 5,
            }),
            layers: Vec::new(),
        };
        let sizes = serving.iter().map(size).collect();
        SubsetsRecord { experts, samples: 10, all: 0.97, sizes }
    }

    #[test]
    fn systems_stand_beside_each_other_by_the_share_of_their_experts() {
        let [four, again, eight] =
            [record(4, &[2, 1], 0.8), record(4, &[2, 1], 0.9), record(8, &[4, 2, 1], 0.7)];
        let systems = vec![
            SubsetSystem::of("four", &[&four, &again]).unwrap(),
            SubsetSystem::of("eight", &[&eight]).unwrap(),
        ];
        let comparison = SubsetComparison { systems };
        assert_eq!(comparison.shares(), [(1, 2), (1, 4), (1, 8)]);
        let tables = comparison.tables();
        assert_eq!(tables[0].rows[0][2], "85.00 ± 5.00");
        assert_eq!(tables[0].rows[0][4], "—", "of four experts there is no eighth");
        assert_eq!(tables[1].rows[1], ["eight", "2.00", "2.00", "2.00"]);
        assert_eq!(tables[2].rows[0], ["four, 2 of 4", "100.00 ± 0.00", "50.00 ± 0.00", "5"]);
        assert_eq!(tables[2].rows.len(), 2, "of eight experts not all were tried");
        assert_eq!(SubsetSystem::of("both", &[&four, &eight]), None);
    }
}
