//! Random and damaged bodies to every route: refused or answered, never a fault.

use base64::{Engine, prelude::BASE64_STANDARD};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::json;

use crate::{
    client::{get, post, send},
    models::{Running, png, quick},
};

const ROUTES: [&str; 7] = [
    "/predict",
    "/segment",
    "/embed",
    "/search",
    "/v2/models/one/infer",
    "/v2/repository/index",
    "/v2/repository/models/one/load",
];
const KINDS: [&str; 5] = [
    "image/png",
    "application/json",
    "multipart/form-data; boundary=b",
    "application/octet-stream",
    "",
];

/// Right bodies to begin with.
fn seeds() -> Vec<Vec<u8>> {
    let image = BASE64_STANDARD.encode(png(1));
    let form = b"--b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"x\"\r\n\r\nxx\r\n--b--\r\n";
    let input = json!({ "name": "image", "shape": [1], "datatype": "BYTES", "data": [image] });
    let tensor =
        json!({ "name": "image", "shape": [1, 2, 2, 3], "datatype": "UINT8", "data": vec![1; 12] });
    vec![
        png(1),
        form.to_vec(),
        json!({ "image": image, "top": 2 }).to_string().into_bytes(),
        json!({ "inputs": [input] }).to_string().into_bytes(),
        json!({ "inputs": [tensor] }).to_string().into_bytes(),
        Vec::new(),
    ]
}

/// `PROPTEST_CASES` says how many; without it, some hundred.
#[test]
fn whatever_comes_is_answered_or_refused() {
    let running = Running::with(quick());
    let seeds = seeds();
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 300;
    }
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..3_u8);
    let input = (
        0..ROUTES.len(),
        0..KINDS.len(),
        0..=seeds.len(),
        vec(change, 0..6),
        vec(any::<u8>(), 0..300),
    );
    let result = TestRunner::new(config).run(&input, |(route, kind, seed, changes, random)| {
        let mut body = seeds.get(seed).cloned().unwrap_or(random);
        for (place, byte, how) in changes {
            if body.is_empty() {
                break;
            }
            let at = place.index(body.len());
            match how {
                0 => body[at] = byte,
                1 => body.truncate(at),
                _ => body.insert(at, byte),
            }
        }
        let half = (body.len() / 2).to_string();
        let headers =
            [("Content-Type", KINDS[kind]), ("Inference-Header-Content-Length", half.as_str())];
        // Half of them say that their JSON ends in the middle.
        let headers = if body.len().is_multiple_of(2) { &headers[..1] } else { &headers[..] };
        let reply = send(running.address, "POST", ROUTES[route], headers, &body);
        prop_assert!(
            reply.status < 500,
            "{} says {}: {}",
            ROUTES[route],
            reply.status,
            reply.text()
        );
        Ok(())
    });
    result.unwrap();
    assert_eq!(post(running.address, "/predict", "image/png", &png(1)).status, 200);
    assert!(!get(running.address, "/metrics").text().contains("status=\"500\""));
}
