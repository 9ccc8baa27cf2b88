//! Answers as they are written.

use std::io::Write;

use anyhow::Result;
use clap::ValueEnum;
use omma_base::text::visible;
use omma_eval::Prediction;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Input;

/// How answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line for people
    Text,
    /// A table with a header: image, class_1, probability_1, spread_1, …, entropy, mutual_information
    Csv,
    /// An object per line
    Jsonl,
}

/// Writes one answer after the other.
pub(crate) struct Printer<'a> {
    format: Format,
    /// Names of what tables say about images.
    columns: &'a [String],
    /// Whether somebody's names must not do anything to a terminal.
    shown: bool,
    begun: bool,
    to: &'a mut dyn Write,
}

#[derive(Serialize)]
struct Line<'a> {
    image: &'a str,
    #[serde(flatten)]
    prediction: &'a Prediction,
    /// What its table says about it.
    #[serde(skip_serializing_if = "Map::is_empty")]
    columns: Map<String, Value>,
}

impl<'a> Printer<'a> {
    /// - `shown`: whether `to` is seen by people
    pub(crate) fn new(
        format: Format,
        columns: &'a [String],
        shown: bool,
        to: &'a mut dyn Write,
    ) -> Self {
        Self { format, columns, shown, begun: false, to }
    }

    pub(crate) fn print(&mut self, input: &Input, prediction: &Prediction) -> Result<()> {
        let mut text = match self.format {
            Format::Text => line(&input.name, prediction),
            Format::Csv => self.csv(input, prediction)?,
            Format::Jsonl => {
                let cells = self.columns.iter().zip(&input.carried);
                let columns = cells.map(|(name, cell)| (name.clone(), cell.clone().into()));
                let (image, columns) = (input.name.as_str(), columns.collect());
                serde_json::to_string(&Line { image, prediction, columns })? + "\n"
            }
        };
        if self.shown || self.format != Format::Csv {
            text = visible(&text).into_owned();
        }
        self.begun = true;
        Ok(self.to.write_all(text.as_bytes())?)
    }

    /// A row; the header before the first.
    fn csv(&self, input: &Input, prediction: &Prediction) -> Result<String> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        if !self.begun {
            let mut header = vec!["image".to_owned()];
            for place in 1..=prediction.top.len() {
                header.extend(["class", "probability", "spread"].map(|of| format!("{of}_{place}")));
            }
            header.extend(["entropy", "mutual_information"].map(str::to_owned));
            let own = header.clone();
            header.extend(self.columns.iter().map(|name| match own.contains(name) {
                true => format!("input_{name}"),
                false => name.clone(),
            }));
            writer.write_record(&header)?;
        }
        let number = |value: f64| format!("{value:.6}");
        let mut row = vec![input.name.clone()];
        for guess in &prediction.top {
            row.extend([guess.class.clone(), number(guess.probability), number(guess.spread)]);
        }
        row.extend([number(prediction.entropy), number(prediction.mutual_information)]);
        let cell = |place: usize| input.carried.get(place).cloned().unwrap_or_default();
        row.extend((0..self.columns.len()).map(cell));
        writer.write_record(&row)?;
        Ok(String::from_utf8(writer.into_inner()?)?)
    }
}

/// `photo.jpg: cat 71.2 ± 3.1 %, dog 20.0 ± 2.2 %  (entropy 0.93, of which disagreement 0.04)`
fn line(name: &str, prediction: &Prediction) -> String {
    let several = prediction.members > 1;
    let guesses = prediction.top.iter().map(|guess| {
        let spread =
            if several { format!(" ± {:.1}", 100.0 * guess.spread) } else { String::new() };
        format!("{} {:.1}{spread} %", guess.class, 100.0 * guess.probability)
    });
    let disagreement = match several {
        true => format!(", of which disagreement {:.2}", prediction.mutual_information),
        false => String::new(),
    };
    let guesses = guesses.collect::<Vec<_>>().join(", ");
    format!("{name}: {guesses}  (entropy {:.2}{disagreement})\n", prediction.entropy)
}
