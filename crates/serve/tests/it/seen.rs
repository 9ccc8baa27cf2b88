//! What is seen from outside: logs, metrics, the page, the document.

use std::{
    cell::Cell,
    collections::BTreeSet,
    io::Write,
    sync::{Arc, Mutex},
};

use omma_serve::{AccessLog, ExpertLoad, Subject};
use serde_json::Value;

use crate::{
    client::{get, post, send},
    models::{Running, load, png, quick, subject, system, until},
};

/// A log that can be read.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_request_has_a_line_and_an_id() {
    let kept = Kept::default();
    let log = AccessLog::new(kept.clone()).unwrap();
    let one = || Ok(subject(system(&[], 3)));
    let mut running = Running::of(vec![("one".to_owned(), load(one))], quick(), Some(log));
    let own = send(running.address, "POST", "/predict", &[("X-Request-Id", "mine-7")], &png(1));
    assert_eq!(own.header("x-request-id"), Some("mine-7"));
    let new = get(running.address, "/nowhere");
    let id = new.header("x-request-id").unwrap().to_owned();
    running.join();
    let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    let shown = |line: &Value| (line["id"].clone(), line["status"].clone(), line["path"].clone());
    assert_eq!(shown(&lines[0]), ("mine-7".into(), 200.into(), "/predict".into()));
    assert_eq!(shown(&lines[1]), (id.into(), 404.into(), "/nowhere".into()));
    assert!(lines[0]["timing"]["compute_ms"].as_f64().unwrap() > 0.0);
    assert!(lines[0]["ms"].as_f64() >= lines[0]["timing"]["compute_ms"].as_f64());
    assert!(lines[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
}

/// A disk without room.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_that_find_no_room_are_counted_when_somebody_looks() {
    let one = || Ok(subject(system(&[], 3)));
    let log = AccessLog::new(Full).unwrap();
    let running = Running::of(vec![("one".to_owned(), load(one))], quick(), Some(log));
    assert_eq!(post(running.address, "/predict", "image/png", &png(1)).status, 200);
    // A line is written behind its answer. Asking for the metrics makes lines as well.
    let requests = Cell::new(1);
    until(|| {
        let text = get(running.address, "/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix("omma_log_lines_lost_total "));
        let lost: usize = line.unwrap().parse().unwrap();
        assert!(lost <= requests.replace(requests.get() + 1), "{text}");
        lost > 0
    });
}

#[test]
fn metrics_tell_requests_batches_experts_and_their_drift() {
    let training =
        vec![ExpertLoad { part: "one".to_owned(), block: 1, load: vec![1.0, 0.0, 0.0, 0.0] }];
    let one = move || Ok(Subject { training: training.clone(), ..subject(system(&[], 3)) });
    let running = Running::of(vec![("one".to_owned(), load(one))], quick(), None);
    for number in 0..3 {
        post(running.address, "/predict", "image/png", &png(number));
    }
    let reply = get(running.address, "/metrics");
    assert!(reply.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    // A request is counted when its answer has been written.
    for begin in [
        "omma_requests_total{route=\"/predict\",status=\"200\"} 3",
        "omma_request_seconds_count{route=\"/predict\"} 3",
        "omma_queue_seconds_count{model=\"one\"} 3",
        "omma_prediction_entropy_nats_count{model=\"one\"} 3",
        "omma_expert_load_total{model=\"one\",part=\"one\",block=\"1\",expert=\"",
        "omma_in_flight 1",
    ] {
        until(|| get(running.address, "/metrics").text().contains(begin));
    }
    let text = get(running.address, "/metrics").text();
    let drift = text.lines().find(|line| line.starts_with("omma_expert_load_drift{")).unwrap();
    let drift: f64 = drift.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((0.0..=1.0).contains(&drift) && drift > 0.0, "{drift}");
}

#[test]
fn images_that_warm_a_model_are_not_counted() {
    let running = Running::with(quick());
    let text = get(running.address, "/metrics").text();
    assert!(!text.contains("omma_expert_load_total{"), "{text}");
    assert_eq!(post(running.address, "/predict", "image/png", &png(1)).status, 200);
    assert!(get(running.address, "/metrics").text().contains("omma_expert_load_total{"));
}

#[test]
fn health_really_runs_the_model() {
    let running = Running::with(quick());
    let health = get(running.address, "/health").json();
    assert_eq!((&health["status"], &health["models"][0]["name"]), (&"ok".into(), &"one".into()));
    assert!(health["models"][0]["timing"]["compute_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_page_is_one_file_that_asks_nobody_else() {
    let running = Running::with(quick());
    let page = get(running.address, "/");
    assert!(page.header("content-security-policy").unwrap().contains("connect-src 'self'"));
    let text = page.text();
    for word in ["http://", "https://", "@import", "src=\"", "url("] {
        assert!(!text.contains(word), "{word}");
    }
}

#[test]
fn the_document_has_every_route_and_no_other() {
    let running = Running::with(quick());
    let document = get(running.address, "/openapi.json").json();
    let written: BTreeSet<String> =
        document["paths"].as_object().unwrap().keys().cloned().collect();
    let sources =
        [include_str!("../../src/routes/mod.rs"), include_str!("../../src/protocol/mod.rs")];
    let mut routes = BTreeSet::new();
    for line in sources.iter().flat_map(|source| source.lines()) {
        if let Some(rest) = line.trim().strip_prefix(".route(\"") {
            routes.insert(rest.split('"').next().unwrap().to_owned());
        }
    }
    assert!(routes.len() > 15);
    assert_eq!(written, routes);
}

#[test]
fn the_document_describes_what_stands_in_braces() {
    let running = Running::with(quick());
    let document = get(running.address, "/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let described = methods["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        let described = described.iter().map(|parameter| {
            let place = parameter["$ref"].as_str().unwrap().trim_start_matches('#');
            let parameter = document.pointer(place).unwrap();
            assert_eq!((&parameter["in"], &parameter["required"]), (&"path".into(), &true.into()));
            parameter["name"].as_str().unwrap().to_owned()
        });
        let in_braces =
            path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap().to_owned());
        assert!(described.eq(in_braces), "{path}");
    }
}
