//! A class for every pixel of pictures of any size.
//!
//! | file | what it answers |
//! |---|---|
//! | `windows.rs` | how is a picture cut for models that see images of one size? |
//! | `maps.rs` | what does a system make of its pixels, and which experts took its patches? |
//! | `paint.rs` | how are classes and experts shown? |
//! | `nearby.rs` | how far does a linear classifier of a pixel and its neighbours come? |

mod maps;
mod nearby;
mod paint;
mod windows;

pub(crate) use self::maps::{ExpertMap, Segmented, Segmenting};
pub use self::{
    maps::PixelMap,
    nearby::nearby_baseline,
    paint::{colour, overlaid, painted},
    windows::Windows,
};
