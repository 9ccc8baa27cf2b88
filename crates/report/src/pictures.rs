//! Pictures on a page: in a grid, in rows that have a name, and as strips of small ones.

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::{Thumbnail, page::Page, text::escape};

/// A picture, and what is said of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PictureCard {
    /// The picture.
    pub picture: Thumbnail,
    /// What it shows, for who cannot see it.
    pub alt: String,
    /// What it is.
    pub caption: String,
    /// Whether a prediction about it is right, if there is one.
    pub good: Option<bool>,
    /// What else to know, in small print.
    pub detail: String,
}

/// Pictures that belong together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PictureRow {
    /// What they have in common; may be empty.
    pub title: String,
    /// What else to know, in small print.
    pub detail: String,
    /// The pictures.
    pub cards: Vec<PictureCard>,
}

impl Page {
    /// Adds pictures in a grid.
    #[must_use]
    pub fn pictures(mut self, pictures: impl IntoIterator<Item = PictureCard>) -> Self {
        self.cards("pictures", pictures);
        self
    }

    /// Adds rows of pictures, each beside its name.
    #[must_use]
    pub fn picture_rows(mut self, rows: impl IntoIterator<Item = PictureRow>) -> Self {
        self.add(format_args!(r#"<div class="picture-rows">"#));
        for row in rows {
            self.add(format_args!("<div>"));
            self.heading(&row);
            self.cards("pictures", row.cards);
            self.add(format_args!("</div>"));
        }
        self.add(format_args!("</div>"));
        self
    }

    /// Adds groups of wide pictures side by side, as far as there is room, each below its name.
    #[must_use]
    pub fn strips(mut self, groups: impl IntoIterator<Item = PictureRow>) -> Self {
        self.add(format_args!(r#"<div class="strip-groups">"#));
        for group in groups {
            self.add(format_args!("<div>"));
            self.heading(&group);
            self.cards("strips", group.cards);
            self.add(format_args!("</div>"));
        }
        self.add(format_args!("</div>"));
        self
    }

    fn heading(&mut self, row: &PictureRow) {
        let (title, detail) = (escape(&row.title), escape(&row.detail));
        match (title.is_empty(), detail.is_empty()) {
            (true, true) => {}
            (_, true) => self.add(format_args!("<h4>{title}</h4>")),
            _ => self.add(format_args!("<h4>{title} <small>{detail}</small></h4>")),
        }
    }

    fn cards(&mut self, class: &str, cards: impl IntoIterator<Item = PictureCard>) {
        self.add(format_args!(r#"<div class="{class}">"#));
        for card in cards {
            let PictureCard { picture, alt, caption, good, detail } = card;
            let (data, media_type) =
                (BASE64_STANDARD.encode(picture.encoded()), picture.media_type());
            let (width, height) = picture.size();
            let coarse = if picture.is_coarse() { r#" class="coarse""# } else { "" };
            let (class, mark) = match good {
                Some(true) => (r#" class="good""#, r#"<span title="right">✓</span> "#),
                Some(false) => (r#" class="bad""#, r#"<span title="wrong">✗</span> "#),
                None => ("", ""),
            };
            let (alt, caption) = (escape(&alt), escape(&caption));
            self.add(format_args!(
                r#"<figure{class}><img{coarse} src="data:{media_type};base64,{data}" width="{width}" height="{height}" alt="{alt}"/><figcaption>{mark}{caption}"#
            ));
            if !detail.is_empty() {
                self.add(format_args!("<small>{}</small>", escape(&detail)));
            }
            self.add(format_args!("</figcaption></figure>"));
        }
        self.add(format_args!("</div>"));
    }
}
