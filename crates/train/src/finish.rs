//! The end of a run: the test, the comparison, the files.

use omma_base::{Seed, memory};
use omma_model::checkpoint;
use serde::Serialize;

use crate::{
    error::Result,
    evaluate::evaluate,
    health::LayerHealth,
    linear::linear_baseline,
    recipe::Recipe,
    report::report,
    run::{Best, RunFolder},
    stop::Stop,
    trainer::{Observer, Trained},
};

/// What a run reached; `result.json`.
#[derive(Debug, Clone, Serialize)]
pub struct TrainingResult {
    /// Which recipe.
    pub recipe: String,
    /// What it was trained on.
    pub data: String,
    /// Its seed.
    pub seed: u64,
    /// Steps.
    pub steps: u64,
    /// Parameters.
    pub parameters: usize,
    /// Multiply-adds per image, forwards.
    pub multiply_adds: u64,
    /// Share of the test images that it got right.
    pub test_accuracy: f64,
    /// Mean negative log-likelihood on the test images, in nats.
    pub test_nll: f64,
    /// Test accuracy of a linear classifier on pixels.
    pub linear_baseline_accuracy: Option<f64>,
    /// The best evaluation on held-out images.
    pub best_validation: Option<Best>,
    /// Seconds spent in training steps.
    pub train_seconds: f64,
    /// Training images per second.
    pub images_per_second: f64,
    /// The most memory that the process held.
    pub peak_rss_bytes: Option<u64>,
    /// Routing on the test images, layer by layer.
    pub routing: Vec<LayerHealth>,
}

/// Tests the model, unless it is to stop, and writes `model.safetensors`, `result.json` and `report.html`.
pub fn finish(
    run: &RunFolder,
    recipe: &Recipe,
    trained: &Trained,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<TrainingResult> {
    checkpoint::save(&trained.model, run.path())?;
    observer.doing("testing");
    let pixels = recipe.pixels();
    let test = evaluate(&trained.model, &trained.test, pixels, recipe.train.batch, stop)?;
    let linear_baseline_accuracy = match recipe.train.linear_baseline {
        true => {
            observer.doing("fitting a linear classifier for comparison");
            let seed = Seed::new(recipe.seed).named("linear");
            Some(linear_baseline(&trained.train, &trained.test, pixels, seed, stop)?)
        }
        false => None,
    };
    let images = trained.progress.step as f64 * recipe.train.batch as f64;
    let result = TrainingResult {
        recipe: recipe.name.clone(),
        data: recipe.data.name.clone(),
        seed: recipe.seed,
        steps: trained.progress.step,
        parameters: trained.plan.parameters,
        multiply_adds: trained.plan.multiply_adds,
        test_accuracy: test.accuracy(),
        test_nll: test.nll(),
        linear_baseline_accuracy,
        best_validation: trained.progress.best,
        train_seconds: trained.progress.seconds,
        images_per_second: images / trained.progress.seconds.max(1e-9),
        peak_rss_bytes: memory::peak(),
        routing: test.routing.clone(),
    };
    stop.check()?;
    observer.doing("writing the report");
    run.write("report.html", report(run, recipe, trained, &test, &result)?)?;
    run.write_json("result.json", &result)?;
    Ok(result)
}
