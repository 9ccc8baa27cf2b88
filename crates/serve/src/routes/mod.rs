//! The outer ring: addresses, and what is behind each.
//!
//! | file | addresses |
//! |---|---|
//! | `predict.rs` | `POST /predict` |
//! | `segment.rs` | `POST /segment` |
//! | `embed.rs` | `POST /embed`, `POST /search` |
//! | `health.rs` | `GET /health`, `GET /models`, `GET /metrics` |
//! | `page.rs` | `GET /`, `GET /openapi.json` |
//! | `../protocol/` | `/v2/…`, the Open Inference Protocol |

mod embed;
mod health;
mod page;
mod pictures;
mod predict;
mod segment;

use std::sync::Arc;

use axum::{
    Router,
    http::{Method, Uri},
    middleware::from_fn_with_state,
    routing::{get, post},
};

pub(crate) use self::{
    pictures::{check_room, decoded, to_segment, values},
    predict::told,
};
use crate::{access, error::ServeError, guard, protocol, server::Server};

/// Everything that can be asked.
pub(crate) fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/openapi.json", get(page::openapi))
        .route("/health", get(health::health))
        .route("/models", get(health::models))
        .route("/metrics", get(health::metrics))
        .route("/predict", post(predict::predict))
        .route("/segment", post(segment::segment))
        .route("/embed", post(embed::embed))
        .route("/search", post(embed::search))
        .merge(protocol::router())
        .fallback(nothing)
        .method_not_allowed_fallback(nothing)
        .layer(from_fn_with_state(server.clone(), guard::token))
        .layer(from_fn_with_state(server.clone(), guard::cors))
        .layer(from_fn_with_state(server.clone(), access::watch))
        .with_state(server)
}

async fn nothing(method: Method, uri: Uri) -> ServeError {
    let path: String = uri.path().chars().take(100).collect();
    ServeError::NoRoute(format!("{method} {path}"))
}
