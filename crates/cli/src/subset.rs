//! `--subset`

use clap::Args;

/// How many experts of a Soft MoE serve an image.
#[derive(Args, Clone, Default)]
pub(crate) struct SubsetArguments {
    /// Experts of every Soft MoE layer that serve an image, those with the largest weights (paper 004); the
    /// same as --set moe.subset=… [default: all]
    #[arg(long, value_name = "K")]
    subset: Option<usize>,
}

impl SubsetArguments {
    /// All settings of a model: the subset comes last, and so counts.
    pub(crate) fn on_top_of(&self, settings: &[String]) -> Vec<String> {
        let own = self.subset.map(|subset| format!("moe.subset={subset}"));
        settings.iter().cloned().chain(own).collect()
    }
}
