//! Many at once: batches, full queues, deadlines, and the end.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use omma_serve::{Batching, Options};
use serde_json::Value;

use crate::{
    client::{Reply, get, post, request},
    models::{Running, png, quick, until},
};

/// The first image waits so long for company that a test is over before.
fn patient(max_batch: usize, max_queue: usize) -> Options {
    let batching = Batching { max_batch, max_delay: Duration::from_secs(20), max_queue };
    Options { batching, ..Options::default() }
}

#[test]
fn an_image_has_the_same_answer_alone_and_among_others() {
    let alone = Running::with(quick());
    let one = |number| post(alone.address, "/predict?experts=true", "image/png", &png(number));
    let expected: Vec<Value> =
        (0..8).map(|number| one(number).json()["predictions"].clone()).collect();
    let together = Running::with(patient(8, 8));
    let address = together.address;
    let found: Vec<Value> = thread::scope(|scope| {
        let ask = |number| {
            scope.spawn(move || {
                post(address, "/predict?experts=true", "image/png", &png(number)).json()
            })
        };
        let all: Vec<_> = (0..8).map(ask).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found["timing"]["batch"], 8);
        assert_eq!(found["predictions"], expected);
    }
}

#[test]
fn a_full_queue_says_come_back_and_who_waits_is_answered() {
    let running = Running::with(patient(3, 2));
    let address = running.address;
    thread::scope(|scope| {
        let waiting = scope
            .spawn(move || post(address, "/predict?timeout_ms=1500", "image/png", &png(1)).status);
        let also = scope
            .spawn(move || post(address, "/predict?timeout_ms=1500", "image/png", &png(2)).status);
        until_waiting(address, 2);
        let refused = post(address, "/predict", "image/png", &png(3));
        assert_eq!(refused.status, 429);
        assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        assert_eq!((waiting.join().unwrap(), also.join().unwrap()), (504, 504));
    });
}

/// Waits until so many images wait for a batch.
fn until_waiting(address: SocketAddr, images: usize) {
    let line = format!("omma_waiting_images{{model=\"one\"}} {images}\n");
    until(|| get(address, "/metrics").text().contains(&line));
}

#[test]
fn what_is_late_is_not_computed() {
    let running = Running::with(patient(2, 8));
    let late = post(running.address, "/predict?timeout_ms=50", "image/png", &png(1));
    assert_eq!(late.status, 504);
    // Now there is company, but the first one is gone.
    let address = running.address;
    let found: Vec<Reply> = thread::scope(|scope| {
        let all: Vec<_> = (2..4)
            .map(|number| scope.spawn(move || post(address, "/predict", "image/png", &png(number))))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for reply in found {
        assert_eq!(reply.json()["timing"]["batch"], 2, "the late one is no company");
    }
    assert!(get(address, "/metrics").text().contains("omma_images_total{model=\"one\"} 2"));
}

#[test]
fn a_client_that_hangs_up_is_dropped_from_its_batch() {
    let running = Running::with(patient(3, 8));
    let mut gone = TcpStream::connect(running.address).unwrap();
    gone.write_all(&request("POST", "/predict", &[], &png(1))).unwrap();
    until_waiting(running.address, 1);
    drop(gone);
    until(|| get(running.address, "/metrics").text().contains("status=\"499\"} 1"));
    let address = running.address;
    thread::scope(|scope| {
        let all: Vec<_> = (0..3)
            .map(|number| scope.spawn(move || post(address, "/predict", "image/png", &png(number))))
            .collect();
        for reply in all.into_iter().map(|one| one.join().unwrap()) {
            assert_eq!(reply.json()["timing"]["batch"], 3);
        }
    });
    assert!(get(address, "/metrics").text().contains("omma_images_total{model=\"one\"} 3"));
}

#[test]
fn a_server_that_is_to_stop_answers_everything_that_was_asked() {
    let mut running = Running::with(patient(64, 64));
    let address = running.address;
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..12 {
            let answered = &answered;
            scope.spawn(move || {
                let reply = post(address, "/predict", "image/png", &png(number));
                assert_eq!(reply.status, 200, "{}", reply.text());
                answered.fetch_add(1, Ordering::Relaxed);
            });
        }
        until_waiting(address, 12);
        let began = Instant::now();
        running.join();
        assert!(began.elapsed() < Duration::from_secs(15), "nobody waits for company any more");
    });
    assert_eq!(answered.load(Ordering::Relaxed), 12);
    assert!(TcpStream::connect(address).is_err(), "nobody is let in any more");
}

#[test]
fn batches_form_under_load_and_nothing_is_lost() {
    let running = Running::with(Options::default());
    let address = running.address;
    thread::scope(|scope| {
        for client in 0..16 {
            scope.spawn(move || {
                for number in 0..12 {
                    let reply = post(address, "/predict", "image/png", &png(client * 12 + number));
                    assert_eq!(reply.status, 200, "{}", reply.text());
                }
            });
        }
    });
    let text = get(address, "/metrics").text();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("omma_images_total{"), 192.0);
    assert!(value("omma_batch_images_count{") < 192.0, "some images share a batch");
    assert_eq!(value("omma_waiting_images{"), 0.0);
}
