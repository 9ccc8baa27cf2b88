//! How much a file from elsewhere may make the program hold.
//!
//! A file of kilobytes can ask for gigabytes: a picture of one colour, a packed array of zeros, a table
//! that names every row a class. What is refused here is named with the setting that allows it.

use std::sync::OnceLock;

/// Limits of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Pixels of an image.
    pub pixels: u64,
    /// Classes of a data set.
    pub classes: u64,
    /// Bytes that a packed file may unpack to, where that is more than 20 times its size.
    pub unpacked: u64,
    /// Bytes of memory that a run is planned for, if that is less than there is.
    pub memory: u64,
}

/// How many times larger than packed ones real files are at most, with room to spare: measured are 2.6 for
/// KMNIST, 1.1 for CIFAR-100, 1.2 for SVHN (gzip) and 1.7 for the smallest biases of an npz. Zeros reach 1,030.
const EXPANSION: u64 = 20;

impl Limits {
    /// 8192 × 8192 pixels, 100,000 classes, 256 MiB. With four channels of 16 bits, such a picture takes
    /// 512 MiB while it is decoded, so that one per thread of two stays below 2 GB; so do 256 MiB of half
    /// precision, as f32 and once more transposed.
    pub const DEFAULT: Self =
        Self { pixels: 1 << 26, classes: 100_000, unpacked: 256 << 20, memory: u64::MAX };

    /// Those in force.
    pub fn current() -> Self {
        *LIMITS.get_or_init(|| Self::DEFAULT)
    }

    /// Puts these in force. Only the first call counts, and only before anything is read.
    pub fn put(self) {
        LIMITS.get_or_init(|| self);
    }

    /// The most bytes that a file of so many may unpack to.
    pub fn most_unpacked(self, packed: u64) -> u64 {
        self.unpacked.max(packed.saturating_mul(EXPANSION))
    }

    /// Refuses what would unpack to too much.
    pub fn check_unpacking(self, packed: u64, unpacked: u64) -> Result<(), String> {
        match self.most_unpacked(packed) {
            most if unpacked > most => Err(format!(
                "its {packed} bytes would unpack to {unpacked}; more than {most} needs --max-unpacked"
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a picture with too many pixels.
    pub fn check_pixels(self, width: u64, height: u64) -> Result<(), String> {
        match width.saturating_mul(height) > self.pixels {
            false => Ok(()),
            true => Err(format!(
                "it has {width} × {height} pixels; more than {} need --max-pixels",
                self.pixels
            )),
        }
    }

    /// Refuses a data set with too many classes.
    pub fn check_classes(self, classes: usize) -> Result<(), String> {
        match classes as u64 > self.classes {
            false => Ok(()),
            true => Err(format!(
                "it has {classes} classes; more than {} need --max-classes",
                self.classes
            )),
        }
    }
}

static LIMITS: OnceLock<Limits> = OnceLock::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_names_the_limit_and_its_setting() {
        let limits = Limits { pixels: 100, classes: 5, unpacked: 1000, memory: 1 };
        assert_eq!(limits.check_pixels(10, 10), Ok(()));
        assert!(limits.check_pixels(10, 11).unwrap_err().contains("--max-pixels"));
        assert!(limits.check_pixels(u64::MAX, 3).is_err());
        assert_eq!(limits.check_classes(5), Ok(()));
        assert!(limits.check_classes(6).unwrap_err().contains("--max-classes"));
        assert_eq!(limits.check_unpacking(1, 1000), Ok(()));
        assert_eq!(limits.check_unpacking(100, 2000), Ok(()));
        assert!(limits.check_unpacking(100, 2001).unwrap_err().contains("--max-unpacked"));
    }
}
