//! How much crosses between this process's memory and the device that it computes on.
//!
//! Whoever gives values to a tensor library, or takes some back, says so here. On the CPU nothing is copied for
//! that; the count is what a device of its own would have to be sent. Every thread has a count of its own: a step on
//! a device is taken by one thread.

use std::cell::Cell;

thread_local! {
    static COUNT: Cell<Transfer> = const { Cell::new(Transfer { to_device: 0, from_device: 0 }) };
}

/// Bytes that crossed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transfer {
    /// To the device.
    pub to_device: u64,
    /// From the device.
    pub from_device: u64,
}

impl Transfer {
    /// All since this thread began.
    pub fn so_far() -> Self {
        COUNT.get()
    }

    /// What has crossed since an earlier count of this thread.
    pub fn since(earlier: Self) -> Self {
        let now = Self::so_far();
        Self {
            to_device: now.to_device - earlier.to_device,
            from_device: now.from_device - earlier.from_device,
        }
    }

    /// Adds another count.
    pub fn add(&mut self, other: Self) {
        self.to_device += other.to_device;
        self.from_device += other.from_device;
    }
}

/// These values go to the device.
pub fn brought<T>(values: &[T]) {
    let mut count = COUNT.get();
    count.to_device += size_of_val(values) as u64;
    COUNT.set(count);
}

/// These values came from the device.
pub fn fetched<T>(values: &[T]) {
    let mut count = COUNT.get();
    count.from_device += size_of_val(values) as u64;
    COUNT.set(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_by_thread() {
        let before = Transfer::so_far();
        brought(&[1_f32, 2.0, 3.0]);
        fetched(&[1_u8]);
        std::thread::spawn(|| brought(&[0_u64; 100])).join().unwrap();
        let mut found = Transfer::since(before);
        assert_eq!(found, Transfer { to_device: 12, from_device: 1 });
        found.add(found);
        assert_eq!(found, Transfer { to_device: 24, from_device: 2 });
    }
}
