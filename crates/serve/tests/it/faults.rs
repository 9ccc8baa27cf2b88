//! Clients that do not do what they should.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use omma_serve::{Options, ServeError};

use crate::{
    client::{Reply, get, post, request, send},
    models::{Running, png, quick, until},
};

#[test]
fn a_slow_body_is_given_up() {
    let running = Running::with(Options { timeout: Duration::from_millis(400), ..quick() });
    let mut slow = TcpStream::connect(running.address).unwrap();
    let whole = request("POST", "/predict", &[], &png(1));
    slow.write_all(&whole[..whole.len() - 10]).unwrap();
    let began = Instant::now();
    let reply = Reply::read(&mut slow).unwrap();
    assert_eq!(reply.status, 408);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn who_sends_too_much_reads_why() {
    let running = Running::with(Options { max_body: 1 << 20, ..quick() });
    let mut greedy = TcpStream::connect(running.address).unwrap();
    let whole = request("POST", "/predict", &[], &vec![0; 32 << 20]);
    greedy.write_all(&whole).unwrap();
    assert_eq!(Reply::read(&mut greedy).unwrap().status, 413);
}

#[test]
fn who_does_not_take_its_answers_loses_its_place() {
    let options = Options { timeout: Duration::from_millis(500), max_connections: 1, ..quick() };
    let running = Running::with(options);
    let mut greedy = TcpStream::connect(running.address).unwrap();
    greedy.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    // Pages of 14 kB, of which the buffers of the system hold some megabytes: more than are ever in them.
    let page = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    let _ = greedy.write_all(&page.repeat(4000));
    let began = Instant::now();
    assert_eq!(get(running.address, "/v2/health/live").status, 200, "there is one place");
    assert!(began.elapsed() < Duration::from_secs(10), "it was not freed in time");
}

#[test]
fn many_that_hang_up_in_the_middle_cost_nothing() {
    let running = Running::with(quick());
    let whole = request("POST", "/predict", &[], &png(1));
    thread::scope(|scope| {
        for client in 0..200_usize {
            let (whole, address) = (&whole, running.address);
            let one = move || {
                let Ok(mut stream) = TcpStream::connect(address) else { return };
                // In the head, in the body, and right after it.
                let end = whole.len() * (client % 7 + 1) / 7;
                let _ = stream.write_all(&whole[..end]);
            };
            if client % 10 == 9 {
                one();
            } else {
                scope.spawn(one);
            }
        }
    });
    let reply = post(running.address, "/predict", "image/png", &png(1));
    assert_eq!(reply.status, 200, "{}", reply.text());
    until(|| get(running.address, "/metrics").text().contains("omma_in_flight 1\n"));
}

#[test]
fn request_that_arrives_after_the_end_is_refused_as_stopping() {
    let mut running = Running::with(Options { drain: Duration::from_millis(50), ..quick() });
    let mut late = TcpStream::connect(running.address).unwrap();
    let whole = request("POST", "/predict", &[], &png(1));
    let (first, rest) = whole.split_at(whole.len() - 10);
    late.write_all(first).unwrap();
    // The server knows of the request before it is to stop.
    until(|| get(running.address, "/metrics").text().contains("omma_in_flight 2\n"));
    running.join();
    late.write_all(rest).unwrap();
    let reply = Reply::read(&mut late).unwrap();
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    assert_eq!(reply.json()["error"], ServeError::Stopping.to_string());
}

#[test]
fn what_is_no_http_is_answered_or_closed() {
    let running = Running::with(quick());
    for bytes in [
        &b"\x16\x03\x01\x02\0"[..],
        b"GET\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(running.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    }
    assert_eq!(get(running.address, "/v2/health/live").status, 200);
}

#[test]
fn a_token_is_asked_of_everything_but_health_and_the_page() {
    let running = Running::with(Options { token: Some("secret".to_owned()), ..quick() });
    for path in ["/", "/v2/health/live", "/v2/health/ready"] {
        assert_eq!(get(running.address, path).status, 200, "{path}");
    }
    for path in ["/models", "/metrics", "/v2/models/one", "/openapi.json", "/nowhere"] {
        assert_eq!(get(running.address, path).status, 401, "{path}");
    }
    let with = |value: &str| {
        let headers = [("Authorization", value)];
        send(running.address, "POST", "/predict", &headers, &png(1)).status
    };
    assert_eq!((with("Bearer secret"), with("Bearer secrets"), with("secret")), (200, 401, 401));
}

#[test]
fn pages_of_other_sites_may_ask_only_if_that_was_said() {
    let origin = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")];
    let closed = Running::with(quick());
    let reply = send(closed.address, "OPTIONS", "/predict", &origin, b"");
    assert_eq!(reply.header("access-control-allow-origin"), None);
    let open = Running::with(Options { cors: Some("https://a.example".to_owned()), ..quick() });
    let reply = send(open.address, "OPTIONS", "/predict", &origin, b"");
    assert_eq!(reply.status, 204);
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://a.example"));
    let reply = post(open.address, "/predict", "image/png", &png(1));
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://a.example"));
}
