//! `--subset` and `--subsets`

use clap::Args;
use omma_eval::{SubsetSize, SubsetSizeError, SubsetsProtocol};

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

/// How far subsets of a Soft MoE's experts come.
#[derive(Args, Clone, Default)]
pub(crate) struct SubsetsArguments {
    /// How far some experts of a Soft MoE come as well: those with the largest weights, random ones of ten draws, those
    /// with the smallest, and where few subsets exist, each of them (paper 004). As numbers of experts or shares of
    /// them, separated by commas [default: 1/2,1/4,1/8]
    #[arg(
        long,
        value_name = "SIZES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        conflicts_with_all = ["subset", "class_subset"]
    )]
    subsets: Option<String>,
}

impl SubsetsArguments {
    /// What is asked; nothing where nothing is.
    pub(crate) fn protocol(&self) -> Result<Option<SubsetsProtocol>, SubsetSizeError> {
        let Some(text) = &self.subsets else { return Ok(None) };
        let asked = SubsetsProtocol::default();
        if text.is_empty() {
            return Ok(Some(asked));
        }
        let sizes = text.split(',').map(str::parse).collect::<Result<Vec<SubsetSize>, _>>()?;
        Ok(Some(SubsetsProtocol { sizes, ..asked }))
    }

    /// In the words of a command, in one way.
    pub(crate) fn words(&self) -> Option<String> {
        let asked = self.protocol().ok()??;
        let sizes: Vec<String> = asked.sizes.iter().map(SubsetSize::to_string).collect();
        Some(format!("--subsets={}", sizes.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_sizes_they_are_the_papers() {
        let asked = |text: &str| SubsetsArguments { subsets: Some(text.to_owned()) };
        assert_eq!(asked("").protocol().unwrap(), Some(SubsetsProtocol::default()));
        assert_eq!(asked("").words(), asked("1/2, 1/4,1/8").words());
        assert_eq!(asked("3,1/4").words().unwrap(), "--subsets=3,1/4");
        assert!(asked("3,,1").protocol().is_err() && asked("all").protocol().is_err());
        assert_eq!(SubsetsArguments::default().words(), None);
    }
}
