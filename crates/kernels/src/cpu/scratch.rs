//! Buffers that keep their memory.
//!
//! A fresh large allocation costs a page fault for every four kilobytes when it is first written.
//! Steps of training ask for the same sizes again and again, so buffers go back to a pool.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Mutex,
};

/// Buffers that wait for their next use.
static POOL: Mutex<Vec<Vec<f32>>> = Mutex::new(Vec::new());

/// Memory that may wait, in floats: 512 MiB.
const MOST_WAITING: usize = 128 << 20;

/// Bytes of the buffers that wait.
pub(crate) fn waiting() -> usize {
    let pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    pool.iter().map(|buffer| size_of::<f32>() * buffer.len()).sum()
}

/// Frees the buffers that wait.
pub(crate) fn give_back() {
    let mut pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    *pool = Vec::new();
}

/// A buffer of any content, which returns to the pool when it is dropped.
pub(crate) struct Scratch {
    buffer: Vec<f32>,
    length: usize,
}

impl Scratch {
    /// A buffer of `length` floats that hold whatever was there.
    pub(crate) fn new(length: usize) -> Self {
        if length == 0 {
            return Self { buffer: Vec::new(), length };
        }
        let mut pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fitting = |buffer: &Vec<f32>| (length..=2 * length + 4096).contains(&buffer.len());
        let best = (0..pool.len()).filter(|i| fitting(&pool[*i])).min_by_key(|i| pool[*i].len());
        let waiting = best.map(|i| pool.swap_remove(i));
        drop(pool);
        Self { buffer: waiting.unwrap_or_else(|| vec![0.0; length]), length }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let mut pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let waiting: usize = pool.iter().map(Vec::len).sum();
        if waiting + self.buffer.len() <= MOST_WAITING {
            pool.push(std::mem::take(&mut self.buffer));
        }
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.buffer[..self.length]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.length]
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Scratch({})", self.length)
    }
}
