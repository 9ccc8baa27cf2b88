//! How much a file from elsewhere may make any command hold.

use clap::Args;
use omma_base::Limits;

const HEADING: &str = "Limits";

/// Limits of this process; processes that it starts have the same.
#[derive(Args)]
pub(crate) struct LimitArguments {
    /// Most pixels of an image
    #[arg(long, global = true, value_name = "PIXELS", env = PIXELS, help_heading = HEADING,
          default_value_t = Limits::DEFAULT.pixels, hide_env = true)]
    max_pixels: u64,
    /// Most classes of a data set
    #[arg(long, global = true, value_name = "CLASSES", env = CLASSES, help_heading = HEADING,
          default_value_t = Limits::DEFAULT.classes, hide_env = true)]
    max_classes: u64,
    /// Most bytes that a packed file may unpack to, where that is more than 20 times its size
    #[arg(long, global = true, value_name = "BYTES", env = UNPACKED, help_heading = HEADING,
          default_value_t = Limits::DEFAULT.unpacked, hide_env = true)]
    max_unpacked: u64,
}

const PIXELS: &str = "OMMA_MAX_PIXELS";
const CLASSES: &str = "OMMA_MAX_CLASSES";
const UNPACKED: &str = "OMMA_MAX_UNPACKED";

impl LimitArguments {
    /// Puts them in force.
    pub(crate) fn put(&self) {
        let Self { max_pixels: pixels, max_classes: classes, max_unpacked: unpacked } = *self;
        Limits { pixels, classes, unpacked }.put();
    }
}

/// The limits in force, as another process of this program takes them.
pub(crate) fn environment() -> [(&'static str, String); 3] {
    let Limits { pixels, classes, unpacked } = Limits::current();
    [(PIXELS, pixels), (CLASSES, classes), (UNPACKED, unpacked)]
        .map(|(name, value)| (name, value.to_string()))
}
