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

pub(crate) use self::pictures::experts as expert_pictures;
pub use self::{
    comparison::{StudyFigure, comparison_page, study_page},
    evaluation::{evaluation_page, evaluation_page_with},
    files::{write_evaluation, write_report},
    pictures::{add_contrast, add_pictures, add_segmentation},
};
use crate::{
    digits::{Digits, Scored},
    summary::{Summary, SummaryIntervals},
};

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

    /// Figures that are read alike.
    pub(crate) fn captioned(mut self, figures: Vec<Figure>, caption: &str) -> Self {
        self.page = self.page.figures(figures.iter().map(|(_, svg)| (svg.clone(), caption)));
        self.figures.extend(figures);
        self
    }

    pub(crate) fn finish(self) -> Report {
        Report { html: self.page.html(), figures: self.figures }
    }
}

/// A title, a value and a note.
pub(crate) type Fact = (&'static str, String, String);

/// A table of scores, with their intervals where these are known.
pub(crate) struct ScoreTable {
    digits: Digits,
    top5: bool,
    rows: Vec<Vec<String>>,
}

impl ScoreTable {
    /// - `first`: of the rows to come, which all have a top-5 error or none
    pub(crate) fn new(digits: Digits, first: &Summary) -> Self {
        Self { digits, top5: first.top5_error.is_some(), rows: Vec::new() }
    }

    pub(crate) fn row(
        mut self,
        name: &str,
        scores: &Summary,
        intervals: Option<&SummaryIntervals>,
    ) -> Self {
        self.rows.push(self.cells(name, scores, intervals));
        self
    }

    /// A row by itself.
    pub(crate) fn cells(
        &self,
        name: &str,
        scores: &Summary,
        intervals: Option<&SummaryIntervals>,
    ) -> Vec<String> {
        let values = self.digits.scores(scores);
        let top5_error = values.top5_error.clone().or(self.top5.then(|| "—".to_owned()));
        let mut values = Scored { top5_error: top5_error.filter(|_| self.top5), ..values }.cells();
        if let Some(intervals) = intervals {
            let ranges = self.digits.intervals(intervals).cells();
            let both = values.iter_mut().zip(ranges).filter(|(value, _)| *value != "—");
            both.for_each(|(value, range)| *value += &format!(" ({range})"));
        }
        std::iter::once(name.to_owned()).chain(values).collect()
    }

    pub(crate) fn header(&self) -> Vec<&'static str> {
        let top5 = self.top5.then_some("top-5 error");
        ["", "error"].into_iter().chain(top5).chain(["NLL", "Brier", "ECE"]).collect()
    }

    pub(crate) fn onto(self, page: Page) -> Page {
        page.table(&self.header(), &self.rows)
    }
}

/// Letters, digits and dashes.
pub(crate) fn file_name(name: &str) -> String {
    let plain = |symbol: char| if symbol.is_ascii_alphanumeric() { symbol } else { '-' };
    name.chars().map(plain).collect::<String>().to_lowercase()
}
