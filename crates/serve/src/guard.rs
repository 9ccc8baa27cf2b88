//! Who may ask: a token, and pages of other sites.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{error::ServeError, server::Server};

/// What is said without a token, all of which computes nothing: whether the server lives, and the page, which asks
/// for the token itself.
const OPEN: [&str; 3] = ["/", "/v2/health/live", "/v2/health/ready"];

/// Refuses requests without the token, if there is one.
pub(crate) async fn token(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(token) = &server.options.token else { return next.run(request).await };
    let open = OPEN.contains(&request.uri().path()) || request.method() == Method::OPTIONS;
    match open || is_given(request.headers(), token) {
        true => next.run(request).await,
        false => ServeError::NoToken.into_response(),
    }
}

fn is_given(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let is_bearer = given.len() >= 7 && given[..7].eq_ignore_ascii_case(b"Bearer ");
    is_bearer && same(&given[7..], token.as_bytes())
}

/// Takes as long for a token that is wrong at its first byte as for one that is wrong at its last.
fn same(given: &[u8], token: &[u8]) -> bool {
    let mut different = given.len() ^ token.len();
    for (place, byte) in given.iter().enumerate() {
        different |= usize::from(byte ^ token[place % token.len().max(1)]);
    }
    std::hint::black_box(different) == 0
}

/// Lets pages of another site ask, if that was asked for.
pub(crate) async fn cors(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let origin =
        server.options.cors.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok());
    let Some(origin) = origin else { return next.run(request).await };
    let asks_first = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match asks_first {
        true => (StatusCode::NO_CONTENT, Body::empty()).into_response(),
        false => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    if asks_first {
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                "authorization, content-type, inference-header-content-length, x-request-id",
            ),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            is_given(&headers, "secret")
        };
        assert!(with("Bearer secret") && with("bearer secret"));
        let wrong = [
            "secret",
            "Bearer ",
            "Bearer secre",
            "Bearer secrets",
            "Bearer secretsecret",
            "Basic secret",
        ];
        for value in wrong {
            assert!(!with(value), "{value}");
        }
        assert!(!is_given(&HeaderMap::new(), "secret"));
    }
}
