//! Figures: plain data in, a complete SVG document out.

mod bars;
mod heat_map;
mod histogram;
mod lines;
mod scatter;

pub use bars::Bars;
pub use heat_map::HeatMap;
pub use histogram::Histogram;
pub use lines::{Lines, Series};
pub use scatter::{Better, Dot, Mark, Scatter};
