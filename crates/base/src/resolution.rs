//! How large an image is.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Height and width of an image, in pixels.
///
/// In files it is `[height, width]`; a single number, which is the side of a square, is read too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "[usize; 2]", from = "Written")]
pub struct Resolution {
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a resolution is the side of a square, or [height, width]")]
enum Written {
    Side(usize),
    Sides([usize; 2]),
}

impl Resolution {
    /// Of an image.
    pub const fn new(height: usize, width: usize) -> Self {
        Self { height, width }
    }

    /// Of a square image.
    pub const fn square(side: usize) -> Self {
        Self::new(side, side)
    }

    /// Height times width; as large as can be where that cannot be counted.
    pub fn pixels(self) -> usize {
        self.height.saturating_mul(self.width)
    }

    /// The larger side.
    pub fn longest(self) -> usize {
        self.height.max(self.width)
    }

    /// The smaller side.
    pub fn shortest(self) -> usize {
        self.height.min(self.width)
    }

    /// Whole patches of `side` × `side` pixels, downwards and across; a margin narrower than a patch is
    /// cut off, as a convolution without padding does.
    pub fn patches(self, side: usize) -> (usize, usize) {
        (self.height / side, self.width / side)
    }
}

impl From<Resolution> for [usize; 2] {
    fn from(resolution: Resolution) -> Self {
        [resolution.height, resolution.width]
    }
}

impl From<Written> for Resolution {
    fn from(written: Written) -> Self {
        match written {
            Written::Side(side) => Self::square(side),
            Written::Sides([height, width]) => Self::new(height, width),
        }
    }
}

/// `224` for a square, or `224x320`.
impl FromStr for Resolution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let side = |text: &str| text.trim().parse::<usize>().ok();
        let found = match text.split_once(['x', '×']) {
            Some((height, width)) => side(height).zip(side(width)),
            None => side(text).map(|side| (side, side)),
        };
        let (height, width) = found.ok_or("write a side such as 224, or HEIGHTxWIDTH")?;
        Ok(Self { height, width })
    }
}

/// `224 × 320`
impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.height, self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_square_and_a_pair_is_height_and_width() {
        let read = |text: &str| serde_json::from_str::<Resolution>(text);
        assert_eq!(read("224").unwrap(), Resolution::square(224));
        assert_eq!(read("[24, 32]").unwrap(), Resolution { height: 24, width: 32 });
        assert_eq!(serde_json::to_string(&Resolution::new(24, 32)).unwrap(), "[24,32]");
        for wrong in ["-1", "[1]", "[1, 2, 3]", "\"24x32\"", "1.5"] {
            let message = read(wrong).unwrap_err().to_string();
            assert!(message.contains("[height, width]"), "{message}");
        }
        assert_eq!(Resolution::new(24, 39).patches(8), (3, 4));
        assert_eq!("24x32".parse(), Ok(Resolution::new(24, 32)));
        assert_eq!("24".parse(), Ok(Resolution::square(24)));
        assert!(
            ["", "x", "24x", "-1", "1x2x3"].iter().all(|text| text.parse::<Resolution>().is_err())
        );
    }
}
