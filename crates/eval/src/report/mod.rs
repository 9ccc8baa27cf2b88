//! What was found, to look at: figures, and one page that holds them.
//!
//! Everything here is a function of the record alone, so a page can be made again from `eval.json`.

mod comparison;
mod evaluation;
mod files;

pub use self::{comparison::comparison_page, evaluation::evaluation_page, files::write_report};

/// A page and its figures, each a document of its own.
#[derive(Debug, Clone)]
pub struct Report {
    /// The page.
    pub html: String,
    /// File names without an ending, and SVG documents.
    pub figures: Vec<(String, String)>,
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Letters, digits and dashes.
pub(crate) fn file_name(name: &str) -> String {
    let plain = |symbol: char| if symbol.is_ascii_alphanumeric() { symbol } else { '-' };
    name.chars().map(plain).collect::<String>().to_lowercase()
}
