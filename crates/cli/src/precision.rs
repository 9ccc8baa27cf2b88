//! `--precision`

use anyhow::{Context, Result};
use burn::tensor::Device;
use clap::Args;
use omma_model::Precision;

use crate::subject::Candidate;

/// What predictions are computed in.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct PrecisionArguments {
    /// What products are computed in: f32, bf16 or f16, as far as the device has them
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    precision: Precision,
}

impl PrecisionArguments {
    /// Fails where the device does not compute in it.
    pub(crate) fn of(self, candidates: Vec<Candidate>, device: &Device) -> Result<Vec<Candidate>> {
        self.precision.check(device).context("--precision")?;
        let own = candidates.into_iter().map(|candidate| candidate.in_precision(self.precision));
        Ok(own.collect())
    }

    /// What is said where it is not the usual one.
    pub(crate) fn word(self) -> Option<&'static str> {
        (self.precision != Precision::F32).then(|| self.precision.name())
    }
}
