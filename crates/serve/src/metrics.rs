//! What is seen from outside, for Prometheus.
//!
//! The number of series is bounded: routes and models are those of the server, statuses are few, and experts are
//! told apart up to [`MOST_EXPERTS`] of a model.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::drift::{Drift, ExpertLoad, RecentLoad};

/// What kind of text [`Metrics::text`] is.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Experts of all layers of a model that have series of their own.
const MOST_EXPERTS: usize = 512;
/// From a millisecond, which is less than any model takes, to the longest that anybody is let wait.
const SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];
const IMAGES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
/// In nats; the last is that of a thousand classes that are equally likely.
const NATS: [f64; 10] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.3, 4.6, 6.9];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BlockLabels {
    model: String,
    part: String,
    block: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ExpertLabels {
    model: String,
    part: String,
    block: u64,
    expert: u64,
}

type Share = Gauge<f64, AtomicU64>;
type Amount = Counter<f64, AtomicU64>;

/// All series.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabels, Histogram>,
    pub(crate) in_flight: Gauge,
    pub(crate) log_lines_lost: Counter,
    models: Models,
}

/// Series of every model.
#[derive(Clone)]
struct Models {
    queue_seconds: Family<ModelLabels, Histogram>,
    compute_seconds: Family<ModelLabels, Histogram>,
    batch_images: Family<ModelLabels, Histogram>,
    waiting: Family<ModelLabels, Gauge>,
    entropy: Family<ModelLabels, Histogram>,
    ood: Family<ModelLabels, Counter>,
    images: Family<ModelLabels, Counter>,
    reloads: Family<ModelLabels, Counter>,
    expert_load: Family<ExpertLabels, Amount>,
    drift: Family<BlockLabels, Share>,
}

/// The series of one model, as its predictor and its routes fill them.
pub(crate) struct ModelMetrics {
    name: String,
    series: Models,
    drift: Mutex<Drift>,
    /// Nanoseconds that an image took lately.
    per_image: AtomicU64,
}

fn histograms<L: Clone + std::hash::Hash + Eq>(make: fn() -> Histogram) -> Family<L, Histogram> {
    Family::new_with_constructor(make)
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(SECONDS);
        let models = Models {
            queue_seconds: histograms(seconds),
            compute_seconds: histograms(seconds),
            batch_images: histograms(|| Histogram::new(IMAGES)),
            waiting: Family::default(),
            entropy: histograms(|| Histogram::new(NATS)),
            ood: Family::default(),
            images: Family::default(),
            reloads: Family::default(),
            expert_load: Family::default(),
            drift: Family::default(),
        };
        let metrics = Self {
            registry: Registry::with_prefix("omma"),
            requests: Family::default(),
            request_seconds: histograms(seconds),
            in_flight: Gauge::default(),
            log_lines_lost: Counter::default(),
            models,
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let all = &mut self.registry;
        let models = &self.models;
        all.register("requests", "Requests by route and status", self.requests.clone());
        all.register(
            "request_seconds",
            "From the first byte of a request to its answer",
            self.request_seconds.clone(),
        );
        all.register("in_flight", "Requests that are being answered", self.in_flight.clone());
        all.register(
            "log_lines_lost",
            "Lines of logs that could not be written",
            self.log_lines_lost.clone(),
        );
        all.register(
            "queue_seconds",
            "How long images waited for their batch",
            models.queue_seconds.clone(),
        );
        all.register(
            "compute_seconds",
            "How long batches took in the model",
            models.compute_seconds.clone(),
        );
        all.register("batch_images", "Images of a batch", models.batch_images.clone());
        all.register("waiting_images", "Images that wait for a batch", models.waiting.clone());
        all.register("prediction_entropy_nats", "Entropy of predictions", models.entropy.clone());
        all.register("images", "Images whose classes were told", models.images.clone());
        all.register(
            "ood_images",
            "Of these, images above the threshold for out-of-distribution ones",
            models.ood.clone(),
        );
        all.register("reloads", "How often the model was replaced", models.reloads.clone());
        all.register(
            "expert_load",
            "Tokens that experts have served; of a soft router, their share of the outputs",
            models.expert_load.clone(),
        );
        all.register(
            "expert_load_drift",
            "How far the load of a layer's experts is from that of its training run: half the sum of differences of shares",
            models.drift.clone(),
        );
        self
    }

    /// The series of a model.
    ///
    /// - `training`: what its experts had to do in its training run, where that is known
    pub(crate) fn of_model(&self, name: &str, training: Vec<ExpertLoad>) -> Arc<ModelMetrics> {
        let (name, series) = (name.to_owned(), self.models.clone());
        let (drift, per_image) = (Mutex::new(Drift::new(training)), AtomicU64::new(0));
        Arc::new(ModelMetrics { name, series, drift, per_image })
    }

    /// A request that was answered.
    pub(crate) fn answered(&self, route: &str, status: u16, took: Duration) {
        let (route, status) = (route.to_owned(), status.to_string());
        self.request_seconds
            .get_or_create(&RouteLabels { route: route.clone() })
            .observe(took.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { route, status }).inc();
    }

    /// All series as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl ModelMetrics {
    fn labels(&self) -> ModelLabels {
        ModelLabels { model: self.name.clone() }
    }

    /// Sets the number of images that wait for a batch.
    pub(crate) fn waits(&self, images: usize) {
        self.series.waiting.get_or_create(&self.labels()).set(images as i64);
    }

    /// A batch that was computed.
    ///
    /// - `queued`: how long each of its images waited
    /// - `waiting`: images that wait now
    pub(crate) fn computed(&self, queued: &[Duration], computed: Duration, waiting: usize) {
        let labels = self.labels();
        let seconds = self.series.queue_seconds.get_or_create(&labels);
        queued.iter().for_each(|queued| seconds.observe(queued.as_secs_f64()));
        self.series.compute_seconds.get_or_create(&labels).observe(computed.as_secs_f64());
        self.series.batch_images.get_or_create(&labels).observe(queued.len() as f64);
        self.waits(waiting);
        let now = computed.as_nanos() as u64 / queued.len().max(1) as u64;
        let before = self.per_image.load(Ordering::Relaxed);
        let mean = if before == 0 { now } else { (7 * before + now) / 8 };
        self.per_image.store(mean, Ordering::Relaxed);
    }

    /// What an image takes of the model's time.
    pub(crate) fn per_image(&self) -> Duration {
        Duration::from_nanos(self.per_image.load(Ordering::Relaxed))
    }

    /// An image whose classes were told.
    pub(crate) fn predicted(&self, entropy: f64, is_ood: bool) {
        let labels = self.labels();
        self.series.images.get_or_create(&labels).inc();
        self.series.entropy.get_or_create(&labels).observe(entropy);
        let ood = self.series.ood.get_or_create(&labels);
        if is_ood {
            ood.inc();
        }
    }

    pub(crate) fn reloaded(&self) {
        self.series.reloads.get_or_create(&self.labels()).inc();
    }

    /// What the experts of a layer had to do for some images.
    ///
    /// - `part`: the model that the layer is in; of an ensemble, one of several
    /// - `load`: `[E]`
    pub(crate) fn routed(&self, part: &str, block: usize, load: Vec<f64>, images: usize) {
        let mut drift = self.drift.lock().unwrap_or_else(PoisonError::into_inner);
        let (model, part, block) = (self.name.clone(), part.to_owned(), block as u64);
        if drift.experts() <= MOST_EXPERTS {
            for (expert, load) in load.iter().enumerate().filter(|(_, load)| **load > 0.0) {
                let (model, part, expert) = (model.clone(), part.clone(), expert as u64);
                let labels = ExpertLabels { model, part, block, expert };
                self.series.expert_load.get_or_create(&labels).inc_by(*load);
            }
        }
        if let Some(distance) = drift.add(&part, block as usize, load, images) {
            self.series.drift.get_or_create(&BlockLabels { model, part, block }).set(distance);
        }
    }

    /// What the experts had to do lately, layer by layer.
    pub(crate) fn loads(&self) -> Vec<RecentLoad> {
        self.drift.lock().unwrap_or_else(PoisonError::into_inner).loads()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_named_and_counted() {
        let metrics = Metrics::new();
        metrics.answered("/predict", 200, Duration::from_millis(3));
        metrics.answered("/predict", 429, Duration::from_millis(1));
        let training = ExpertLoad { part: "a".to_owned(), block: 3, load: vec![0.5, 0.5] };
        let model = metrics.of_model("m", vec![training]);
        model.computed(&[Duration::ZERO; 4], Duration::from_millis(8), 2);
        assert_eq!(model.per_image(), Duration::from_millis(2));
        model.predicted(0.3, true);
        model.routed("a", 3, vec![30.0, 10.0], 4);
        let text = metrics.text();
        for line in [
            r#"omma_requests_total{route="/predict",status="429"} 1"#,
            r#"omma_request_seconds_count{route="/predict"} 2"#,
            r#"omma_batch_images_sum{model="m"} 4.0"#,
            r#"omma_ood_images_total{model="m"} 1"#,
            r#"omma_expert_load_total{model="m",part="a",block="3",expert="0"} 30.0"#,
            r#"omma_expert_load_drift{model="m",part="a",block="3"} 0.25"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_model_with_many_experts_has_no_series_for_each() {
        let metrics = Metrics::new();
        let model = metrics.of_model("m", Vec::new());
        for block in 0..20 {
            model.routed("a", block, vec![1.0; 128], 1);
        }
        let lines = metrics.text().lines().filter(|line| line.contains("expert=")).count();
        assert!(lines <= MOST_EXPERTS + 128, "{lines}");
    }
}
