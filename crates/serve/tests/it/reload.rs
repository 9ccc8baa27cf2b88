//! A newer model in the place of another, while it is asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use omma_serve::Options;

use crate::{
    client::{get, post},
    models::{Running, load, png, quick, subject, system},
};

const LOAD: &str = "/v2/repository/models/one/load";

/// A model whose weights follow from a number, and which cannot be read if that is 0.
fn changing() -> (Running, Arc<AtomicU64>) {
    let seed = Arc::new(AtomicU64::new(3));
    let own = seed.clone();
    let one = move || match own.load(Ordering::Relaxed) {
        0 => Err("model.safetensors is damaged".to_owned()),
        seed => Ok(subject(system(&[], seed))),
    };
    let options = Options { allow_reload: true, ..quick() };
    (Running::of(vec![("one".to_owned(), load(one))], options, None), seed)
}

#[test]
fn a_newer_model_takes_the_place_and_a_damaged_one_does_not() {
    let (running, seed) = changing();
    let ask = || post(running.address, "/predict", "image/png", &png(1)).json();
    let before = ask();
    seed.store(0, Ordering::Relaxed);
    let refused = post(running.address, LOAD, "application/json", b"{}");
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("damaged"), "{}", refused.text());
    assert_eq!(ask()["predictions"], before["predictions"]);
    running.server.reload();
    assert_eq!(ask()["version"], 1);
    seed.store(4, Ordering::Relaxed);
    assert_eq!(post(running.address, LOAD, "application/json", b"{}").json()["version"], "2");
    let after = ask();
    assert_ne!(after["predictions"], before["predictions"]);
    assert_eq!(after["version"], 2);
    assert_eq!(get(running.address, "/v2/models/one").json()["versions"][0], "2");
}

#[test]
fn no_request_is_lost_while_models_are_replaced() {
    let (running, _) = changing();
    let (address, done) = (running.address, AtomicBool::new(false));
    thread::scope(|scope| {
        for number in 0..4 {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let reply = post(address, "/predict", "image/png", &png(number));
                    assert_eq!(reply.status, 200, "{}", reply.text());
                }
            });
        }
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(50));
            assert_eq!(post(address, LOAD, "application/json", b"{}").status, 200);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(get(address, "/metrics").text().contains("omma_reloads_total{model=\"one\"} 5"));
}

#[test]
fn requests_replace_nothing_unless_that_was_said() {
    let running = Running::with(quick());
    assert_eq!(post(running.address, LOAD, "application/json", b"{}").status, 403);
}
