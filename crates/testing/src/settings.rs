//! Settings of models and trainings that take a fraction of a second.

/// Settings of a small Vision Transformer, for `preset` with `apply_settings` and `omma init --set`.
pub const SMALL_MODEL: &[&str] =
    &["resolution=16", "patch=8", "width=16", "depth=2", "heads=2", "mlp=32"];

/// Settings that make the second block of a small V-MoE a mixture of four experts.
pub const SMALL_EXPERTS: &[&str] =
    &["model.moe.hidden=16", "model.moe.experts=4", "model.moe.placement=1"];

/// Settings of a training with [`SMALL_MODEL`], for `omma train --set`. Later settings win.
pub const SMALL_RUN: &[&str] = &[
    "model.resolution=16",
    "model.patch=8",
    "model.width=16",
    "model.depth=2",
    "model.heads=2",
    "model.mlp=32",
    "data.train_samples=300",
    "data.test_samples=50",
    "data.validation=0.1",
    "train.steps=6",
    "train.batch=16",
    "train.linear_baseline=false",
];

/// Returns [`SMALL_MODEL`] followed by `more`, which wins.
pub fn model_settings<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL_MODEL.iter().chain(more).copied().collect()
}
