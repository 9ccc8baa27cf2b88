//! Figures as SVG, and one HTML page that holds them.
//!
//! | place | room for |
//! |---|---|
//! | `figures/` | one kind of figure per file, each a plain struct with an `svg` method |
//! | `page.rs` | the page: facts, text, tables and figures in sections |
//! | `pictures.rs`, `thumbnail.rs` | pictures on it: in a grid, in rows, as strips; how they are encoded |
//! | `chart.rs` | what figures with two axes share: title, legend, grid, ticks |
//! | `axis.rs`, `thin.rs` | round ticks, and long series made short |
//! | `svg.rs`, `text.rs` | marks, colours, escaping, widths of text |
//!
//! Every figure leaves out values that are not finite (or not positive on a logarithmic axis), says
//! "no data" if nothing remains, and names its marks for the pointer that rests on them.
//!
//! A figure stands alone: its colours are attributes, so any viewer shows it. On a page the style
//! sheet overrides them by class, which is how one figure serves light, dark and print. A page asks
//! nothing of the network and runs no script.

#![forbid(unsafe_code)]

mod axis;
mod chart;
mod figures;
mod page;
mod pictures;
mod svg;
mod text;
mod thin;
mod thumbnail;

pub use figures::{
    Bars, Better, Dot, Flow, FlowLink, FlowStage, HeatMap, Histogram, Lines, Mark, PatchMap,
    PatchMark, Scatter, Series, ValueMap,
};
pub use page::{Figure, Page};
pub use pictures::{PictureCard, PictureRow};
pub use thumbnail::Thumbnail;
