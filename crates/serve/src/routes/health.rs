//! `GET /health`, `GET /models`, `GET /metrics`: how the server is.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    error::{Result, ServeError},
    metrics,
    model::{Live, Task},
    predictor::Ask,
    server::{Answered, Server},
};

/// Really asks every model for something.
pub(super) async fn health(State(server): State<Arc<Server>>) -> Result<Response> {
    if !server.is_ready() {
        return Err(ServeError::Stopping);
    }
    let mut models = Vec::new();
    for model in &server.models {
        let deadline = Instant::now() + server.options.timeout;
        let prepare = |live: &Live| {
            let size = live.pixels.resolution;
            let values = vec![0.0; size.pixels() * 3];
            Ok(vec![match live.facts.task {
                Task::Classes => Ask::Classes { values, labels: None, experts: false },
                Task::Texts => Ask::Vector(values),
                Task::Pixels => {
                    Ask::Pixels(omma_data::Picture::filled(size.width, size.height, [127; 3]))
                }
            }])
        };
        let Answered { live, timing, .. } = server.ask(model, 1, deadline, prepare).await?;
        let (name, version) = (&live.facts.name, live.facts.version);
        models.push(json!({ "name": name, "version": version, "timing": timing }));
    }
    Ok(Json(json!({ "status": "ok", "models": models })).into_response())
}

/// What models there are.
pub(super) async fn models(State(server): State<Arc<Server>>) -> Response {
    let facts: Vec<_> = server.models.iter().map(|model| model.live().facts.clone()).collect();
    Json(facts).into_response()
}

pub(super) async fn metrics(State(server): State<Arc<Server>>) -> Response {
    server.count_lost_lines();
    server.count_waiting();
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], server.metrics.text()).into_response()
}
