//! A model that compares images with texts.

use omma_serve::{Photos, Subject};
use serde_json::{Value, json};

use crate::{
    client::post,
    models::{Running, load, png, quick, reader, subject},
};

fn running() -> Running {
    let one = || {
        let mut vectors = vec![0.0; 24];
        (vectors[0], vectors[13]) = (1.0, 1.0);
        let photos = Photos { names: vec!["a.jpg".to_owned(), "b.jpg".to_owned()], vectors };
        Ok(Subject { classes: Vec::new(), photos: Some(photos), ..subject(reader()) })
    };
    Running::of(vec![("one".to_owned(), load(one))], quick(), None)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn images_are_told_apart_by_names_that_are_given() {
    let running = running();
    let ask = |path: &str| post(running.address, path, "image/png", &png(1));
    let reply = ask("/predict?labels=red%20star,blue%20ring,cross&experts=true");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let told = reply.json()["predictions"][0].clone();
    let top = told["top"].as_array().unwrap();
    let sum: f64 = top.iter().map(|guess| guess["probability"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-6 && top.len() == 3, "{told}");
    let names: Vec<&str> = top.iter().map(|guess| guess["class"].as_str().unwrap()).collect();
    assert!(names.contains(&"blue ring"));
    assert!(!told["experts"].as_array().unwrap().is_empty());
    // The order of names does not matter to what they are held for.
    let other = ask("/predict?labels=cross,red%20star,blue%20ring").json();
    assert_eq!(other["predictions"][0]["label"], told["label"]);
    assert_eq!(ask("/predict").status, 422, "it has no classes of its own");
    assert_eq!(ask("/predict?labels=a,,b").status, 422);
}

#[test]
fn images_and_texts_become_vectors_of_length_one() {
    let running = running();
    let image = post(running.address, "/embed", "image/png", &png(1)).json();
    let body = json!({ "texts": ["a red star", "a blue ring"] }).to_string();
    let texts = post(running.address, "/embed", "application/json", body.as_bytes()).json();
    let rows: Vec<&Value> = image["embeddings"]
        .as_array()
        .unwrap()
        .iter()
        .chain(texts["embeddings"].as_array().unwrap())
        .collect();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let row = numbers(row);
        let length: f64 = row.iter().map(|value| value * value).sum();
        assert!(row.len() == 12 && (length - 1.0).abs() < 1e-4);
    }
}

#[test]
fn photos_are_found_by_a_text_and_by_an_image() {
    let running = running();
    let found = post(running.address, "/search?text=a%20red%20star&top=1", "", b"").json();
    assert_eq!(
        (found["photos"].as_u64(), found["results"].as_array().unwrap().len()),
        (Some(2), 1)
    );
    let found = post(running.address, "/search", "image/png", &png(1)).json();
    let scores: Vec<f64> = found["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hit| hit["score"].as_f64().unwrap())
        .collect();
    assert!(scores.len() == 2 && scores[0] >= scores[1]);
    let both = post(running.address, "/search?text=x", "image/png", &png(1));
    assert_eq!(both.status, 422);
}
