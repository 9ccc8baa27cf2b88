//! Connections: how many, how long they may take, and how they end.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{body::Body, http::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tower_service::Service;

use crate::{routes, server::Server, write_timeout::WriteTimeout};

/// For the head of a request, and between requests: a client that sends a byte now and then does not keep its place.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// After an error of `accept`, which is mostly that there are no file descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Answers whoever connects, until `shutdown` is there. Then nobody is let in any more, requests that have arrived
/// are answered, within [`Options::drain`](crate::Options), and so is everything that models have taken.
pub async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let router = routes::router(server.clone());
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(server.options.max_connections));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let next = async {
            // Who comes when all places are taken waits in the listener's own queue.
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = &mut shutdown => break,
        };
        match (place, accepted) {
            (Ok(place), Ok((stream, peer))) => {
                // An answer is small, and waits for nothing.
                let _ = stream.set_nodelay(true);
                let stream = WriteTimeout::new(stream, server.options.timeout);
                connect(&connections, router.clone(), stream, peer, place);
            }
            (_, Err(error)) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
            (Err(_), _) => break,
        }
    }
    server.stop();
    drop(listener);
    let drain = server.options.drain;
    if tokio::time::timeout(drain, connections.shutdown()).await.is_err() {
        tracing::warn!(seconds = drain.as_secs(), "connections that did not end in time are cut");
    }
    tokio::task::spawn_blocking(move || server.finish()).await.map_err(io::Error::other)
}

fn connect(
    connections: &GracefulShutdown,
    router: axum::Router,
    stream: WriteTimeout<TcpStream>,
    peer: SocketAddr,
    place: OwnedSemaphorePermit,
) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().call(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        let _place = place;
        if let Err(error) = connection.await {
            tracing::debug!(%error, %peer, "a connection ended early");
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

    use super::*;
    use crate::Options;

    /// The clock stands still but for jumps to the next timeout.
    #[tokio::test(start_paused = true)]
    async fn connection_is_closed_when_its_head_is_not_finished_in_time() {
        let server = Server::start(Vec::new(), Options::default(), None).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(server, listener, std::future::pending()));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: te").await.unwrap();
        let began = Instant::now();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        let waited = began.elapsed();
        assert!((HEAD_TIMEOUT / 2..2 * HEAD_TIMEOUT).contains(&waited), "{waited:?}");
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
}
