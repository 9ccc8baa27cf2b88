//! The body of a request, held within limits.

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Request, Uri, header, request::Parts},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Duration, Instant, timeout, timeout_at},
};

use crate::{
    error::{Result, ServeError},
    server::Server,
};

/// How long the rest of a body is taken that is not read.
const LINGER: Duration = Duration::from_secs(2);
/// What room is counted in.
const UNIT: usize = 1 << 10;

/// A request that has arrived.
pub(crate) struct Arrived {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
    /// When there should be an answer.
    pub(crate) deadline: Instant,
    /// Its room among all bodies, until it is answered.
    _held: OwnedSemaphorePermit,
}

/// Room for so many bytes of bodies.
pub(crate) fn room(bytes: usize) -> usize {
    bytes / UNIT
}

/// Takes a body and keeps nothing of it, for a moment: who is cut off while it sends does not read why.
async fn forget(mut body: Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(LINGER, rest).await;
}

impl Server {
    /// Waits for the whole body. One that is too large is refused before it is read where its length is known, and
    /// one that comes too slowly is given up.
    pub(crate) async fn arrived(&self, request: Request<Body>) -> Result<Arrived> {
        let deadline = Instant::now() + self.options.timeout;
        let (Parts { uri, headers, .. }, body) = request.into_parts();
        if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            let why = "bodies are read as they are; Content-Encoding is not";
            return Err(ServeError::MediaType(why.to_owned()));
        }
        let most = self.options.max_body;
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let length: Option<usize> = length.and_then(|length| length.parse().ok());
        let too_large = || ServeError::TooLarge(format!("the body has more than {most} bytes"));
        if length.is_some_and(|length| length > most) {
            forget(body).await;
            return Err(too_large());
        }
        let needed = length.unwrap_or(most).div_ceil(UNIT).clamp(1, room(self.options.max_held));
        let held = self.held.clone().try_acquire_many_owned(needed as u32);
        let held = held.map_err(|_| ServeError::Busy { retry_after: Default::default() })?;
        let whole = timeout_at(deadline, Limited::new(body, most).collect()).await;
        let bytes = match whole.map_err(|_| ServeError::SlowBody)? {
            Ok(whole) => whole.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
            Err(error) => {
                return Err(ServeError::Malformed(format!("the body did not arrive: {error}")));
            }
        };
        Ok(Arrived { uri, headers, bytes, deadline, _held: held })
    }
}

impl Arrived {
    /// The kind of the body, in lower case and without its parameters, and with them.
    pub(crate) fn content_type(&self) -> (String, &str) {
        let whole = self.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let whole = whole.unwrap_or_default();
        let kind = whole.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        (kind, whole)
    }
}
