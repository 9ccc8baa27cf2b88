//! One line of JSON per request, and the ids that requests are found by.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderName, HeaderValue, header},
    middleware::Next,
    response::Response,
};
use serde_json::json;

use crate::{
    listen::Peer,
    server::{Server, Timing},
};

/// Where a request's id is, in both directions.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Lines that wait to be written. A disk that is slow, or full, costs lines and never an answer.
const WAITING: usize = 4096;
/// How long the end waits for the last lines.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it looks whether there is room for them.
const PAUSE: Duration = Duration::from_millis(10);
/// What a request is called whose client went away: as nginx has it.
const GONE: u16 = 499;

enum Line {
    Text(String),
    Flush(SyncSender<()>),
}

/// Where lines go: a thread of its own writes them.
pub struct AccessLog {
    lines: SyncSender<Line>,
    lost: Arc<AtomicU64>,
}

impl AccessLog {
    /// Begins to write.
    pub fn new(to: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (lines, receiver) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let own = lost.clone();
        std::thread::Builder::new()
            .name("access log".to_owned())
            .spawn(move || write_lines(&receiver, to, &own))?;
        Ok(Self { lines, lost })
    }

    fn line(&self, text: String) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.lines.try_send(Line::Text(text))
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything so far is written, or for [`PATIENCE`]: who reads the log may have stopped.
    pub(crate) fn flush(&self) {
        let until = Instant::now() + PATIENCE;
        let (done, is_done) = sync_channel(1);
        let mut line = Line::Flush(done);
        while let Err(TrySendError::Full(back)) = self.lines.try_send(line) {
            if Instant::now() >= until {
                return;
            }
            line = back;
            std::thread::sleep(PAUSE);
        }
        let _ = is_done.recv_timeout(until.saturating_duration_since(Instant::now()));
    }

    /// Lines that could not be written since the last time.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}

fn write_lines(lines: &Receiver<Line>, mut to: impl Write, lost: &AtomicU64) {
    for line in lines {
        match line {
            Line::Text(text) => {
                if to.write_all(text.as_bytes()).and_then(|()| to.flush()).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            Line::Flush(done) => {
                // Whoever asked may be gone.
                let _ = done.send(());
            }
        }
    }
}

/// Gives every request an id, counts it and writes its line, also if its client goes away.
pub(crate) async fn watch(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let id = request_id(&request);
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let length = request.headers().get(header::CONTENT_LENGTH);
    let mut watched = Watched {
        id: id.clone(),
        method: request.method().to_string(),
        path: request.uri().path().chars().take(200).collect(),
        route: route.unwrap_or_else(|| "other".to_owned()),
        peer: request.extensions().get::<Peer>().map(|peer| peer.0.to_string()),
        bytes: length.and_then(|length| length.to_str().ok()?.parse().ok()),
        status: GONE,
        timing: None,
        began: Instant::now(),
        server,
    };
    watched.server.metrics.in_flight.inc();
    let mut response = next.run(request).await;
    watched.status = response.status().as_u16();
    watched.timing = response.extensions().get::<Timing>().copied();
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// That of the client, if it is short and plain; else one that no other request has.
fn request_id(request: &Request) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let plain = |id: &&str| {
        let mut symbols = id.bytes();
        (1..=64).contains(&id.len())
            && symbols.all(|symbol| symbol.is_ascii_alphanumeric() || b"-_.:".contains(&symbol))
    };
    given.filter(plain).map_or_else(
        || {
            let started = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64);
            format!("{started:x}-{:x}", NUMBER.fetch_add(1, Ordering::Relaxed))
        },
        str::to_owned,
    )
}

/// A request from its head to its answer.
struct Watched {
    id: String,
    method: String,
    path: String,
    route: String,
    peer: Option<String>,
    bytes: Option<u64>,
    status: u16,
    timing: Option<Timing>,
    began: Instant,
    server: Arc<Server>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let metrics = &self.server.metrics;
        metrics.in_flight.dec();
        metrics.answered(&self.route, self.status, took);
        let Some(access) = &self.server.access else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let line = json!({
            "time": now.map_or(0.0, |now| (now.as_secs_f64() * 1e3).round() / 1e3),
            "id": self.id,
            "peer": self.peer,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "bytes": self.bytes,
            "ms": (took.as_secs_f64() * 1e6).round() / 1e3,
            "timing": self.timing,
        });
        access.line(format!("{line}\n"));
        self.server.count_lost_lines();
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A disk without room.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_costs_lines_and_nothing_else() {
        let log = AccessLog::new(Full).unwrap();
        (0..3).for_each(|_| log.line("x\n".to_owned()));
        log.flush();
        assert_eq!((log.lost(), log.lost()), (3, 0));
    }

    #[test]
    fn ids_are_the_clients_own_or_new() {
        let with = |id: &str| Request::builder().header(REQUEST_ID, id).body(().into()).unwrap();
        let request = |id: &str| -> Request { with(id) };
        assert_eq!(request_id(&request("a-1")), "a-1");
        let new = request_id(&request("a b"));
        assert!(new != "a b" && new != request_id(&request(&"x".repeat(65))));
    }
}
