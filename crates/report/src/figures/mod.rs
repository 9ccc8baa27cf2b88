//! Figures: plain data in, a complete SVG document out.

mod bars;
mod flow;
mod heat_map;
mod histogram;
mod lines;
mod patch_map;
mod scatter;
mod value_map;

pub use bars::Bars;
pub use flow::{Flow, FlowLink, FlowStage};
pub use heat_map::HeatMap;
pub use histogram::Histogram;
pub use lines::{Lines, Series};
pub use patch_map::{PatchMap, PatchMark};
pub use scatter::{Better, Dot, Mark, Scatter};
pub use value_map::ValueMap;
