//! A model under its name: what it is, the thread that runs it, and how it is replaced by a newer one.

use std::{
    sync::{Arc, Mutex, PoisonError, RwLock, mpsc::sync_channel},
    thread::JoinHandle,
};

use omma_data::Pixels;
use omma_eval::System;
use serde::Serialize;

use crate::{
    drift::ExpertLoad,
    metrics::{Metrics, ModelMetrics},
    predictor::{Answer, Ask, Predictor},
    queue::{Batching, Queue},
    search::Photos,
};

/// What is served under a name, as it is read.
pub struct Subject {
    /// One model, or several as one.
    pub system: System,
    /// Names of its classes; numbers where there are none.
    pub classes: Vec<String>,
    /// What its logits are divided by to be calibrated, if that was fitted.
    pub temperature: Option<f64>,
    /// What its experts had to do in training, where that is known.
    pub training: Vec<ExpertLoad>,
    /// What can be searched with it.
    pub photos: Option<Photos>,
}

/// Reads a subject, now and whenever it is to be replaced; says why it cannot.
pub type Load = Box<dyn Fn() -> Result<Subject, String> + Send + Sync>;

/// What a model says of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Task {
    /// Which class it has.
    Classes,
    /// Which class every pixel has.
    Pixels,
    /// How much it is like a text.
    Texts,
}

/// What a model is, as others may know it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Facts {
    pub(crate) name: String,
    /// How often it was replaced, from 1.
    pub(crate) version: u64,
    pub(crate) task: Task,
    /// In words, of the first of several models.
    pub(crate) about: String,
    /// Names of its models.
    pub(crate) models: Vec<String>,
    /// Predictions per image.
    pub(crate) members: usize,
    /// Height and width that images are cut to.
    pub(crate) resolution: (usize, usize),
    /// Names of its classes, or their numbers.
    pub(crate) classes: Vec<String>,
    /// Numbers of a vector, of a model that makes some.
    pub(crate) embedding: Option<usize>,
    /// Whether it has layers with experts.
    pub(crate) has_experts: bool,
    pub(crate) temperature: Option<f64>,
    /// Photos that can be searched.
    pub(crate) photos: usize,
    /// Why its images pass one by one, if they do.
    pub(crate) alone: Option<&'static str>,
}

type Asks = Queue<Ask, Result<Answer, String>>;

/// A model that is warm, and its queue.
pub(crate) struct Live {
    pub(crate) facts: Facts,
    pub(crate) pixels: Pixels,
    pub(crate) queue: Arc<Asks>,
    pub(crate) metrics: Arc<ModelMetrics>,
    pub(crate) photos: Option<Photos>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Live {
    /// Warms the model and starts its thread.
    fn start(
        name: &str,
        version: u64,
        subject: Subject,
        batching: Batching,
        metrics: &Metrics,
    ) -> Result<Self, String> {
        let Subject { system, classes, temperature, training, photos } = subject;
        let pixels = system.pixels();
        let metrics = metrics.of_model(name, training);
        let mut facts = facts(name, version, &system, classes, temperature);
        if let Some(photos) = &photos {
            photos.check(facts.embedding)?;
            facts.photos = photos.len();
        }
        let mut predictor = Predictor::new(system, metrics.clone());
        facts.alone = predictor.alone();
        // A picture's map is large, and is not computed faster beside another.
        let max_batch = if facts.task == Task::Pixels { 1 } else { batching.max_batch };
        let queue = Queue::new(Batching { max_batch, ..batching });
        let (own, known, size) = (queue.clone(), facts.clone(), pixels);
        let (warmed, is_warm) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("model {name}"))
            .spawn(move || {
                // Here, because memory is at hand for the thread that has had it before.
                let done = warm(&mut predictor, &known, &size, max_batch.min(WARM));
                let works = done.is_ok();
                // Whoever asked for the model waits for this.
                let _ = warmed.send(done);
                if works {
                    predictor.serve(&own);
                }
            })
            .map_err(|error| format!("there is no thread for {name}: {error}"))?;
        is_warm.recv().unwrap_or_else(|_| Err(format!("{name} could not be run")))?;
        Ok(Self { facts, pixels, queue, metrics, photos, thread: Mutex::new(Some(thread)) })
    }

    /// Takes nothing any more, and waits until everything that was taken is answered.
    fn finish(&self) {
        self.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(model = self.facts.name, "the thread of a model ended by a fault");
        }
    }
}

/// Images that a model is warmed with at most.
const WARM: usize = 32;

/// Runs everything that the model will be asked for once: the first time takes longest, and what cannot be done
/// should be known before anybody asks. A whole batch, so that its memory is there from the beginning.
fn warm(
    predictor: &mut Predictor,
    facts: &Facts,
    pixels: &Pixels,
    images: usize,
) -> Result<(), String> {
    let values = vec![0.0; pixels.resolution.pixels() * 3];
    let images = 0..images;
    let asks = match facts.task {
        Task::Classes => {
            let ask = |_| Ask::Classes { values: values.clone(), labels: None, experts: true };
            images.map(ask).collect()
        }
        Task::Texts => {
            let texts = Ask::Texts(vec!["a picture".to_owned()]);
            images.map(|_| Ask::Vector(values.clone())).chain([texts]).collect()
        }
        Task::Pixels => {
            let size = pixels.resolution;
            let grey = omma_data::Picture::filled(size.width, size.height, [127; 3]);
            vec![Ask::Pixels(grey)]
        }
    };
    predictor.answer(asks).into_iter().try_for_each(|answer| answer.map(|_| ()))
}

fn facts(
    name: &str,
    version: u64,
    system: &System,
    classes: Vec<String>,
    temperature: Option<f64>,
) -> Facts {
    let first = system.models().next().map(|model| model.config());
    let reads = system.models().any(omma_model::VisionTransformer::reads);
    let task = match (system.labels_pixels(), reads) {
        (true, _) => Task::Pixels,
        (false, true) => Task::Texts,
        (false, false) => Task::Classes,
    };
    let named = |class: usize| classes.get(class).cloned().unwrap_or_else(|| class.to_string());
    let resolution = system.pixels().resolution;
    Facts {
        name: name.to_owned(),
        version,
        task,
        about: first.map(|config| config.in_words()).unwrap_or_default(),
        models: system.names().to_vec(),
        members: system.members(),
        resolution: (resolution.height, resolution.width),
        classes: (0..system.classes()).map(named).collect(),
        embedding: first
            .and_then(|config| config.head.contrast())
            .map(|contrast| contrast.embedding),
        has_experts: first.is_some_and(|config| config.moe().is_some()),
        temperature,
        photos: 0,
        alone: None,
    }
}

/// A model by its name. Whoever asks gets the newest that is warm; the one before it answers what it has taken.
pub(crate) struct Model {
    pub(crate) name: String,
    load: Load,
    batching: Batching,
    live: RwLock<Arc<Live>>,
    /// Held while it is replaced, so that this happens once at a time.
    replacing: Mutex<()>,
}

impl Model {
    /// Reads and warms it.
    pub(crate) fn start(
        name: String,
        load: Load,
        batching: Batching,
        metrics: &Metrics,
    ) -> Result<Self, String> {
        let live = Live::start(&name, 1, load()?, batching, metrics)?;
        let (live, replacing) = (RwLock::new(Arc::new(live)), Mutex::new(()));
        Ok(Self { name, load, batching, live, replacing })
    }

    /// The newest.
    pub(crate) fn live(&self) -> Arc<Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads it again. Where that fails, the one that is there stays.
    pub(crate) fn replace(&self, metrics: &Metrics) -> Result<u64, String> {
        let _alone = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.live();
        let version = before.facts.version + 1;
        let subject = (self.load)()?;
        let live = Live::start(&self.name, version, subject, self.batching, metrics)?;
        live.metrics.reloaded();
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(live);
        before.finish();
        Ok(version)
    }

    /// Answers what was taken, and takes nothing any more.
    pub(crate) fn finish(&self) {
        self.live().finish();
    }
}
