//! The allocator for programs that train: mimalloc, with large blocks kept.
//!
//! Tensors of megabytes come and go with every operation of a training step, in the same sizes step
//! after step. An allocator that returns them to the system pays for it with a page fault and the
//! zeroing of every page at the next use. [`Allocator`] keeps them instead:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: omma_kernels::memory::Allocator = omma_kernels::memory::Allocator;
//! ```
//!
//! [`give_back`] returns them when work of other sizes follows.

use std::{
    alloc::{GlobalAlloc, Layout},
    ptr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use mimalloc::MiMalloc;

use crate::cpu::scratch;

/// Blocks of at least this size are kept.
const SMALLEST_KEPT: usize = 32 << 10;

/// Sizes between two powers of two: a kept block is at most an eighth larger than what was asked.
const STEPS: usize = 8;

/// Kept blocks hold at most this many bytes in all; more go back to the system.
const MOST_KEPT: usize = 4 << 30;

/// Block sizes from `SMALLEST_KEPT` up to 8 GiB; larger ones are mimalloc's.
const CLASSES: usize = 19 * STEPS;

/// mimalloc for small blocks, and free lists for large ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allocator;

/// One list of free blocks per size, each block holding the address of the next.
struct FreeLists {
    locked: AtomicBool,
    heads: [AtomicUsize; CLASSES],
    kept: AtomicUsize,
}

static FREE: FreeLists = FreeLists {
    locked: AtomicBool::new(false),
    heads: [const { AtomicUsize::new(0) }; CLASSES],
    kept: AtomicUsize::new(0),
};

/// The class of a size, and the size that blocks of the class have; nothing for sizes that are not
/// kept.
fn class(size: usize) -> Option<(usize, usize)> {
    if size < SMALLEST_KEPT {
        return None;
    }
    let power = (size - 1).ilog2();
    let step = (1_usize << power) / STEPS;
    let steps = (size - (1 << power)).div_ceil(step);
    let class = (power - (SMALLEST_KEPT - 1).ilog2()) as usize * STEPS + steps;
    (class < CLASSES).then_some((class, (1 << power) + steps * step))
}

impl FreeLists {
    fn with_lock<T>(&self, run: impl FnOnce() -> T) -> T {
        while self
            .locked
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            // The holder may have been preempted: it holds the lock for a few instructions only.
            std::thread::yield_now();
        }
        let result = run();
        self.locked.store(false, Ordering::Release);
        result
    }

    fn take(&self, class: usize, size: usize) -> *mut u8 {
        self.with_lock(|| {
            let head = self.heads[class].load(Ordering::Relaxed) as *mut u8;
            if !head.is_null() {
                // SAFETY: a listed block is ours alone, and its first word is the next address.
                let next = unsafe { head.cast::<usize>().read() };
                self.heads[class].store(next, Ordering::Relaxed);
                self.kept.fetch_sub(size, Ordering::Relaxed);
            }
            head
        })
    }

    /// False if too much is kept already.
    fn put(&self, class: usize, size: usize, block: *mut u8) -> bool {
        self.with_lock(|| {
            if self.kept.load(Ordering::Relaxed) + size > MOST_KEPT {
                return false;
            }
            let next = self.heads[class].load(Ordering::Relaxed);
            // SAFETY: the block was given back, is large enough for a word, and is aligned for one.
            unsafe { block.cast::<usize>().write(next) };
            self.heads[class].store(block as usize, Ordering::Relaxed);
            self.kept.fetch_add(size, Ordering::Relaxed);
            true
        })
    }
}

/// Bytes that wait for their next use, as [`give_back`] would return them.
pub fn waiting() -> usize {
    FREE.kept.load(Ordering::Relaxed) + scratch::waiting()
}

/// Returns all memory that waits for its next use: blocks of [`Allocator`], if it is the program's, and
/// buffers of this crate's operations.
pub fn give_back() {
    scratch::give_back();
    for class in 0..CLASSES {
        let Some(layout) = layout_of(class) else { continue };
        loop {
            let block = FREE.take(class, layout.size());
            if block.is_null() {
                break;
            }
            // SAFETY: a listed block is ours alone, and came from mimalloc with the layout of its class.
            unsafe { MiMalloc.dealloc(block, layout) };
        }
    }
}

/// The layout of all blocks of a class.
fn layout_of(class: usize) -> Option<Layout> {
    let (octave, steps) = (class / STEPS, class % STEPS);
    let power = (SMALLEST_KEPT - 1).ilog2() as usize + octave;
    let size = (1 << power) + steps * ((1 << power) / STEPS);
    Layout::from_size_align(size, ALIGNMENT).ok()
}

/// Alignment of kept blocks, enough for any vector.
const ALIGNMENT: usize = 64;

/// The class of a layout whose blocks are kept, and the layout of that class.
fn kept(layout: Layout) -> Option<(usize, Layout)> {
    let (class, size) = class(layout.size())?;
    if layout.align() > ALIGNMENT {
        return None;
    }
    Some((class, Layout::from_size_align(size, ALIGNMENT).ok()?))
}

// SAFETY: a block comes from mimalloc with the layout of its class, which is at least the layout
// asked for, and every later call finds the same class from the same layout. A block is in use or in
// one list, never both.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match kept(layout) {
            // SAFETY: the caller's promises about the layout are passed on.
            None => unsafe { MiMalloc.alloc(layout) },
            Some((class, block)) => match FREE.take(class, block.size()) {
                // SAFETY: the class's layout has a size.
                taken if taken.is_null() => unsafe { MiMalloc.alloc(block) },
                taken => taken,
            },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match kept(layout) {
            // SAFETY: the caller's promises about the layout are passed on.
            None => unsafe { MiMalloc.alloc_zeroed(layout) },
            Some((class, block)) => match FREE.take(class, block.size()) {
                // SAFETY: the class's layout has a size.
                taken if taken.is_null() => unsafe { MiMalloc.alloc_zeroed(block) },
                taken => {
                    // SAFETY: the block has at least the size of the layout.
                    unsafe { ptr::write_bytes(taken, 0, layout.size()) };
                    taken
                }
            },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match kept(layout) {
            // SAFETY: the block came from mimalloc with this layout.
            None => unsafe { MiMalloc.dealloc(block, layout) },
            Some((class, of_class)) => {
                if !FREE.put(class, of_class.size(), block) {
                    // SAFETY: the block came from mimalloc with the layout of its class.
                    unsafe { MiMalloc.dealloc(block, of_class) };
                }
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return ptr::null_mut();
        };
        match (kept(layout), kept(wanted)) {
            // SAFETY: both layouts are mimalloc's own.
            (None, None) => unsafe { MiMalloc.realloc(block, layout, size) },
            (Some((old, _)), Some((new, _))) if old == new => block,
            _ => {
                // SAFETY: the new block is fresh, both hold at least the smaller size, and the old
                // one is given back with the layout it was made with.
                unsafe {
                    let fresh = self.alloc(wanted);
                    if !fresh.is_null() {
                        ptr::copy_nonoverlapping(block, fresh, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    fresh
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_its_sizes_with_little_to_spare() {
        assert_eq!(class(SMALLEST_KEPT - 1), None);
        let mut last = (0, 0);
        for size in (SMALLEST_KEPT..80 << 20).step_by(4099) {
            let (class, block) = class(size).unwrap();
            assert!(block >= size && block <= size + size / 7, "{size} {block}");
            assert!((class, block) >= last, "classes grow with sizes");
            assert_eq!(super::class(block), Some((class, block)));
            assert_eq!(layout_of(class).map(|layout| layout.size()), Some(block));
            last = (class, block);
        }
    }

    #[test]
    fn blocks_are_used_again_and_zeroed_when_asked() {
        let layout = Layout::from_size_align(1 << 20, 16).unwrap();
        // SAFETY: the layouts have sizes, and every block is given back once, as it was taken.
        unsafe {
            let block = Allocator.alloc(layout);
            block.write_bytes(7, layout.size());
            Allocator.dealloc(block, layout);
            let zeroed = Allocator.alloc_zeroed(layout);
            let bytes = std::slice::from_raw_parts(zeroed, layout.size());
            assert!(bytes.iter().all(|byte| *byte == 0));
            let grown = Allocator.realloc(zeroed, layout, 5 << 20);
            let bytes = std::slice::from_raw_parts(grown, layout.size());
            assert!(bytes.iter().all(|byte| *byte == 0));
            Allocator.dealloc(grown, Layout::from_size_align(5 << 20, 16).unwrap());
        }
    }

    #[test]
    fn what_waits_is_given_back() {
        // A size that no other test asks for.
        let layout = Layout::from_size_align(3 << 28, 16).unwrap();
        let (class, of_class) = kept(layout).unwrap();
        // SAFETY: the layout has a size, and the block is given back once, as it was taken.
        unsafe {
            let block = Allocator.alloc(layout);
            Allocator.dealloc(block, layout);
        }
        assert_ne!(FREE.heads[class].load(Ordering::Relaxed), 0);
        assert!(waiting() >= layout.size());
        give_back();
        assert_eq!(FREE.heads[class].load(Ordering::Relaxed), 0);
        assert!(FREE.take(class, of_class.size()).is_null());
    }
}
