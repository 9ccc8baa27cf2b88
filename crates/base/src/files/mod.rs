//! Files and folders: written whole, owned by one process, read only where reading ends; tensors with
//! checksums, and NumPy's arrays.

mod atomic;
mod fresh;
mod lock;
mod npy;
mod regular;
pub mod tensors;
mod walk;

pub use self::{
    atomic::{Unfinished, remove_leftovers, write_atomically},
    fresh::fresh_folder,
    lock::{FolderLock, LockError},
    npy::{NpyHead, write_npy},
    regular::{open_regular, read_regular},
    walk::files_below,
};
