//! What could not be read.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    dataset::{Sample, Shared},
    error::{DataError, Result},
};

/// What could not be read. Each is named in one warning and not tried again; a share is tolerated.
#[derive(Debug)]
pub(super) struct BadFiles {
    allowed: f64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bad: HashSet<usize>,
    good: usize,
    first: String,
}

/// A share of fewer files than this says nothing, so it is a share of this many.
const ENOUGH: usize = 200;

impl BadFiles {
    /// Tolerates this share, for example 0.01; with 0, the first is too much.
    pub(super) fn new(allowed: f64) -> Self {
        Self { allowed, state: Mutex::default() }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.state().bad.len()
    }

    /// A sample, or nothing if it cannot be read, or an error if that happens too often.
    pub(super) fn read(&self, data: &Shared, index: usize) -> Result<Option<Sample>> {
        if self.state().bad.contains(&index) {
            return Ok(None);
        }
        let sample = data.get(index);
        let mut state = self.state();
        let error = match sample {
            Ok(sample) => {
                state.good += 1;
                return Ok(Some(sample));
            }
            Err(error) => error.to_string(),
        };
        if !state.bad.insert(index) {
            return Ok(None);
        }
        tracing::warn!("left out: {error}");
        if state.bad.len() == 1 {
            state.first = error;
        }
        let seen = state.good + state.bad.len();
        let at_least = if self.allowed > 0.0 { 1.0 } else { 0.0 };
        let limit = (self.allowed * seen.max(ENOUGH) as f64).max(at_least);
        match state.bad.len() as f64 > limit {
            true => Err(self.error(&state)),
            false => Ok(None),
        }
    }

    /// That there is nothing else to read.
    pub(super) fn too_many(&self) -> DataError {
        self.error(&self.state())
    }

    fn error(&self, state: &State) -> DataError {
        DataError::TooManyBad {
            bad: state.bad.len(),
            seen: state.good + state.bad.len(),
            percent: self.allowed * 100.0,
            first: state.first.clone(),
        }
    }

    /// A count is whole even where a thread that held it was lost.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{GeneratedDataset, picture::Picture};

    /// Every `nth` sample cannot be read.
    fn holes(nth: usize) -> Shared {
        let sample = move |index: usize| match index.is_multiple_of(nth) {
            true => Err(DataError::NotFound(format!("hole {index}"))),
            false => Ok(Sample::new(Picture::filled(1, 1, [0; 3]), 0)),
        };
        Arc::new(GeneratedDataset::new(&[], 10_000, sample))
    }

    fn read_all(every: usize, allowed: f64) -> (BadFiles, Result<usize>) {
        let (data, bad) = (holes(every), BadFiles::new(allowed));
        let result = (1..=data.len())
            .try_fold(0, |n, index| Ok(n + usize::from(bad.read(&data, index)?.is_some())));
        (bad, result)
    }

    #[test]
    fn a_share_is_tolerated_and_more_is_not() {
        let (bad, result) = read_all(101, 0.01);
        assert_eq!((bad.count(), result.unwrap()), (99, 9901));
        let (bad, result) = read_all(50, 0.01);
        let message = result.unwrap_err().to_string();
        assert_eq!(bad.count(), 3);
        assert!(message.starts_with("3 of 150 files"), "{message}");
        assert!(message.contains("1 %") && message.contains("hole 50"), "{message}");
        let (bad, result) = read_all(5000, 0.0);
        assert!(result.is_err());
        assert_eq!(bad.count(), 1);
    }

    #[test]
    fn a_bad_file_is_counted_once() {
        let (data, bad) = (holes(7), BadFiles::new(0.01));
        for _ in 0..1000 {
            assert!(bad.read(&data, 7).unwrap().is_none());
        }
        assert_eq!(bad.count(), 1);
    }
}
