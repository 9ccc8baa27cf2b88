//! The load of experts, kept in a file: a line of JSON per layer.

use std::{
    fs::File,
    io::Write,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use omma_serve::Server;
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot::Receiver, time::timeout};

/// A line: what the experts of a layer had to do lately.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RoutingEntry {
    /// Seconds since 1970.
    pub(super) time: u64,
    /// The model as it is served.
    pub(super) model: String,
    /// The model that the layer is in; of an ensemble, one of several.
    pub(super) part: String,
    pub(super) block: usize,
    /// Images that the layer has seen since it is served.
    #[serde(default)]
    pub(super) images: u64,
    /// `[E]`: shares, newer images counting more.
    pub(super) load: Vec<f64>,
    /// `[E]`: shares on the test images of the training run, where they are known.
    #[serde(default)]
    pub(super) training: Option<Vec<f64>>,
}

/// Appends what the experts of all models had to do lately, again and again, and once more in the end.
///
/// - `ended`: when the other half is dropped, it is the end
pub(crate) async fn log_routing(
    server: Arc<Server>,
    mut to: File,
    every: Duration,
    mut ended: Receiver<()>,
) {
    loop {
        let is_over = timeout(every, &mut ended).await.is_ok();
        write(&server, &mut to);
        if is_over {
            return;
        }
    }
}

/// The same once. A file that cannot be written loses lines, which are counted, and no answer.
fn write(server: &Server, to: &mut File) {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let (mut lines, mut count) = (Vec::new(), 0);
    for (model, layers) in server.expert_loads() {
        for layer in layers {
            let entry = RoutingEntry {
                time,
                model: model.clone(),
                part: layer.part,
                block: layer.block,
                images: layer.images,
                load: layer.load,
                training: layer.training,
            };
            // Writing to memory does not fail.
            let _ = serde_json::to_writer(&mut lines, &entry);
            lines.push(b'\n');
            count += 1;
        }
    }
    if let Err(error) = to.write_all(&lines) {
        tracing::warn!(%error, "the load of experts was not kept");
        server.lost_log_lines(count);
    }
}
