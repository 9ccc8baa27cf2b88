//! Images, from where they are to the numbers a model sees.
//!
//! | folder | room for |
//! |---|---|
//! | `world/` | the built-in world: scenes drawn from a seed and an index, with labels, masks, captions |
//! | `formats/` | data sets on disk, and how one is told from another |
//! | `augment/` | what training does to an image |
//! | `corrupt/` | the fifteen common corruptions in five severities |
//! | `text/` | captions as ids: a tokenizer of anyone's, or one learned from captions |
//! | `loader/` | batches, in an order that depends on the seed alone |
//!
//! Pixels are 8-bit RGB until the last moment; a [`Batch`] holds floats `[B, H, W, 3]`.

#![forbid(unsafe_code)]

pub mod augment;
pub mod corrupt;
pub mod formats;
pub mod text;
pub mod world;

mod captioned;
mod dataset;
mod error;
mod generated;
mod holding_out;
mod loader;
mod mask;
mod mixture;
mod part;
mod picture;
mod targets;

pub use captioned::Captioned;
pub use dataset::{Dataset, Sample, Selection, Share, Shared, Split};
pub use error::{DataError, Result};
pub use generated::GeneratedDataset;
pub use holding_out::HoldingOut;
pub use loader::{
    Batch, Change, Cursor, EvalLoader, MaskedPicture, MaskedPictures, Order, Pixels, TrainLoader,
    TrainOptions, Turns, transformed_mask,
};
pub use mask::IGNORED;
pub use mixture::Mixture;
pub use picture::Picture;
pub use targets::{TargetKind, Targets};
