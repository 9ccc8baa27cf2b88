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
    /// Most memory that a run is planned for, as in 8G or 500M; without it, what the machine has
    #[arg(long, global = true, value_name = "BYTES", env = MEMORY, help_heading = HEADING,
          value_parser = size, hide_env = true)]
    max_memory: Option<u64>,
}

const PIXELS: &str = "OMMA_MAX_PIXELS";
const CLASSES: &str = "OMMA_MAX_CLASSES";
const UNPACKED: &str = "OMMA_MAX_UNPACKED";
const MEMORY: &str = "OMMA_MAX_MEMORY";

/// 8G, 500M or a number of bytes.
fn size(text: &str) -> Result<u64, String> {
    let fault = || format!("{text} is not a size such as 8G, 500M or a number of bytes");
    let text = text.trim().trim_end_matches(['B', 'b']).trim_end_matches('i');
    let (number, unit) = match text.char_indices().last() {
        Some((place, 'k' | 'K')) => (&text[..place], 1_u64 << 10),
        Some((place, 'm' | 'M')) => (&text[..place], 1 << 20),
        Some((place, 'g' | 'G')) => (&text[..place], 1 << 30),
        Some((place, 't' | 'T')) => (&text[..place], 1 << 40),
        _ => (text, 1),
    };
    let number: f64 = number.trim().parse().map_err(|_| fault())?;
    match number > 0.0 && number.is_finite() {
        true => Ok((number * unit as f64) as u64),
        false => Err(fault()),
    }
}

impl LimitArguments {
    /// Puts them in force.
    pub(crate) fn put(&self) {
        Limits {
            pixels: self.max_pixels,
            classes: self.max_classes,
            unpacked: self.max_unpacked,
            memory: self.max_memory.unwrap_or(u64::MAX),
        }
        .put();
    }
}

/// The limits in force, as another process of this program takes them.
pub(crate) fn environment() -> [(&'static str, String); 4] {
    let Limits { pixels, classes, unpacked, memory } = Limits::current();
    [(PIXELS, pixels), (CLASSES, classes), (UNPACKED, unpacked), (MEMORY, memory)]
        .map(|(name, value)| (name, value.to_string()))
}
