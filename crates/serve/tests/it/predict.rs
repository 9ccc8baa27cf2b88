//! What is asked and what is answered.

use base64::{Engine, prelude::BASE64_STANDARD};
use omma_data::Picture;
use omma_eval::predict;
use omma_serve::{Options, Subject};
use serde_json::{Value, json};

use crate::{
    client::{get, post, send},
    models::{Running, load, png, quick, segmenter, subject, system},
};

/// A form with images.
fn form(images: &[Vec<u8>], fields: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        body.extend(
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
                .bytes(),
        );
    }
    for image in images {
        body.extend(
            b"--b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"x\"\r\n\r\n",
        );
        body.extend(image);
        body.extend(b"\r\n");
    }
    body.extend(b"--b--\r\n");
    body
}

#[test]
fn an_image_a_form_and_json_have_the_answer_of_the_engine() {
    let running = Running::with(quick());
    let raw = post(running.address, "/predict?top=3&experts=true", "image/png", &png(1));
    assert_eq!(raw.status, 200, "{}", raw.text());
    let raw = raw.json();
    let body = form(&[png(1), png(2)], &[("top", "3"), ("experts", "1")]);
    let both = post(running.address, "/predict", "multipart/form-data; boundary=b", &body).json();
    let encoded = BASE64_STANDARD.encode(png(1));
    let body = json!({ "images": [encoded], "top": 3, "experts": true }).to_string();
    let one = post(running.address, "/predict", "application/json", body.as_bytes()).json();
    assert_eq!(both["predictions"].as_array().unwrap().len(), 2);
    assert_eq!(raw["predictions"][0], both["predictions"][0]);
    assert_eq!(raw["predictions"][0], one["predictions"][0]);
    assert_ne!(both["predictions"][0], both["predictions"][1]);
    // The same as `omma predict` says.
    let system = system(&["moe.members=2"], 3);
    let picture = Picture::decode(&png(1), "a".as_ref()).unwrap();
    let Subject { classes, .. } = subject(system.clone());
    let expected = predict(&system, &[picture], 0, &classes, 3).unwrap().remove(0);
    let told = &raw["predictions"][0];
    let expected = serde_json::to_value(&expected).unwrap();
    for key in ["top", "entropy", "mutual_information", "members"] {
        assert_eq!(told[key], expected[key], "{key}");
    }
    assert_eq!(told["label"], told["top"][0]["class"]);
    let largest = told["top"][0]["probability"].as_f64().unwrap();
    assert!((told["ood_score"].as_f64().unwrap() - (1.0 - largest)).abs() < 1e-12);
    let maps = told["experts"].as_array().unwrap();
    assert_eq!(maps.len(), 2, "a map per member");
    assert_eq!(maps[0]["patches"].as_array().unwrap().len(), 16);
    assert!(told.get("calibrated").is_none() && told.get("is_ood").is_none());
    assert!(raw["timing"]["compute_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_temperature_and_a_threshold_are_used() {
    let one = || Ok(Subject { temperature: Some(2.0), ..subject(system(&[], 3)) });
    let options = Options { ood_threshold: Some(0.0), ..quick() };
    let running = Running::of(vec![("one".to_owned(), load(one))], options, None);
    let told =
        post(running.address, "/predict", "image/png", &png(1)).json()["predictions"][0].clone();
    assert_eq!(told["calibrated"]["temperature"], 2.0);
    let (plain, scaled) =
        (&told["top"][0]["probability"], &told["calibrated"]["top"][0]["probability"]);
    assert!(scaled.as_f64() < plain.as_f64(), "a temperature above 1 makes less sure: {told}");
    assert_eq!(told["probability"], *scaled);
    assert_eq!(told["is_ood"], true);
}

#[test]
fn models_are_asked_by_their_names() {
    let of = |seed: u64| load(move || Ok(subject(system(&[], seed))));
    let models = vec![("a".to_owned(), of(3)), ("b".to_owned(), of(4))];
    let running = Running::of(models, quick(), None);
    let ask = |path: &str| post(running.address, path, "image/png", &png(1));
    let [first, a, b] =
        ["/predict", "/predict?model=a", "/predict?model=b"].map(|path| ask(path).json());
    assert_eq!(first["predictions"], a["predictions"]);
    assert_ne!(a["predictions"], b["predictions"]);
    let none = ask("/predict?model=c");
    assert_eq!((none.status, none.text().contains("a, b")), (404, true), "{}", none.text());
    let models = get(running.address, "/models").json();
    assert_eq!(models.as_array().unwrap().len(), 2);
    assert_eq!(models[0]["classes"][1], "bee");
}

#[test]
fn what_cannot_be_served_is_refused_by_its_own_status() {
    let options = Options { max_body: 1 << 20, max_images: 2, ..quick() };
    let running = Running::with(options);
    let ask = |path: &str, kind: &str, body: &[u8]| post(running.address, path, kind, body).status;
    assert_eq!(ask("/predict", "image/png", b"no image"), 415);
    assert_eq!(ask("/predict", "text/plain", &png(1)), 415);
    assert_eq!(ask("/predict", "image/png", &png(1)[..100]), 422);
    assert_eq!(ask("/predict", "image/png", b""), 422);
    assert_eq!(ask("/predict", "image/png", &vec![0; (1 << 20) + 1]), 413);
    assert_eq!(ask("/predict?top=x", "image/png", &png(1)), 400);
    assert_eq!(ask("/predict", "application/json", b"{"), 400);
    assert_eq!(ask("/predict", "application/json", b"{\"imags\": []}"), 400);
    assert_eq!(ask("/predict", "multipart/form-data", b"x"), 400);
    let three = form(&[png(1), png(2), png(3)], &[]);
    assert_eq!(ask("/predict", "multipart/form-data; boundary=b", &three), 413);
    assert_eq!(ask("/predict?labels=cat", "image/png", &png(1)), 422);
    assert_eq!(ask("/segment", "image/png", &png(1)), 422);
    assert_eq!(ask("/embed", "image/png", &png(1)), 422);
    assert_eq!(ask("/search?text=cat", "image/png", b""), 422);
    assert_eq!(ask("/nowhere", "image/png", &png(1)), 404);
    assert_eq!(get(running.address, "/predict").status, 404);
    let zipped = [("Content-Encoding", "gzip"), ("Content-Type", "image/png")];
    assert_eq!(send(running.address, "POST", "/predict", &zipped, &png(1)).status, 415);
    assert_eq!(ask("/predict", "image/png", &png(1)), 200);
}

#[test]
fn a_bomb_is_refused_before_it_is_decoded() {
    // The head of a PNG that says it has 100,000 × 100,000 pixels.
    let mut bomb = png(1);
    bomb[16..24].copy_from_slice(&[0, 1, 134, 160, 0, 1, 134, 160]);
    let checksum = crc(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&checksum.to_be_bytes());
    let running = Running::with(quick());
    let reply = post(running.address, "/predict", "image/png", &bomb);
    assert_eq!(reply.status, 413, "{}", reply.text());
    assert!(reply.text().contains("pixels"));
}

/// CRC-32 as PNG has it.
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 }
        })
    };
    !bytes.iter().fold(!0, step)
}

#[test]
fn pixels_are_labelled_in_a_png_whose_values_are_classes() {
    let one = || Ok(Subject { classes: vec!["sky".to_owned()], ..subject(segmenter()) });
    let running = Running::of(vec![("one".to_owned(), load(one))], quick(), None);
    let mask = post(running.address, "/segment", "image/png", &png(1));
    assert_eq!((mask.status, mask.header("content-type")), (200, Some("image/png")));
    let picture = image::load_from_memory(&mask.body).unwrap();
    assert_eq!((picture.width(), picture.height()), (24, 20));
    let said: Value = serde_json::from_str(mask.header("x-omma-classes").unwrap()).unwrap();
    let shares = said["classes"].as_array().unwrap().iter();
    let sum: f64 = shares.map(|one| one["share"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{said}");
    let overlay = post(running.address, "/segment?overlay=true", "image/png", &png(1));
    assert_eq!(overlay.status, 200);
    assert_ne!(overlay.body, mask.body);
    assert_eq!(post(running.address, "/predict", "image/png", &png(1)).status, 422);
}
