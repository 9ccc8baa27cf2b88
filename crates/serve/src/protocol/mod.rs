//! The Open Inference Protocol, version 2, as KServe and Triton speak it.
//!
//! | file | room for |
//! |---|---|
//! | `metadata.rs` | health, what there is, replacing models |
//! | `tensor.rs` | tensors in JSON and in the binary extension |
//! | `data.rs` | the values of a tensor in JSON |
//! | `infer.rs` | images in, predictions out |
//!
//! A model has one input, `image`: `FP32 [n, H, W, 3]` from 0 to 1, `UINT8 [n, h, w, 3]` of any size, or `BYTES [n]`
//! with files (JPEG, PNG, WebP, BMP; in JSON as base64).

mod data;
mod infer;
mod metadata;
mod tensor;

use std::sync::Arc;

use axum::{
    Router,
    routing::{get, post},
};

use crate::server::Server;

/// What the only input is called.
const INPUT: &str = "image";

pub(crate) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/v2", get(metadata::server))
        .route("/v2/health/live", get(metadata::live))
        .route("/v2/health/ready", get(metadata::ready))
        .route("/v2/models/{model}", get(metadata::model))
        .route("/v2/models/{model}/ready", get(metadata::model_ready))
        .route("/v2/models/{model}/infer", post(infer::infer))
        .route("/v2/models/{model}/versions/{version}", get(metadata::model))
        .route("/v2/models/{model}/versions/{version}/ready", get(metadata::model_ready))
        .route("/v2/models/{model}/versions/{version}/infer", post(infer::infer))
        .route("/v2/repository/index", post(metadata::index))
        .route("/v2/repository/models/{model}/load", post(metadata::load))
}
