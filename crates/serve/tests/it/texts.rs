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
fn photos_are_scored_by_the_cosine_of_their_vectors() {
    let running = running();
    // The photos' vectors are the first and the second axis.
    let image = post(running.address, "/embed", "image/png", &png(1)).json();
    let image = numbers(&image["embeddings"][0]);
    let body = json!({ "texts": ["a red star"] }).to_string();
    let text = post(running.address, "/embed", "application/json", body.as_bytes()).json();
    let text = numbers(&text["embeddings"][0]);
    assert_ne!(image, text);
    let expected = |vector: &[f64]| {
        let mut hits = [("a.jpg", vector[0]), ("b.jpg", vector[1])];
        hits.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        hits
    };
    let by_text = post(running.address, "/search?text=a%20red%20star", "", b"").json();
    let by_image = post(running.address, "/search", "image/png", &png(1)).json();
    for (found, vector) in [(&by_text, &text), (&by_image, &image)] {
        assert_eq!(found["photos"], 2);
        let results = found["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        for (hit, (name, score)) in results.iter().zip(expected(vector)) {
            assert_eq!(hit["image"], name, "{found}");
            assert!((hit["score"].as_f64().unwrap() - score).abs() < 1e-6, "{found}");
        }
    }
    let best = post(running.address, "/search?text=a%20red%20star&top=1", "", b"").json();
    assert_eq!(best["results"], json!([by_text["results"][0]]));
    let both = post(running.address, "/search?text=x", "image/png", &png(1));
    assert_eq!(both.status, 422);
}
