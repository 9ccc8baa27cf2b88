//! Activations of a frozen trunk, computed once and kept on disk (`data.cache`).
//!
//! | file | room for |
//! |---|---|
//! | `key.rs` | what they depend on: weights, data, settings |
//! | `store.rs` | the files, whole or not there |
//! | `make.rs` | images through the trunk, into a store |
//! | `loader.rs` | batches in the order of the run |
//!
//! They are read from the file for every batch, through the system's cache of files. A mapping of the file
//! into memory would save a copy that a batch makes anyway, and end the process where the disk fails; a
//! read that fails is an error like any other.

mod key;
mod loader;
mod make;
mod store;

pub(crate) use self::{
    key::{Key, Source},
    loader::ActivationLoader,
    make::open_or_make,
    store::Store,
};
