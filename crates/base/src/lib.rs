//! What every other crate stands on and none of them is about.
//!
//! | module | what it answers |
//! |---|---|
//! | [`files`] | how is a file written whole, who owns a folder, what may be read at all? |
//! | [`cpu_time`] | how long have the cores worked for this process? |
//! | [`fault`] | which faults do tests inject into debug builds? |
//! | [`limits`] | how much may a foreign file make the program hold? |
//! | [`memory`] | how much memory is there, and how much was used? |
//! | [`range`] | which values may a setting have? |
//! | [`nearest()`] | what did the user mean? |
//! | [`transfer`] | how much crosses between memory and a device? |
//! | [`text`] | how is a name shown that somebody else chose? |
//! | [`checksum()`] | are these the bytes that were written? |
//! | [`Resolution`] | how large is an image? |
//! | [`Seed`] | where does randomness come from? |

#![forbid(unsafe_code)]

mod checksum;
pub mod cpu_time;
pub mod fault;
pub mod files;
pub mod limits;
pub mod memory;
mod nearest;
pub mod range;
mod resolution;
mod seed;
pub mod text;
pub mod transfer;

pub use self::{
    checksum::checksum, limits::Limits, nearest::nearest, resolution::Resolution, seed::Seed,
};
