//! The load of experts, kept in a file: a line of JSON per layer.

use std::{
    fs::File,
    io::Write,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use omma_serve::Server;
use serde_json::json;

/// Between two entries.
const EVERY: Duration = Duration::from_secs(60);

/// Appends what the experts of all models had to do lately, again and again.
pub(crate) async fn log_routing(server: Arc<Server>, mut to: File) {
    loop {
        tokio::time::sleep(EVERY).await;
        write(&server, &mut to);
    }
}

/// The same once. A file that cannot be written loses lines, and no answer.
fn write(server: &Server, to: &mut File) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let mut lines = String::new();
    for (model, loads) in server.expert_loads() {
        for layer in loads {
            let sum: f64 = layer.load.iter().sum();
            let load: Vec<f64> = layer.load.iter().map(|load| load / sum.max(1.0)).collect();
            let (part, block) = (layer.part, layer.block);
            let line =
                json!({ "time": now, "model": model, "part": part, "block": block, "load": load });
            lines += &format!("{line}\n");
        }
    }
    if let Err(error) = to.write_all(lines.as_bytes()) {
        tracing::warn!(%error, "the load of experts was not kept");
    }
}
