//! What there is, whether it is ready, and newer ones in its place.

use std::sync::Arc;

use axum::{
    Json,
    extract::{RawPathParams, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::INPUT;
use crate::{
    error::{Result, ServeError},
    model::{Facts, Model, Task},
    server::Server,
};

/// The model that a path names, in a version that it has.
pub(super) fn named<'a>(server: &'a Server, path: &RawPathParams) -> Result<&'a Arc<Model>> {
    let part = |wanted: &str| path.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    let model = server.model(part("model"))?;
    match part("version") {
        Some(version) if version != model.live().facts.version.to_string() => {
            Err(ServeError::NoModel {
                name: format!("{} in version {version}", model.name),
                known: format!("version {} of it", model.live().facts.version),
            })
        }
        _ => Ok(model),
    }
}

pub(super) async fn server() -> Response {
    let extensions = ["binary_tensor_data", "model_repository"];
    let version = env!("CARGO_PKG_VERSION");
    Json(json!({ "name": "omma", "version": version, "extensions": extensions })).into_response()
}

pub(super) async fn live() -> Response {
    Json(json!({ "live": true })).into_response()
}

pub(super) async fn ready(State(server): State<Arc<Server>>) -> Result<Response> {
    match server.is_ready() {
        true => Ok(Json(json!({ "ready": true })).into_response()),
        false => Err(ServeError::Stopping),
    }
}

pub(super) async fn model(
    State(server): State<Arc<Server>>,
    path: RawPathParams,
) -> Result<Response> {
    let model = named(&server, &path)?;
    Ok(Json(described(&model.live().facts)).into_response())
}

pub(super) async fn model_ready(
    State(server): State<Arc<Server>>,
    path: RawPathParams,
) -> Result<Response> {
    let name = &named(&server, &path)?.name;
    match server.is_ready() {
        true => Ok(Json(json!({ "name": name, "ready": true })).into_response()),
        false => Err(ServeError::Stopping),
    }
}

/// Names, kinds and shapes; a size of -1 may be any.
fn described(facts: &Facts) -> Value {
    let (height, width) = facts.resolution;
    let tensor = |name: &str, datatype: &str, shape: &[i64]| json!({ "name": name, "datatype": datatype, "shape": shape });
    let size = |number: usize| i64::try_from(number).unwrap_or(-1);
    let outputs = match facts.task {
        Task::Classes => {
            let (classes, members) = (size(facts.classes.len()), size(facts.members));
            vec![
                tensor("probabilities", "FP32", &[-1, classes]),
                tensor("label", "BYTES", &[-1]),
                tensor("entropy", "FP32", &[-1]),
                tensor("ood_score", "FP32", &[-1]),
                tensor("logits", "FP32", &[-1, members, classes]),
            ]
        }
        Task::Texts => {
            vec![tensor("embedding", "FP32", &[-1, size(facts.embedding.unwrap_or_default())])]
        }
        Task::Pixels => vec![tensor("mask", "UINT8", &[-1, -1, -1])],
    };
    json!({
        "name": facts.name,
        "versions": [facts.version.to_string()],
        "platform": "omma",
        "inputs": [tensor(INPUT, "FP32", &[-1, size(height), size(width), 3])],
        "outputs": outputs,
    })
}

pub(super) async fn index(State(server): State<Arc<Server>>) -> Response {
    let state = if server.is_ready() { "READY" } else { "UNAVAILABLE" };
    let model = |model: &Arc<Model>| {
        let version = model.live().facts.version.to_string();
        json!({ "name": model.name, "version": version, "state": state })
    };
    Json(server.models.iter().map(model).collect::<Vec<Value>>()).into_response()
}

/// Reads a model again. It takes the place of the one before when it is warm; where it cannot be read, that one stays.
pub(super) async fn load(
    State(server): State<Arc<Server>>,
    path: RawPathParams,
) -> Result<Response> {
    if !server.options.allow_reload {
        return Err(ServeError::NotAllowed("--allow-reload lets requests replace models"));
    }
    let (model, metrics) = (named(&server, &path)?.clone(), server.metrics.clone());
    let replaced = tokio::task::spawn_blocking(move || model.replace(&metrics)).await;
    let replaced =
        replaced.map_err(|_| ServeError::Failed("the model could not be read".to_owned()))?;
    match replaced {
        Ok(version) => {
            Ok((StatusCode::OK, Json(json!({ "version": version.to_string() }))).into_response())
        }
        Err(error) => Err(ServeError::Unprocessable(format!("{error}; the one before stays"))),
    }
}
