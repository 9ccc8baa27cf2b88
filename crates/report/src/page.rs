//! The page: one HTML file that needs nothing else.

use std::fmt::{self, Write};

use crate::text::escape;

const STYLE: &str = include_str!("page.css");

/// A figure on a page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figure {
    /// An SVG document of this crate, which goes onto the page as it is.
    pub svg: String,
    /// A sentence that says how to read it; may be empty.
    pub caption: String,
}

impl From<String> for Figure {
    fn from(svg: String) -> Self {
        Self { svg, caption: String::new() }
    }
}

impl From<(String, &str)> for Figure {
    fn from((svg, caption): (String, &str)) -> Self {
        Self { svg, caption: caption.to_owned() }
    }
}

/// A page under construction; every method adds a block below the last one.
#[derive(Debug, Clone)]
pub struct Page {
    title: String,
    subtitle: String,
    /// Finished markup: the lead, then one section per heading.
    body: String,
    in_section: bool,
}

impl Page {
    /// An empty page.
    pub fn new(title: impl Into<String>, subtitle: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            subtitle: subtitle.into(),
            body: String::new(),
            in_section: false,
        }
    }

    /// Starts a section.
    #[must_use]
    pub fn section(mut self, title: &str) -> Self {
        if self.in_section {
            self.add(format_args!("</section>"));
        }
        self.in_section = true;
        self.add(format_args!("<section>\n<h2>{}</h2>", escape(title)));
        self
    }

    /// Starts a part of a section.
    #[must_use]
    pub fn subsection(mut self, title: &str) -> Self {
        self.add(format_args!("<h3>{}</h3>", escape(title)));
        self
    }

    /// Adds paragraphs; an empty line parts them.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
            self.add(format_args!("<p>{}</p>", escape(paragraph.trim())));
        }
        self
    }

    /// Adds a line to type, which can be moved where it is wider than the page.
    #[must_use]
    pub fn code(mut self, line: &str) -> Self {
        self.add(format_args!(r#"<pre tabindex="0"><code>{}</code></pre>"#, escape(line)));
        self
    }

    /// Adds tiles of a name, a value in large type, and a note that may be empty.
    #[must_use]
    pub fn facts<'a>(mut self, facts: impl IntoIterator<Item = (&'a str, String, String)>) -> Self {
        self.add(format_args!(r#"<dl class="facts">"#));
        for (name, value, note) in facts {
            let (name, value) = (escape(name), escape(&value));
            self.add(format_args!("<div><dt>{name}</dt><dd>{value}</dd>"));
            if !note.is_empty() {
                self.add(format_args!(r#"<dd class="note">{}</dd>"#, escape(&note)));
            }
            self.add(format_args!("</div>"));
        }
        self.add(format_args!("</dl>"));
        self
    }

    /// Adds a table; columns of numbers are set flush right. Where it is wider than the page it can be moved,
    /// by keys too, and a shadow shows on which side there is more.
    #[must_use]
    pub fn table(mut self, header: &[&str], rows: &[Vec<String>]) -> Self {
        let numbers: Vec<bool> = (0..header.len())
            .map(|column| rows.iter().filter_map(|row| row.get(column)).all(|cell| is_number(cell)))
            .collect();
        let class = |column: usize| match numbers.get(column) {
            Some(true) => r#" class="number""#,
            _ => "",
        };
        self.add(format_args!(
            r#"<div class="table" role="region" aria-label="table" tabindex="0"><table><thead><tr>"#
        ));
        for (column, name) in header.iter().enumerate() {
            self.add(format_args!(r#"<th scope="col"{}>{}</th>"#, class(column), escape(name)));
        }
        self.add(format_args!("</tr></thead><tbody>"));
        for row in rows {
            self.add(format_args!("<tr>"));
            for (column, cell) in row.iter().enumerate() {
                self.add(format_args!("<td{}>{}</td>", class(column), escape(cell)));
            }
            self.add(format_args!("</tr>"));
        }
        self.add(format_args!("</tbody></table></div>"));
        self
    }

    /// Adds figures side by side, as far as there is room.
    #[must_use]
    pub fn figures(mut self, figures: impl IntoIterator<Item = impl Into<Figure>>) -> Self {
        self.add(format_args!(r#"<div class="figures">"#));
        for figure in figures {
            let Figure { svg, caption } = figure.into();
            self.add(format_args!("<figure>{svg}"));
            if !caption.is_empty() {
                self.add(format_args!("<figcaption>{}</figcaption>", escape(&caption)));
            }
            self.add(format_args!("</figure>"));
        }
        self.add(format_args!("</div>"));
        self
    }

    /// The whole document. It is also well-formed XML.
    pub fn html(&self) -> String {
        let (title, body) = (escape(&self.title), &self.body);
        let subtitle = match self.subtitle.as_str() {
            "" => String::new(),
            text => format!(r#"<p class="subtitle">{}</p>"#, escape(text)),
        };
        let end = if self.in_section { "</section>" } else { "" };
        format!(
            r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<title>{title}</title>
<style>
{STYLE}</style>
</head>
<body>
<main>
<header><h1>{title}</h1>{subtitle}</header>
{body}{end}
</main>
</body>
</html>
"#
        )
    }

    pub(crate) fn add(&mut self, markup: fmt::Arguments) {
        self.body.write_fmt(markup).expect("memory takes every write");
        self.body.push('\n');
    }
}

/// Whether a cell reads as a number, perhaps with a sign, an error or a unit; an empty one may.
fn is_number(cell: &str) -> bool {
    let bare = cell.trim().trim_start_matches(['+', '-', '−', '±', '<', '>', '≈', '★', ' ']);
    let mut letters = bare.chars().filter(|symbol| symbol.is_alphabetic());
    bare.is_empty()
        || matches!(bare, "—" | "–" | "n/a" | "NaN")
        || (bare.starts_with(|symbol: char| symbol.is_ascii_digit()) && letters.nth(6).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PictureCard, PictureRow, Thumbnail};

    #[test]
    fn what_users_name_is_never_markup() {
        let evil = "<script>alert('x')</script>";
        let (picture, good) = (Thumbnail::default(), None);
        let [alt, caption, detail] = [evil; 3].map(str::to_owned);
        let card = PictureCard { picture, alt, caption, good, detail };
        let row = PictureRow { title: evil.into(), detail: evil.into(), cards: vec![card.clone()] };
        let html = Page::new(evil, evil)
            .facts([(evil, evil.to_owned(), evil.to_owned())])
            .section(evil)
            .text(evil)
            .code(evil)
            .table(&[evil], &[vec![evil.to_owned()]])
            .subsection(evil)
            .figures([(String::new(), evil)])
            .pictures([card])
            .picture_rows([row.clone()])
            .strips([row])
            .html();
        assert!(!html.contains("<script"));
        assert_eq!(html.matches("&lt;script&gt;").count(), 11 + 2 + 3 + 2 * 5);
    }

    #[test]
    fn columns_of_numbers_are_known() {
        for cell in [
            "0.93",
            "★ 0.93 (0.9–0.95)",
            "−1.2 ± 0.1",
            "87 %",
            "12.4 ms",
            "3×",
            "1,024",
            "",
            "—",
            "2.1 GMACs",
        ] {
            assert!(is_number(cell), "{cell}");
        }
        for cell in ["cat", "v1", "3 experts per layer"] {
            assert!(!is_number(cell), "{cell}");
        }
    }
}
