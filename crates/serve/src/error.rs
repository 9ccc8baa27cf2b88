//! Why there is no answer, and what that is called in HTTP.

use std::time::Duration;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use omma_data::DataError;
use serde_json::json;
use thiserror::Error;

use crate::queue::Refused;

/// With why there is no answer.
pub type Result<T, E = ServeError> = std::result::Result<T, E>;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "every message says what its fields are")]
pub enum ServeError {
    #[error("{0}")]
    Malformed(String),
    #[error("a token is needed: Authorization: Bearer …")]
    NoToken,
    #[error("this server does not do that unless it is asked to: {0}")]
    NotAllowed(&'static str),
    #[error("there is no {0} here; /openapi.json says what there is")]
    NoRoute(String),
    #[error("there is no model {name:?}; there are {known}")]
    NoModel { name: String, known: String },
    #[error("the request took too long to arrive")]
    SlowBody,
    #[error("{0}")]
    TooLarge(String),
    #[error("{0}")]
    MediaType(String),
    #[error("{0}")]
    Unprocessable(String),
    #[error("there are more requests than can be answered; try again in {} s", seconds(.retry_after))]
    Busy { retry_after: Duration },
    #[error("{0}")]
    Failed(String),
    #[error("the server is about to stop; ask again")]
    Stopping,
    #[error("the deadline passed before there was an answer")]
    Late,
}

/// Whole seconds, at least one.
fn seconds(duration: &Duration) -> u64 {
    duration.as_secs_f64().ceil().max(1.0) as u64
}

impl ServeError {
    /// What it is called in HTTP. The only place that says so.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::NoToken => StatusCode::UNAUTHORIZED,
            Self::NotAllowed(_) => StatusCode::FORBIDDEN,
            Self::NoRoute(_) | Self::NoModel { .. } => StatusCode::NOT_FOUND,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Unprocessable(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Of something that a queue did not take, where an image takes so long and so many wait.
    pub(crate) fn refused(refused: Refused, per_image: Duration, waiting: usize) -> Self {
        match refused {
            Refused::Full => {
                let retry_after =
                    per_image.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX));
                Self::Busy { retry_after: retry_after.min(Duration::from_secs(60)) }
            }
            Refused::Closed => Self::Stopping,
            Refused::Late => Self::Late,
        }
    }
}

/// Of an image that cannot be used.
impl From<DataError> for ServeError {
    fn from(error: DataError) -> Self {
        match error {
            DataError::TooManyPixels { .. } => Self::TooLarge(error.to_string()),
            _ => Self::Unprocessable(error.to_string()),
        }
    }
}

impl IntoResponse for ServeError {
    fn into_response(self) -> Response {
        let mut response =
            (self.status(), Json(json!({ "error": self.to_string() }))).into_response();
        let headers = response.headers_mut();
        match &self {
            Self::Busy { retry_after } => {
                headers.insert(header::RETRY_AFTER, seconds(retry_after).into());
            }
            Self::Stopping => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::NoToken => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let error = ServeError::refused(Refused::Full, Duration::from_millis(300), 10);
        let response = error.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        let idle = ServeError::refused(Refused::Full, Duration::ZERO, 0).into_response();
        assert_eq!(idle.headers()[header::RETRY_AFTER], "1");
        let status = |refused| ServeError::refused(refused, Duration::ZERO, 0).status().as_u16();
        assert_eq!((status(Refused::Closed), status(Refused::Late)), (503, 504));
    }
}
