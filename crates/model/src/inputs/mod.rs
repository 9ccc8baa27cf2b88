//! What goes in: everything that becomes tokens, one file each.

mod patches;
mod position;

pub use patches::PatchEmbedding;
#[cfg(test)]
pub(crate) use position::interpolate;
pub(crate) use position::sincos2d;
