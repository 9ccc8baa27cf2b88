//! The end of a run: the test, the files.

use omma_base::{fault, memory};
use omma_eval::routing::LayerHealth;
use serde::Serialize;

use super::{Observer, Stop, Trainer, judging};
use crate::{
    error::{Result, TrainError},
    logs::{DeviceRecord, Record, read_records},
    report::report,
    resolved::Resolved,
    run::{Best, Origin, RunFolder},
    task::{Fact, TaskScores, Tested},
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
    /// Steps after which the run was extended; `result-STEP.json` is what it had reached then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extended_after: Vec<u64>,
    /// The checkpoint of another run that it is a cooldown of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown_of: Option<Origin>,
    /// Where its last steps were taken.
    pub device: String,
    /// Where it went on on another device, if it did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_changes: Vec<DeviceRecord>,
    /// Parameters.
    pub parameters: usize,
    /// Multiply-adds per image, forwards.
    pub multiply_adds: u64,
    /// The task's scores on the test images, each by its name.
    #[serde(flatten)]
    pub scores: TaskScores,
    /// The best evaluation on held-out images.
    pub best_validation: Option<Best>,
    /// Seconds spent in training steps, by the clock.
    pub train_seconds: f64,
    /// Seconds that the cores have worked in these, all of them together: what other work beside it hardly changes. Of
    /// several processes that train together it is the first one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_cpu_seconds: Option<f64>,
    /// Training images per second.
    pub images_per_second: f64,
    /// The most memory that the process held.
    pub peak_rss_bytes: Option<u64>,
    /// Routing on the test images, layer by layer.
    pub routing: Vec<LayerHealth>,
    /// The scores as they are shown.
    #[serde(skip)]
    pub facts: Vec<Fact>,
}

impl Trainer {
    /// Tests the model, as far as its recipe asks for that and unless it is to stop, and writes `model.safetensors`, `result.json` and
    /// `report.html`.
    pub(super) fn finish(
        &self,
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<TrainingResult> {
        let Resolved { recipe, task, data, .. } = &self.resolved;
        let model = self.deployed()?;
        self.save_model(&model, self.run.path())?;
        // What a step needs is more than a test does, and of other sizes.
        omma_kernels::memory::give_back();
        fault::point("test").map_err(TrainError::io(self.run.path()))?;
        let Tested { scores, routing, facts, sections } =
            match data.with_tests(recipe.train.test_share) {
                Some(data) => {
                    let doing = &mut |what: &str| observer.doing(what);
                    let at = judging(&self.resolved, &self.stepper.world, stop);
                    self.helped(&model, true, || task.test(&model, &data, at, doing))?
                }
                None => Tested::default(),
            };
        let images = self.progress.step as f64 * recipe.train.batch as f64;
        let result = TrainingResult {
            recipe: recipe.name.clone(),
            data: recipe.data.name.clone(),
            seed: recipe.seed,
            steps: self.progress.step,
            extended_after: self.stretches.ends().collect(),
            cooldown_of: self.run.origin()?,
            device: self.device.clone(),
            device_changes: device_changes(&self.run)?,
            parameters: self.outline.parameters,
            multiply_adds: self.outline.multiply_adds,
            scores,
            best_validation: self.progress.best,
            train_seconds: self.progress.seconds,
            train_cpu_seconds: self.progress.cpu_seconds,
            images_per_second: images / self.progress.seconds.max(1e-9),
            peak_rss_bytes: memory::peak(),
            routing,
            facts,
        };
        stop.check()?;
        observer.doing("writing the report");
        let page = report(&self.run, &self.resolved, &self.outline, &result, sections)?;
        self.run.write("report.html", page)?;
        self.run.write_json("result.json", &result)?;
        Ok(result)
    }
}

fn device_changes(run: &RunFolder) -> Result<Vec<DeviceRecord>> {
    let change = |record| match record {
        Record::Device(change) => Some(change),
        _ => None,
    };
    Ok(read_records(run)?.into_iter().filter_map(change).collect())
}
