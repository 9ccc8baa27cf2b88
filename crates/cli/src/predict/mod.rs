//! Predictions in bulk: where images come from, and how answers are written.
//!
//! | file | room for |
//! |---|---|
//! | `inputs.rs` | images by path, pattern, folder, table or standard input |
//! | `output.rs` | text, CSV and JSON lines |

mod inputs;
mod masks;
mod output;

pub(crate) use self::{
    inputs::{Input, Inputs},
    masks::MaskWriter,
    output::{Format, Printer},
};
