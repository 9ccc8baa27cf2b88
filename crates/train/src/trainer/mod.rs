//! The loop: from a recipe, or from where a run stopped, to a trained model.

mod agree;
mod average;
mod cooldown;
mod divergence;
mod early;
mod experts;
mod finish;
mod follower;
mod interval;
mod lead;
mod learner;
mod loss_scale;
mod on_device;
mod shards;
mod step;
mod stepper;
mod stop;
mod stretches;
mod sums;
mod weights;

use std::{path::Path, time::Instant};

use burn::{module::Module, tensor::Device};
use omma_base::{cpu_time, fault};
use omma_kernels::devices::describe;
use omma_model::{
    Precision, VisionTransformer,
    checkpoint::{self, Identity},
};
use omma_ranks::World;

pub(crate) use self::weights::gradients;
pub(crate) use self::{
    average::Average,
    early::buckets,
    experts::ranks_with_all_experts,
    interval::Interval,
    learner::{Examples, Input, InputTensor, Learner},
    shards::Shards,
};
pub use self::{
    cooldown::Cooldown,
    finish::TrainingResult,
    follower::Follower,
    lead::{lead, meet, same_data},
    loss_scale::LossScale,
    stop::Stop,
    weights::Weights,
};
#[cfg(test)]
pub(crate) use self::{
    early::Outlet,
    step::{Pass, add_gradients, divide_gradients},
};
use self::{
    lead::Order,
    learner::Feed,
    on_device::learning_rows,
    stepper::{At, Stepper},
    stretches::Stretches,
};

use crate::{
    error::{Result, TrainError},
    logs::{DeviceRecord, EvaluationRecord, Logs, Record, StretchRecord, TrainRecord},
    memory::StepMemory,
    recipe::{Recipe, TrainRecipe},
    resolved::Resolved,
    run::{
        Best, DataIdentity, Environment, Place, Progress, RunFolder, Saved, State, Whole,
        last_device,
    },
    start::{Begin, Resume},
    task::{Judging, Measure, TaskScores},
};

/// Who watches a run.
pub trait Observer {
    /// It begins, or goes on after `progress`.
    fn started(&mut self, _: &Outline, _: &Progress) {}
    /// A new stretch of a run begins, by other settings.
    fn extended(&mut self, _: &StretchRecord) {}
    /// A step was taken.
    fn step(&mut self, _: u64) {}
    /// A log interval has passed.
    fn logged(&mut self, _: &TrainRecord) {}
    /// Held-out images were looked at.
    fn evaluated(&mut self, _: &EvaluationRecord) {}
    /// A checkpoint was written.
    fn saved(&mut self, _: u64) {}
    /// Something takes time that is not training.
    fn doing(&mut self, _: &str) {}
    /// So many images of such work are done.
    fn counting(&mut self, _what: &str, _done: usize, _of: usize) {}
    /// Something is worth knowing.
    fn note(&mut self, _: &str) {}
}

/// What is going to happen.
#[derive(Debug, Clone)]
pub struct Outline {
    /// Steps in all.
    pub steps: u64,
    /// Classes of the images.
    pub classes: usize,
    /// Images to learn from.
    pub train_images: usize,
    /// Held-out images.
    pub validation_images: usize,
    /// Images of the test.
    pub test_images: usize,
    /// Parameters.
    pub parameters: usize,
    /// Those of them that learn.
    pub learning: usize,
    /// Multiply-adds per image, forwards.
    pub multiply_adds: u64,
    /// What the model is judged by on the way.
    pub measures: &'static [Measure],
    /// What a step takes.
    pub memory: StepMemory,
}

/// How a run ended.
pub enum Ended {
    /// With a result.
    Finished(Box<TrainingResult>),
    /// It was asked to stop, and saved what it had.
    Interrupted {
        /// After which step.
        step: u64,
        /// Whether all steps were taken, and only its test was cut short.
        testing: bool,
    },
}

/// A training under way: it owns a run from its start to its result.
pub struct Trainer {
    resolved: Resolved,
    run: RunFolder,
    outline: Outline,
    /// What tells the run's images from others.
    identity: DataIdentity,
    stepper: Stepper,
    /// What the device is called that it computes on.
    device: String,
    average: Option<Average>,
    stretches: Stretches,
    logs: Logs,
    interval: Interval,
    progress: Progress,
    saved: Option<u64>,
    last_save: Instant,
}

impl Trainer {
    /// A new run.
    pub fn start(place: Place, resolved: Resolved) -> Result<Self> {
        let device = resolved.device.clone().autodiff();
        let begin = Begin::fresh(&resolved, &device)?;
        let run = RunFolder::create(place, &resolved.recipe)?;
        Self::new(resolved, run, begin, device)
    }

    /// Goes on with a run from its newest checkpoint that can be read. One that was read and found
    /// damaged is set aside; an error of the file system ends the attempt and touches nothing. A run that
    /// was killed before its first checkpoint begins again.
    pub fn resume(path: &Path, how: Resume, device: &Device) -> Result<Self> {
        let (run, recipe) = RunFolder::open(path)?;
        let run = run.own()?;
        run.tidy()?;
        let resolved = Resolved::again(recipe, Some(path), device)?;
        let device = device.clone().autodiff();
        let begin = Begin::again(&run, &resolved, &run.earlier_stretches()?, how, &device)?;
        Self::new(resolved, run, begin, device)
    }

    fn new(mut resolved: Resolved, run: RunFolder, begin: Begin, device: Device) -> Result<Self> {
        let Begin { model, weights, average, optimiser, freezing, progress, interval, from } =
            begin;
        let Resolved { recipe, data, task, .. } = &resolved;
        let cost = recipe.model.cost(recipe.model.image.resolution)?;
        let tested = data.with_tests(recipe.train.test_share);
        let outline = Outline {
            steps: recipe.total_steps(data.train.len()),
            classes: task.class_names().map_or(data.train.classes().len(), <[String]>::len),
            train_images: data.train.len(),
            validation_images: data.validation.len(),
            test_images: tested.map_or(0, |data| data.test.len()),
            parameters: cost.params_total as usize,
            learning: weights.count(),
            multiply_adds: cost.forward_macs,
            measures: task.measures(),
            memory: resolved.memory,
        };
        let mut stepper = Stepper::new(device, (model, weights), optimiser, freezing, recipe)?;
        stepper.loss_scale = LossScale::of(recipe.train.precision, progress.loss_scale);
        let stretches = Stretches::new(run.earlier_stretches()?, recipe, data.train.len());
        let mut logs = Logs::open(&run, progress.step)?;
        if let Some(classes) = task.class_names() {
            run.write_json("classes.json", &classes)?;
        }
        for (name, text) in task.files() {
            run.write(name, text)?;
        }
        let device = describe(&resolved.device);
        if let Some(before) = last_device(&run.file("environment.json")).filter(|it| *it != device)
        {
            resolved.notes.push(format!(
                "this run was trained on {before} and goes on on {device}: its numbers are not to the bit those of \
                 a run that stays"
            ));
            let (step, device) = (progress.step, device.clone());
            logs.add(&Record::Device(DeviceRecord { step, device, before }))?;
        }
        run.write_json("environment.json", &Environment::now(device.clone()))?;
        Ok(Self {
            identity: DataIdentity::of(&resolved.data),
            resolved,
            run,
            outline,
            stepper,
            device,
            average,
            stretches,
            logs,
            interval,
            progress,
            saved: from,
            last_save: Instant::now(),
        })
    }

    /// The run's folder.
    pub fn run_folder(&self) -> &RunFolder {
        &self.run
    }

    /// The recipe with everything in it.
    pub fn recipe(&self) -> &Recipe {
        &self.resolved.recipe
    }

    /// Trains and tests, or stops when it is to. Whatever it was doing then, what it has learned is saved.
    pub fn run(mut self, observer: &mut dyn Observer, stop: &Stop) -> Result<Ended> {
        let ended = self.run_to_its_end(observer, stop);
        self.order(Order::End);
        ended
    }

    fn run_to_its_end(&mut self, observer: &mut dyn Observer, stop: &Stop) -> Result<Ended> {
        observer.started(&self.outline, &self.progress);
        self.resolved.notes.iter().for_each(|text| observer.note(text));
        match self.steps(observer, stop) {
            Err(TrainError::Interrupted) => {
                let step = self.progress.step;
                if step > 0 {
                    self.save(observer)?;
                }
                return Ok(Ended::Interrupted { step, testing: false });
            }
            result => result?,
        }
        self.save(observer)?;
        match self.finish(observer, stop) {
            Ok(result) => Ok(Ended::Finished(Box::new(result))),
            Err(TrainError::Interrupted) => {
                Ok(Ended::Interrupted { step: self.progress.step, testing: true })
            }
            Err(error) => Err(error),
        }
    }

    fn steps(&mut self, observer: &mut dyn Observer, stop: &Stop) -> Result<()> {
        // Where it was interrupted in an evaluation, that comes first.
        if self.progress.step > 0 && self.progress.evaluated.is_some() {
            // Its checkpoint is there; which is the best may be news.
            if self.evaluate_if_due(observer, stop)? {
                self.saved = None;
                self.save(observer)?;
            }
        }
        if self.progress.step == self.outline.steps {
            return Ok(());
        }
        self.order(Order::Feed { step: self.progress.step });
        let mut feed = self.stepper.feed(&self.resolved, self.progress.step, observer, stop)?;
        while self.progress.step < self.outline.steps {
            stop.check()?;
            self.begin_stretch(observer)?;
            let (begin, cpu_before) = (Instant::now(), cpu_time::of_process());
            self.step(&mut feed)?;
            let spent = begin.elapsed().as_secs_f64();
            let cpu = cpu_time::of_process().zip(cpu_before).map(|(after, before)| after - before);
            self.progress.spend(spent, cpu);
            self.interval.seconds += spent;
            observer.step(self.progress.step);
            self.after_step(observer, stop)?;
        }
        Ok(())
    }

    fn step(&mut self, feed: &mut Feed) -> Result<()> {
        let step = self.progress.step;
        let at = At { step, rate: self.stretches.rate(step) };
        self.order(Order::Step(at));
        let last_good = || last_good(&self.run);
        let taken = self.stepper.step(&self.resolved, feed, at, &last_good)?;
        if let Some(average) = &mut self.average {
            match &self.stepper.on_device {
                None => average.follow(step + 1, &self.stepper.weights.values),
                Some(_) => {
                    let values = learning_rows(&self.stepper.model);
                    average.follow_on_device(step + 1, values, &self.resolved.device);
                }
            }
        }
        self.progress.step += 1;
        self.progress.skipped += u64::from(taken.skipped);
        self.progress.loss_scale = self.stepper.loss_scale;
        self.interval.add(taken, at.rate);
        Ok(())
    }

    /// Logs, evaluations and checkpoints that are due.
    fn after_step(&mut self, observer: &mut dyn Observer, stop: &Stop) -> Result<()> {
        let step = self.progress.step;
        if self.is_last() || step.is_multiple_of(self.recipe().train.log_every) {
            let epoch = self.epoch();
            let record = self.interval.take(step, epoch, &self.stepper);
            self.logs.add(&Record::Train(record.clone()))?;
            observer.logged(&record);
        }
        let improved = self.evaluate_if_due(observer, stop)?;
        let train = &self.recipe().train;
        let every = |steps: u64| steps > 0 && step.is_multiple_of(steps);
        let by_steps = every(train.checkpoint_every) || every(train.keep_every);
        let minutes = self.last_save.elapsed().as_secs_f64() / 60.0;
        let by_time = train.checkpoint_minutes > 0.0 && minutes >= train.checkpoint_minutes;
        if improved || by_steps || by_time {
            self.save(observer)?;
        }
        Ok(())
    }

    fn is_last(&self) -> bool {
        self.progress.step == self.outline.steps
    }

    /// Looks at held-out images where that is due and was not done; whether the model is better than ever.
    fn evaluate_if_due(&mut self, observer: &mut dyn Observer, stop: &Stop) -> Result<bool> {
        let step = self.progress.step;
        let every = match self.recipe().train.evaluate_every {
            0 => (self.outline.steps / 10).max(1),
            every => every,
        };
        let due = self.is_last() || step.is_multiple_of(every);
        if self.resolved.data.validation.is_empty() || !due || self.progress.evaluated == Some(step)
        {
            return Ok(false);
        }
        // Until it is done, it is still to be done.
        self.progress.evaluated.get_or_insert(0);
        observer.doing("evaluating");
        let scores = self
            .judge(stop)
            .map_err(|error| self.stepper.or_divergence(step, error, &|| last_good(&self.run)))?;
        let decides = self.outline.measures.first();
        let score = decides.and_then(|measure| scores.get(measure.key));
        let record =
            EvaluationRecord { step, epoch: self.epoch(), seconds: self.progress.seconds, scores };
        self.logs.add(&Record::Evaluation(record.clone()))?;
        observer.evaluated(&record);
        self.progress.evaluated = Some(step);
        let (Some(measure), Some(score)) = (decides, score) else { return Ok(false) };
        let improved = self.progress.best.is_none_or(|best| measure.is_better(score, best.score));
        if improved {
            self.progress.best = Some(Best { step, score });
        }
        Ok(improved)
    }

    fn judge(&self, stop: &Stop) -> Result<TaskScores> {
        let Resolved { task, data, .. } = &self.resolved;
        let model = self.deployed()?;
        let at = judging(&self.resolved, &self.stepper.world, stop);
        fault::point("evaluate").map_err(TrainError::io(self.run.path()))?;
        self.helped(&model, false, || task.judge(&model, &data.validation, at))
    }

    /// Judges a model with the help of other ranks, which may also have some of its experts.
    fn helped<T>(
        &self,
        model: &VisionTransformer,
        test: bool,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.order(Order::Judge { test });
        let found = run();
        // When nobody has anything to compute any more, all go on.
        model.serve_experts()?;
        found
    }

    /// The model that a user gets.
    fn deployed(&self) -> Result<VisionTransformer> {
        deployed(&self.stepper, self.average.as_ref())
    }

    /// Writes a model into a folder, with the experts that other ranks have.
    fn save_model(&self, model: &VisionTransformer, folder: &Path) -> Result<Identity> {
        Ok(match &self.stepper.experts {
            Some(experts) => {
                checkpoint::save_values(model.config(), &experts.whole_model(model), folder)?
            }
            None => checkpoint::save(model, folder)?,
        })
    }

    fn save(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let step = self.progress.step;
        if self.saved == Some(step) {
            return Ok(());
        }
        let checkpoints = self.run.checkpoints();
        let model = self.deployed()?;
        self.stepper.fetch(self.average.is_some());
        let raw = self.average.as_ref().map(|_| &self.stepper.weights);
        let (progress, interval) = (self.progress, &self.interval);
        let optimiser = &self.stepper.optimiser;
        let in_parts = self.stepper.whole_state();
        let whole: &dyn Whole = in_parts.as_ref().map_or(&(), |whole| whole);
        checkpoints.add(step, |folder| {
            let model = self.save_model(&model, folder)?;
            for (name, text) in self.resolved.task.files() {
                let path = folder.join(name);
                std::fs::write(&path, text).map_err(TrainError::io(&path))?;
            }
            let recipe = self.stretches.led_to(step).unwrap_or(self.recipe()).to_toml();
            let data = self.identity.clone();
            let saved = Saved { progress, model, recipe, data, optimiser, raw, whole };
            State::save_within(interval, folder, saved)
        })?;
        self.stepper.release();
        let best = self.progress.best;
        if let Some(best) = best.filter(|best| checkpoints.at(best.step).exists()) {
            checkpoints.set_best(&best)?;
        }
        let TrainRecipe { keep, keep_every, .. } = self.recipe().train;
        let for_good = |step: &u64| keep_every > 0 && step.is_multiple_of(keep_every);
        let for_good = checkpoints.steps()?.into_iter().filter(for_good);
        let best = best.map(|best| best.step);
        let stay: Vec<u64> = self.stretches.ends().chain(best).chain(for_good).collect();
        checkpoints.keep(keep, &stay)?;
        self.saved = Some(step);
        self.last_save = Instant::now();
        observer.saved(step);
        Ok(())
    }

    fn epoch(&self) -> f64 {
        let images = self.resolved.data.train.len() as f64;
        self.progress.step as f64 * self.recipe().train.batch as f64 / images
    }
}

/// Where and how a model is judged on its way.
fn judging<'a>(resolved: &'a Resolved, world: &'a World, stop: &'a Stop) -> Judging<'a> {
    let Resolved { recipe, device, .. } = resolved;
    // What is learned in parts for lack of memory is judged in parts too.
    let batch = recipe.train.batch / recipe.train.accumulation.max(1);
    Judging { device, batch, stop, world }
}

/// The model that a user gets: the average where there is one, in single precision.
fn deployed(stepper: &Stepper, average: Option<&Average>) -> Result<VisionTransformer> {
    let model = stepper.model.clone();
    let model = match average {
        None => model,
        Some(average) => match average.put_on_device(&model) {
            Some(model) => model,
            None => {
                let parameters = stepper.weights.parameters.clone();
                Weights { parameters, values: average.values.clone() }.put(model)?
            }
        },
    };
    Ok(model.valid().in_precision(Precision::F32))
}

fn last_good(run: &RunFolder) -> String {
    match run.checkpoints().steps().unwrap_or_default().last() {
        Some(step) => {
            let path = run.checkpoints().at(*step);
            format!("the last good checkpoint is {} (after step {step})", path.display())
        }
        None => "there is no checkpoint yet".to_owned(),
    }
}
