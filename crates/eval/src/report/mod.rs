//! What was found, to look at: figures, and one page that holds them.
//!
//! A page is a function of the record alone, so it can be made again from `eval.json`; pictures, which a
//! record does not hold, are an input of their own that may be missing. What a protocol has to show is in its
//! own file; here its sections become one page.

mod captions;
mod comparison;
mod evaluation;
mod files;
mod pictures;

use omma_report::Page;

pub use self::{
    comparison::comparison_page,
    evaluation::{evaluation_page, evaluation_page_with},
    files::write_report,
    pictures::add_pictures,
};
use crate::summary::Summary;

/// A page and its figures, each a document of its own.
#[derive(Debug, Clone)]
pub struct Report {
    /// One HTML document that needs nothing beside it.
    pub html: String,
    /// File names without an ending, and SVG documents.
    pub figures: Vec<(String, String)>,
}

/// A file name without an ending, and an SVG document.
pub(crate) type Figure = (String, String);

/// A page as it grows. Its figures are kept, since they become files too.
pub(crate) struct Draft {
    page: Page,
    figures: Vec<Figure>,
}

impl Draft {
    pub(crate) fn new(page: Page) -> Self {
        Self { page, figures: Vec::new() }
    }

    /// Adds what is no figure.
    pub(crate) fn add(self, more: impl FnOnce(Page) -> Page) -> Self {
        Self { page: more(self.page), ..self }
    }

    pub(crate) fn figures(mut self, figures: Vec<Figure>) -> Self {
        let captioned = |(file, svg): &Figure| (svg.clone(), captions::caption(file));
        self.page = self.page.figures(figures.iter().map(captioned));
        self.figures.extend(figures);
        self
    }

    pub(crate) fn finish(self) -> Report {
        Report { html: self.page.html(), figures: self.figures }
    }
}

/// A title, a value and a note.
pub(crate) type Fact = (&'static str, String, String);

/// The header of a table of [`score_row`]s.
pub(crate) const SCORES: [&str; 5] = ["", "error", "NLL", "Brier", "ECE"];

pub(crate) fn score_row(name: &str, scores: &Summary) -> Vec<String> {
    let Summary { error, nll, brier, ece } = *scores;
    let nll = format!("{nll:.4}");
    vec![name.to_owned(), percent(error), nll, format!("{brier:.4}"), percent(ece)]
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Letters, digits and dashes.
pub(crate) fn file_name(name: &str) -> String {
    let plain = |symbol: char| if symbol.is_ascii_alphanumeric() { symbol } else { '-' };
    name.chars().map(plain).collect::<String>().to_lowercase()
}
