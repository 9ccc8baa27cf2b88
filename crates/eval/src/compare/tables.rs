//! A comparison in tables, alike on the page, in the terminal and in Markdown.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use omma_report::Better;

use super::{Comparison, Gain, Paired, Row, improvement::in_words};
use crate::{
    digits::{Digits, range},
    metrics::{Estimate, Interval},
    summary::SummaryIntervals,
};

/// One table; the first column has names, the others numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub header: Vec<String>,
    /// As many cells each.
    pub rows: Vec<Vec<String>>,
}

/// What is not known.
const NOTHING: &str = "—";
/// In front of the best of a column.
const BEST: &str = "★ ";

fn cell(estimate: Option<Estimate>, factor: f64, digits: usize) -> String {
    estimate.map_or(NOTHING.to_owned(), |value| format!("{:.digits$}", value.times(factor)))
}

/// A number and, of a single run, its interval: `28.3 (25.8–30.8)`.
fn within(value: Estimate, interval: Option<Interval>, factor: f64, digits: usize) -> String {
    let value = cell(Some(value), factor, digits);
    match interval {
        Some(interval) => format!("{value} ({})", range(interval.times(factor), digits)),
        None => value,
    }
}

/// What a row has in a column, as a number.
type Value<'a, R> = Box<dyn Fn(&R) -> Option<f64> + 'a>;

/// A column: its name, what a row has in it, and what is best.
struct Column<'a, R> {
    name: String,
    text: Box<dyn Fn(&R) -> String + 'a>,
    best: Option<(Better, Value<'a, R>)>,
}

fn column<'a, R>(name: impl Into<String>, text: impl Fn(&R) -> String + 'a) -> Column<'a, R> {
    Column { name: name.into(), text: Box::new(text), best: None }
}

impl<'a, R> Column<'a, R> {
    /// The same with the best row marked.
    fn best(self, better: Better, value: impl Fn(&R) -> Option<f64> + 'a) -> Self {
        Self { best: Some((better, Box::new(value))), ..self }
    }

    /// The cells of all rows.
    fn cells(&self, rows: &[R]) -> Vec<String> {
        let best = self.best.as_ref().filter(|_| rows.len() > 1);
        let best = best.and_then(|(better, value)| {
            let values = rows.iter().filter_map(value);
            let choose = match better {
                Better::Low => f64::min,
                Better::High => f64::max,
            };
            Some((values.reduce(choose)?, value))
        });
        let cell = |row: &R| match &best {
            Some((best, value)) if value(row) == Some(*best) => {
                format!("{BEST}{}", (self.text)(row))
            }
            _ => (self.text)(row),
        };
        rows.iter().map(cell).collect()
    }
}

impl Table {
    fn new<R>(rows: &[R], columns: &[Column<R>]) -> Self {
        let cells: Vec<Vec<String>> = columns.iter().map(|column| column.cells(rows)).collect();
        let row = |place: usize| cells.iter().map(|column| column[place].clone()).collect();
        Self {
            header: columns.iter().map(|column| column.name.clone()).collect(),
            rows: (0..rows.len()).map(row).collect(),
        }
    }

    /// In Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = (0..self.header.len()).map(|i| if i == 0 { "---" } else { "---:" }.to_owned());
        let mut text = line(&self.header) + &line(&rule.collect::<Vec<String>>());
        self.rows.iter().for_each(|row| text += &line(row));
        text
    }
}

impl Comparison {
    /// Names of all out-of-distribution data sets.
    pub(crate) fn ood_sets(&self) -> BTreeSet<&String> {
        self.rows.iter().flat_map(|row| row.auroc.keys()).collect()
    }

    /// All tables that there is something for.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.systems_table()];
        tables.extend(self.members_table());
        tables.extend(self.contrast_table());
        tables.extend(self.segmentation_table());
        tables.extend(self.subsets.iter().flat_map(|subsets| subsets.tables()));
        tables.extend(self.ood_tables());
        tables.extend(self.few_shot_tables());
        tables.extend(self.gains_table());
        tables.extend(self.paired_table());
        tables
    }

    /// All tables in Markdown.
    pub fn markdown(&self) -> String {
        self.tables().iter().map(Table::markdown).collect::<Vec<String>>().join("\n")
    }

    /// What a system is called, and whether it is the baseline.
    fn label(&self, row: &Row) -> String {
        match self.rows.len() > 1 && row.label == self.baseline {
            true => format!("{} (baseline)", row.label),
            false => row.label.clone(),
        }
    }

    /// The scores of every system, as it is and under corruptions.
    pub(crate) fn systems_table(&self) -> Table {
        let digits = Digits::of_images(self.images);
        let mean = |of: fn(&Row) -> Option<Estimate>| move |row: &Row| Some(of(row)?.mean);
        let interval =
            |of: fn(&SummaryIntervals) -> Interval| move |row: &Row| row.intervals.as_ref().map(of);
        let scored = |name: &str,
                      factor: f64,
                      digits: usize,
                      of: fn(&Row) -> Option<Estimate>,
                      range: fn(&SummaryIntervals) -> Interval| {
            let text = move |row: &Row| {
                of(row).map_or(NOTHING.to_owned(), |value| {
                    within(value, interval(range)(row), factor, digits)
                })
            };
            column(name, text).best(Better::Low, mean(of))
        };
        let kl = digits.nll + 1;
        let mut columns: Vec<Column<Row>> = vec![
            column("system", |row: &Row| self.label(row)),
            column("runs", |row: &Row| row.runs.to_string()),
        ];
        let flops =
            || column("MFLOPs", |row: &Row| format!("{:.1}", row.cost.training_flops as f64 / 1e6));
        if !self.has_classes() {
            columns.push(flops());
            return Table::new(&self.rows, &columns);
        }
        columns.extend([
            scored("error %", 100.0, digits.error, |row| row.error, |all| all.error),
            scored("NLL", 1.0, digits.nll, |row| row.nll, |all| all.nll),
            scored("ECE %", 100.0, digits.ece, |row| row.ece, |all| all.ece),
            column("KL", move |row: &Row| cell(row.kl, 1.0, kl)),
            flops(),
        ]);
        let plain = |name: &str, factor: f64, digits: usize, of: fn(&Row) -> Option<Estimate>| {
            column(name, move |row: &Row| cell(of(row), factor, digits)).best(Better::Low, mean(of))
        };
        if self.rows.iter().any(|row| row.shift_error.is_some()) {
            columns.extend([
                plain("shifted error %", 100.0, digits.error, |row| row.shift_error),
                plain("shifted NLL", 1.0, digits.nll, |row| row.shift_nll),
                plain("shifted ECE %", 100.0, digits.ece, |row| row.shift_ece),
            ]);
        }
        if self.rows.iter().any(|row| row.shift_kl.is_some()) {
            columns.push(column("shifted KL", move |row: &Row| cell(row.shift_kl, 1.0, kl)));
        }
        Table::new(&self.rows, &columns)
    }

    /// How the members of ensembles differ (paper 000 §5), beside the scores that are in no other table; nothing
    /// without ensembles.
    pub(crate) fn members_table(&self) -> Option<Table> {
        let Digits { nll, .. } = Digits::of_images(self.images);
        let low = |name: &str, of: fn(&Row) -> Option<Estimate>| {
            column(name, move |row: &Row| cell(of(row), 1.0, nll + 1))
                .best(Better::Low, move |row| Some(of(row)?.mean))
        };
        let columns = [
            column("members", |row: &Row| self.label(row)),
            column("KL", move |row: &Row| cell(row.kl, 1.0, nll + 1)),
            column("cosine", move |row: &Row| cell(row.cosine, 1.0, nll + 1)),
            column("disagreement %", move |row: &Row| cell(row.disagreement, 100.0, 2)),
            low("Brier", |row| row.brier),
            low("NLL, scaled", |row| row.scaled_nll),
        ];
        let any = self.rows.iter().any(|row| row.kl.is_some());
        any.then(|| Table::new(&self.rows, &columns))
    }

    /// Whether any system was judged by classes.
    pub(crate) fn has_classes(&self) -> bool {
        self.rows.iter().any(|row| row.error.is_some())
    }

    /// How images and texts find each other; nothing where no system compares them.
    pub(crate) fn contrast_table(&self) -> Option<Table> {
        let digits = Digits::of_images(self.images).error;
        let share = |name: &str, of: fn(&Row) -> Option<Estimate>| {
            column(name, move |row: &Row| cell(of(row), 100.0, digits))
                .best(Better::High, move |row| Some(of(row)?.mean))
        };
        let zero_shot = |row: &Row| {
            let error = row.error.filter(|_| row.reads)?;
            Some(Estimate { mean: 1.0 - error.mean, ..error })
        };
        let mut columns = vec![column("images and texts", |row: &Row| self.label(row))];
        if self.rows.iter().any(|row| zero_shot(row).is_some()) {
            columns.push(share("zero-shot accuracy %", zero_shot));
        }
        if self.rows.iter().any(|row| row.text_to_image.is_some()) {
            columns.extend([
                share("text → image at 1 %", |row| Some(row.text_to_image?.at_1)),
                share("at 5", |row| Some(row.text_to_image?.at_5)),
                share("at 10", |row| Some(row.text_to_image?.at_10)),
                share("image → text at 1 %", |row| Some(row.image_to_text?.at_1)),
                share("at 5", |row| Some(row.image_to_text?.at_5)),
                share("at 10", |row| Some(row.image_to_text?.at_10)),
                share("images told apart %", |row| row.images_told_apart),
                share("texts told apart %", |row| row.texts_told_apart),
            ]);
        }
        (columns.len() > 1).then(|| Table::new(&self.rows, &columns))
    }

    /// What pixels are taken for; nothing where no system labels pixels.
    pub(crate) fn segmentation_table(&self) -> Option<Table> {
        let percent = |name: &str, better: Better, of: fn(&Row) -> Option<Estimate>| {
            column(name, move |row: &Row| cell(of(row), 100.0, 1))
                .best(better, move |row| Some(of(row)?.mean))
        };
        let columns = [
            column("pixels", |row: &Row| self.label(row)),
            percent("mean IoU %", Better::High, |row| row.mean_iou),
            percent("pixels right %", Better::High, |row| row.pixel_accuracy),
            column("NLL", |row: &Row| cell(row.pixel_nll, 1.0, 3))
                .best(Better::Low, |row| Some(row.pixel_nll?.mean)),
            percent("ECE %", Better::Low, |row| row.pixel_ece),
        ];
        let any = self.rows.iter().any(|row| row.mean_iou.is_some());
        any.then(|| Table::new(&self.rows, &columns))
    }

    /// How well every system tells out-of-distribution images, one table per data set.
    pub(crate) fn ood_tables(&self) -> Vec<Table> {
        let digits = Digits::of_images(self.images).error;
        let table = |name: &String| {
            let percent =
                |title: String, better: Better, of: fn(&Row) -> &BTreeMap<String, Estimate>| {
                    let (own, other) = (name.clone(), name.clone());
                    let text = move |row: &Row| cell(of(row).get(&own).copied(), 100.0, digits);
                    column(title, text).best(better, move |row| Some(of(row).get(&other)?.mean))
                };
            let rate = self.rows.iter().find_map(|row| row.base_rate.get(name));
            let aupr = rate.map_or("AUPR %".to_owned(), |rate| {
                format!("AUPR % (base rate {:.1})", 100.0 * rate.mean)
            });
            let columns = [
                column(format!("against {name}"), |row: &Row| self.label(row)),
                percent("AUROC %".to_owned(), Better::High, |row| &row.auroc),
                percent(aupr, Better::High, |row| &row.aupr),
                percent("FPR95 %".to_owned(), Better::Low, |row| &row.fpr95),
            ];
            Table::new(&self.rows, &columns)
        };
        self.ood_sets().into_iter().map(table).collect()
    }

    /// Accuracies on other data from a few images of every class, one table per number of these.
    pub(crate) fn few_shot_tables(&self) -> Vec<Table> {
        type Value = Rc<dyn Fn(&Row) -> Option<Estimate>>;
        let all = || self.rows.iter().flat_map(|row| &row.few_shot);
        let numbers: BTreeSet<usize> = all().map(|transfer| transfer.shots).collect();
        let table = |shots: usize| {
            let of = move |row: &Row| {
                row.few_shot.iter().find(|transfer| transfer.shots == shots).cloned()
            };
            let percent = |title: String, value: Value| {
                let text = value.clone();
                column(title, move |row: &Row| cell(text(row), 100.0, 2))
                    .best(Better::High, move |row| Some(value(row)?.mean))
            };
            let mut columns = vec![column(format!("{shots} shots"), |row: &Row| self.label(row))];
            let names: BTreeSet<&String> = all().flat_map(|one| one.accuracy.keys()).collect();
            for name in names {
                let own = name.clone();
                let value = move |row: &Row| of(row)?.accuracy.get(&own).copied();
                columns.push(percent(format!("{name} %"), Rc::new(value)));
            }
            columns.push(percent("mean %".to_owned(), Rc::new(move |row: &Row| of(row)?.mean)));
            let title = format!("mean in units of {}, %", self.baseline);
            columns.push(percent(title, Rc::new(move |row: &Row| of(row)?.weighted)));
            Table::new(&self.rows, &columns)
        };
        numbers.into_iter().map(table).collect()
    }

    /// Gains over the baseline; nothing if it is alone.
    pub(crate) fn gains_table(&self) -> Option<Table> {
        let signed = |gain: Option<f64>| gain.map_or(NOTHING.to_owned(), in_words);
        let columns: [Column<Gain>; 7] = [
            column(format!("gain over {}", self.baseline), |gain: &Gain| gain.label.clone()),
            column("NLL", |gain: &Gain| signed(gain.nll)),
            column("shifted NLL", |gain: &Gain| signed(gain.shift_nll)),
            column("error", |gain: &Gain| signed(gain.error)),
            column("ECE", |gain: &Gain| signed(gain.ece)),
            column("training FLOPs", |gain: &Gain| signed(gain.flops)),
            column("NLL, normalised", |gain: &Gain| signed(gain.normalised_nll)),
        ];
        let any = self.has_classes() && !self.gains.is_empty();
        any.then(|| Table::new(&self.gains, &columns))
    }

    /// Differences from the baseline, image by image; nothing where no results of single images are there.
    pub(crate) fn paired_table(&self) -> Option<Table> {
        let paired: Vec<(&String, &Paired)> = self
            .gains
            .iter()
            .filter_map(|gain| Some((&gain.label, gain.paired.as_ref()?)))
            .collect();
        let cell =
            |place: usize| move |(_, paired): &(&String, &Paired)| paired.cells()[place].clone();
        let columns: [Column<(&String, &Paired)>; 6] = [
            column(format!("less {}", self.baseline), |row: &(&String, &Paired)| row.0.clone()),
            column("NLL", cell(0)),
            column("error, points", cell(1)),
            column("right alone : baseline", cell(2)),
            column("p (McNemar)", cell(3)),
            column("verdict", |row: &(&String, &Paired)| row.1.verdict()),
        ];
        (!paired.is_empty()).then(|| Table::new(&paired, &columns))
    }

    /// What can be told apart and what cannot, in a sentence per system.
    pub fn verdicts(&self) -> Vec<String> {
        let sentence = |gain: &Gain| match (&gain.paired, &gain.unpaired) {
            (Some(paired), _) => {
                Some(format!("{} is {}", gain.label, paired.in_words(&self.baseline)))
            }
            (None, why) => {
                Some(format!("{} was not compared image by image: {}", gain.label, why.as_ref()?))
            }
        };
        let gains = self.gains.iter().filter(|_| self.has_classes());
        gains.filter_map(sentence).collect()
    }
}
