//! Images of another size than a model is made for.

use clap::Args;
use omma_base::Resolution;

/// The size of the images, as a setting of its own.
#[derive(Args, Clone)]
pub(crate) struct ResolutionArguments {
    /// Side of the images in pixels, or HEIGHTxWIDTH, to which learned positions are interpolated; the
    /// same as --set resolution=… [default: what the model is made for]
    #[arg(long, value_name = "N|HxW")]
    resolution: Option<Resolution>,
}

impl ResolutionArguments {
    /// All settings of a model: the size comes last, and so counts.
    pub(crate) fn on_top_of(&self, settings: &[String]) -> Vec<String> {
        let own = self.resolution.map(|Resolution { height, width }| match height == width {
            true => format!("resolution={height}"),
            false => format!("resolution=[{height}, {width}]"),
        });
        settings.iter().cloned().chain(own).collect()
    }
}
