//! The wish to stop, which may come at any time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::error::{Result, TrainError};

/// A wish to stop that others can make; 0 is none, and anything else says why, such as a signal's number.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Where the wish is made.
    pub fn place(&self) -> Arc<AtomicUsize> {
        self.0.clone()
    }

    /// Why to stop, if it is to be.
    pub fn why(&self) -> Option<usize> {
        Some(self.0.load(Ordering::Relaxed)).filter(|why| *why > 0)
    }

    /// Fails if it is to be.
    pub fn check(&self) -> Result<()> {
        match self.why() {
            Some(_) => Err(TrainError::Interrupted),
            None => Ok(()),
        }
    }
}
