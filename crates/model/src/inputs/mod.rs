//! What goes in: everything that becomes tokens, one file each.

mod patches;
mod position;
mod text;

pub use patches::PatchEmbedding;
#[cfg(test)]
pub(crate) use position::interpolate;
pub(crate) use position::sincos2d;
pub use text::TextTower;
