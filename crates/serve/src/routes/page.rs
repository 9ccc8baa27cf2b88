//! `GET /` and `GET /openapi.json`: what people and programs read first.

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

/// One file: style, script and markup. It asks nobody but this server.
const PAGE: &str = include_str!("../page.html");
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
    img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const OPENAPI: &str = include_str!("../openapi.json");

pub(super) async fn page() -> Response {
    let mut response = ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE).into_response();
    let policy = HeaderValue::from_static(POLICY);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
