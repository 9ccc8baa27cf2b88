//! How a server behaves, and what it lets others make it hold.

use std::time::Duration;

use omma_eval::OodScore;

use crate::queue::Batching;

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// How images are put together.
    pub batching: Batching,
    /// How long a request may take, its body's arrival included. What is late is not computed. A client has as long
    /// again to take its answer.
    pub timeout: Duration,
    /// Bytes of a request's body at most. 32 MiB are a photograph of 100 million pixels as JPEG, or a few dozen of
    /// those that phones take.
    pub max_body: usize,
    /// Bytes of all bodies that are held at a time. Sixteen of the largest; what comes beyond that is told to come
    /// back, so that many large requests take no more memory than a few.
    pub max_held: usize,
    /// Images of a request at most; also no more than wait in a queue.
    pub max_images: usize,
    /// Connections at a time. One that is idle costs some kilobytes and a file descriptor, of which a process usually
    /// has 1024.
    pub max_connections: usize,
    /// How long requests that are under way may take when the server is to stop.
    pub drain: Duration,
    /// How far out of the distribution an image is taken to be.
    pub ood_score: OodScore,
    /// Scores above this are said to be of out-of-distribution images, and counted.
    pub ood_threshold: Option<f64>,
    /// What a request must bring to be answered, if anything.
    pub token: Option<String>,
    /// The other site whose pages may ask, or `*` for any; none by default.
    pub cors: Option<String>,
    /// Whether models may be replaced by a request.
    pub allow_reload: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            batching: Batching::default(),
            timeout: Duration::from_secs(30),
            max_body: 32 << 20,
            max_held: 512 << 20,
            max_images: 64,
            max_connections: 512,
            drain: Duration::from_secs(30),
            ood_score: OodScore::default(),
            ood_threshold: None,
            token: None,
            cors: None,
            allow_reload: false,
        }
    }
}
