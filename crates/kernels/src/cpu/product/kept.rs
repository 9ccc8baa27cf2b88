//! Panels that outlive the product that they were packed for.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

use super::Packed;
use crate::cpu::matrix::Matrix;

/// The panels of matrices that do not change, each packed when it is first multiplied by.
#[derive(Debug)]
pub(crate) struct Kept(Vec<OnceLock<Packed>>);

impl Kept {
    pub(crate) fn new(matrices: usize) -> Self {
        Self((0..matrices).map(|_| OnceLock::new()).collect())
    }

    /// Those that were packed so far.
    #[cfg(test)]
    pub(crate) fn packed(&self) -> impl Iterator<Item = &Packed> {
        self.0.iter().filter_map(OnceLock::get)
    }
}

/// The panels of a right operand.
#[derive(Debug)]
pub(crate) enum Panels {
    /// For the products of one operation.
    Own(Packed),
    /// For all operations.
    Kept(Arc<Kept>, usize),
}

impl Panels {
    /// Those of the matrix `place` of `kept`, or own ones if nobody keeps any.
    pub(crate) fn of(kept: Option<&Arc<Kept>>, place: usize, matrix: Matrix) -> Self {
        let Some(kept) = kept else { return Self::Own(Packed::in_parallel(matrix)) };
        // On one thread: who waits here for others might be given work that waits for these panels.
        kept.0[place].get_or_init(|| Packed::new(matrix));
        Self::Kept(kept.clone(), place)
    }
}

impl Deref for Panels {
    type Target = Packed;

    fn deref(&self) -> &Packed {
        match self {
            Self::Own(packed) => packed,
            Self::Kept(kept, place) => kept.0[*place].get().expect("kept panels are packed"),
        }
    }
}
