//! The middle ring: models by name, and the way from a question to its answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::{
    access::AccessLog,
    body::room,
    drift::RecentLoad,
    error::{Result, ServeError},
    metrics::Metrics,
    model::{Live, Load, Model},
    options::Options,
    predictor::{Answer, Ask},
};

/// Models that are warm, and how they are asked.
pub struct Server {
    pub(crate) models: Vec<Arc<Model>>,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access: Option<AccessLog>,
    /// Room for the bodies of requests.
    pub(crate) held: Arc<Semaphore>,
    /// Images are decoded by as many threads as compute: more would only hold more memory.
    decoders: Arc<Semaphore>,
    stopping: AtomicBool,
}

/// Answers, and the model that gave them.
pub(crate) struct Answered {
    pub(crate) live: Arc<Live>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) timing: Timing,
}

/// What the answers took: the longest of each.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub(crate) struct Timing {
    /// Waiting for a batch.
    pub(crate) queue_ms: f64,
    /// The batch in the model.
    pub(crate) compute_ms: f64,
    /// Images of the batch, of all that asked.
    pub(crate) batch: usize,
}

impl Server {
    /// Reads and warms all models, in their order; fails with the first that cannot be.
    pub fn start(
        models: Vec<(String, Load)>,
        options: Options,
        access: Option<AccessLog>,
    ) -> Result<Arc<Self>> {
        let metrics = Arc::new(Metrics::new());
        let mut started: Vec<Arc<Model>> = Vec::with_capacity(models.len());
        for (name, load) in models {
            if started.iter().any(|other| other.name == name) {
                return Err(ServeError::Failed(format!("two models are called {name}")));
            }
            let model = Model::start(name, load, options.batching, &metrics);
            started.push(Arc::new(model.map_err(ServeError::Failed)?));
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Self {
            models: started,
            held: Arc::new(Semaphore::new(room(options.max_held))),
            decoders: Arc::new(Semaphore::new(threads)),
            stopping: AtomicBool::new(false),
            metrics,
            access,
            options,
        }))
    }

    /// Names of the models.
    pub fn names(&self) -> Vec<String> {
        self.models.iter().map(|model| model.name.clone()).collect()
    }

    /// What the experts of every model had to do lately, by its name.
    pub fn expert_loads(&self) -> Vec<(String, Vec<RecentLoad>)> {
        let loads = |model: &Arc<Model>| (model.name.clone(), model.live().metrics.loads());
        self.models.iter().map(loads).collect()
    }

    /// Counts lines of a log that could not be written.
    pub fn lost_log_lines(&self, lines: u64) {
        self.metrics.log_lines_lost.inc_by(lines);
    }

    /// Counts lines of the access log that could not be written so far.
    pub(crate) fn count_lost_lines(&self) {
        self.lost_log_lines(self.access.as_ref().map_or(0, AccessLog::lost));
    }

    /// Updates the number of images that wait for a batch, for each model.
    pub(crate) fn count_waiting(&self) {
        for model in &self.models {
            let live = model.live();
            live.metrics.waits(live.queue.len());
        }
    }

    /// The model of a name; without one, the first.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<&Arc<Model>> {
        let found = match name {
            Some(name) => self.models.iter().find(|model| model.name == name),
            None => self.models.first(),
        };
        found.ok_or_else(|| {
            let name = name.unwrap_or_default().to_owned();
            ServeError::NoModel { name, known: self.names().join(", ") }
        })
    }

    /// Whether requests are welcome.
    pub(crate) fn is_ready(&self) -> bool {
        !self.stopping.load(Ordering::Relaxed)
    }

    /// From now on, nobody is welcome; who is there is answered.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.models.iter().for_each(|model| model.live().queue.hurry());
    }

    /// Answers all that was taken.
    pub(crate) fn finish(&self) {
        self.models.iter().for_each(|model| model.finish());
        if let Some(access) = &self.access {
            access.flush();
        }
    }

    /// Reads every model again; says of each that could not be, why.
    pub fn reload(&self) {
        for model in &self.models {
            match model.replace(&self.metrics) {
                Ok(version) => tracing::info!(model = model.name, version, "replaced"),
                Err(error) => {
                    tracing::error!(
                        model = model.name,
                        error,
                        "not replaced; the one before stays"
                    );
                }
            }
        }
    }

    /// Asks a model. Places in its queue are taken before anything is prepared; where the model is replaced in the
    /// meantime, the new one is asked.
    ///
    /// - `count`: how many asks `prepare` will make
    /// - `prepare`: decodes what is asked about, on a thread that may block
    pub(crate) async fn ask(
        &self,
        model: &Model,
        count: usize,
        deadline: Instant,
        prepare: impl Fn(&Live) -> Result<Vec<Ask>> + Send + Sync + 'static,
    ) -> Result<Answered> {
        let prepare = Arc::new(prepare);
        loop {
            let live = model.live();
            let own = prepare.clone();
            match self.ask_live(live.clone(), count, deadline, move |live| own(live)).await {
                Err(ServeError::Stopping) if !Arc::ptr_eq(&live, &model.live()) => {}
                answered => return answered,
            }
        }
    }

    /// Something that takes a while, such as decoding, on one of as many threads as compute.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let decoder = timeout_at(deadline, self.decoders.clone().acquire_owned()).await;
        let decoder = decoder.map_err(|_| ServeError::Late)?;
        let done = tokio::task::spawn_blocking(move || {
            // Given back when the work is done, whether anybody still waits for it or not.
            let _decoder = decoder;
            work()
        });
        let fault = |_| ServeError::Failed("the request could not be prepared".to_owned());
        done.await.map_err(fault)?
    }

    async fn ask_live(
        &self,
        live: Arc<Live>,
        count: usize,
        deadline: Instant,
        prepare: impl FnOnce(&Live) -> Result<Vec<Ask>> + Send + 'static,
    ) -> Result<Answered> {
        let refused = |refused| {
            let waiting = live.queue.len() + count;
            ServeError::refused(refused, live.metrics.per_image(), waiting)
        };
        let mut places = live.queue.reserve(count).map_err(refused)?;
        let own = live.clone();
        let asks = self.blocking(deadline, move || prepare(&own)).await?;
        let fill = |ask| places.fill(ask, deadline.into_std());
        let replies: Vec<_> = asks.into_iter().take(count).map(fill).collect();
        let mut answered =
            Answered { live: live.clone(), answers: Vec::new(), timing: Timing::default() };
        for reply in replies {
            let done = timeout_at(deadline, reply).await.map_err(|_| ServeError::Late)?;
            let fault = |_| ServeError::Failed("the model has stopped".to_owned());
            let done = done.map_err(fault)?.map_err(refused)?;
            answered.timing.add(done.queued, done.computed, done.batch);
            answered.answers.push(done.output.map_err(ServeError::Failed)?);
        }
        Ok(answered)
    }
}

impl Timing {
    fn add(&mut self, queued: Duration, computed: Duration, batch: usize) {
        let milliseconds = |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        self.queue_ms = self.queue_ms.max(milliseconds(queued));
        self.compute_ms = self.compute_ms.max(milliseconds(computed));
        self.batch = self.batch.max(batch);
    }
}

#[cfg(test)]
mod tests {
    use axum::{http::header, response::IntoResponse};
    use burn::tensor::Device;
    use omma_base::Seed;
    use omma_eval::System;
    use omma_model::{apply_settings, preset};
    use tokio::runtime::Runtime;

    use super::*;
    use crate::model::Subject;

    /// Values of an image of 16 pixels.
    const IMAGE: usize = 16 * 16 * 3;

    fn server() -> Arc<Server> {
        let load = || {
            let settings = ["resolution=16", "patch=8", "width=16", "depth=1", "heads=2", "mlp=16"];
            let config = apply_settings(&preset("vit-tiny").unwrap(), &settings).unwrap();
            let device = Device::flex();
            let model = config.init(Seed::new(3), &device).unwrap();
            let system = System::new(vec![("one".to_owned(), model)], &device).unwrap();
            let (classes, training) = (Vec::new(), Vec::new());
            Ok(Subject { system, classes, temperature: None, training, photos: None })
        };
        let models: Vec<(String, Load)> = vec![("one".to_owned(), Box::new(load))];
        Server::start(models, Options::default(), None).unwrap()
    }

    /// Answers to one request, as the server prepares it.
    fn ask(
        server: &Server,
        prepare: impl Fn(&Live) -> Result<Vec<Ask>> + Send + Sync + 'static,
    ) -> Result<usize> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let answered = server.ask(&server.models[0], 1, deadline, prepare);
        let runtime = Runtime::new().unwrap();
        runtime.block_on(answered).map(|answered| answered.answers.len())
    }

    fn image(values: usize) -> impl Fn(&Live) -> Result<Vec<Ask>> + Send + Sync + 'static {
        move |_| {
            let values = vec![0.5; values];
            Ok(vec![Ask::Classes { values, labels: None, experts: false }])
        }
    }

    #[test]
    fn panic_of_a_model_fails_its_request_and_not_the_next() {
        let server = server();
        assert_eq!(ask(&server, image(IMAGE)), Ok(1));
        // No image of the model's size: arithmetic panics.
        let error = ask(&server, image(IMAGE - 1)).unwrap_err();
        let expected = "the model could not compute this batch";
        assert_eq!(error, ServeError::Failed(expected.to_owned()));
        assert_eq!(error.into_response().status(), 500);
        assert_eq!(ask(&server, image(IMAGE)), Ok(1));
        let error = ask(&server, |_| panic!("an image cannot be decoded")).unwrap_err();
        let expected = "the request could not be prepared";
        assert_eq!(error, ServeError::Failed(expected.to_owned()));
        assert_eq!(ask(&server, image(IMAGE)), Ok(1));
        assert_eq!(server.models[0].live().queue.len(), 0);
    }

    #[test]
    fn stopped_server_answers_until_it_is_finished() {
        let server = server();
        assert!(server.is_ready());
        server.stop();
        assert!(!server.is_ready());
        assert_eq!(ask(&server, image(IMAGE)), Ok(1));
        server.finish();
        let error = ask(&server, image(IMAGE)).unwrap_err();
        assert_eq!(error, ServeError::Stopping);
        let response = error.into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
