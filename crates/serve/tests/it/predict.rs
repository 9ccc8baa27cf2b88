//! What is asked and what is answered.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use omma_data::Picture;
use omma_eval::{Windows, colour, predict, segment};
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
fn images_above_the_threshold_are_said_to_be_out_of_distribution() {
    let told = |ood_threshold: Option<f64>| {
        let one = || Ok(Subject { temperature: Some(2.0), ..subject(system(&[], 3)) });
        let options = Options { ood_threshold, ..quick() };
        let running = Running::of(vec![("one".to_owned(), load(one))], options, None);
        post(running.address, "/predict", "image/png", &png(1)).json()["predictions"][0].clone()
    };
    let plain = told(None);
    assert!(plain.get("is_ood").is_none());
    let score = plain["ood_score"].as_f64().unwrap();
    let largest = plain["top"][0]["probability"].as_f64().unwrap();
    assert!((score - (1.0 - largest)).abs() < 1e-12, "the score is not calibrated: {plain}");
    for (threshold, is_ood) in [(score - 1e-9, true), (score + 1e-9, false)] {
        let told = told(Some(threshold));
        assert_eq!(told["is_ood"], is_ood);
        assert_eq!(told["ood_score"], plain["ood_score"]);
        assert_eq!(told["probability"], told["calibrated"]["top"][0]["probability"]);
    }
}

/// Probabilities by class.
fn by_class(top: &Value) -> BTreeMap<String, f64> {
    let probability = |guess: &Value| {
        (guess["class"].as_str().unwrap().to_owned(), guess["probability"].as_f64().unwrap())
    };
    top.as_array().unwrap().iter().map(probability).collect()
}

/// The softmax of log probabilities divided by a temperature.
fn at_temperature(probabilities: &[f64], temperature: f64) -> Vec<f64> {
    let powers: Vec<f64> = probabilities.iter().map(|p| (p.ln() / temperature).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

fn assert_near(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < tolerance;
    assert!(found.iter().zip(expected).all(near), "{found:?} is not {expected:?}");
}

#[test]
fn calibrated_probabilities_are_those_of_the_logits_at_the_temperature() {
    let of = |temperature: Option<f64>| {
        load(move || Ok(Subject { temperature, ..subject(system(&[], 3)) }))
    };
    let models = [("plain", None), ("soft", Some(2.5)), ("sharp", Some(0.5))];
    let models = models.map(|(name, temperature)| (name.to_owned(), of(temperature)));
    let running = Running::of(models.into(), quick(), None);
    let predict = |model: &str| {
        let path = format!("/predict?model={model}&top=10");
        post(running.address, &path, "image/png", &png(1)).json()["predictions"][0].clone()
    };
    let input = json!({
        "name": "image", "shape": [1], "datatype": "BYTES", "data": [BASE64_STANDARD.encode(png(1))]
    });
    let infer = |model: &str| -> BTreeMap<String, Vec<f64>> {
        let body = json!({ "inputs": [input] }).to_string();
        let path = format!("/v2/models/{model}/infer");
        let reply = post(running.address, &path, "application/json", body.as_bytes()).json();
        let outputs = reply["outputs"].as_array().unwrap().iter();
        let numbers = |output: &Value| {
            let data = output["data"].as_array().unwrap().iter().filter_map(Value::as_f64);
            (output["name"].as_str().unwrap().to_owned(), data.collect())
        };
        outputs.map(numbers).collect()
    };
    let plain = predict("plain");
    let probabilities = by_class(&plain["top"]);
    let values: Vec<f64> = probabilities.values().copied().collect();
    assert_eq!(values.len(), 10);
    assert!(plain.get("calibrated").is_none());
    let plain_tensors = infer("plain");
    for (model, temperature) in [("soft", 2.5), ("sharp", 0.5)] {
        let told = predict(model);
        assert_eq!(told["top"], plain["top"], "the uncalibrated probabilities stay");
        assert_eq!(told["label"], plain["label"]);
        let calibrated = &told["calibrated"];
        assert_eq!(calibrated["temperature"], temperature);
        let found = by_class(&calibrated["top"]);
        assert!(found.keys().eq(probabilities.keys()));
        let expected = at_temperature(&values, temperature);
        assert_near(&found.into_values().collect::<Vec<_>>(), &expected, 1e-6);
        let entropy: f64 = -expected.iter().map(|p| p * p.ln()).sum::<f64>();
        assert_near(&[calibrated["entropy"].as_f64().unwrap()], &[entropy], 1e-5);
        let largest = expected.iter().copied().fold(0.0, f64::max);
        assert_near(&[told["probability"].as_f64().unwrap()], &[largest], 1e-6);
        let tensors = infer(model);
        assert_eq!(tensors["logits"], plain_tensors["logits"]);
        let expected = at_temperature(&plain_tensors["probabilities"], temperature);
        assert_near(&tensors["probabilities"], &expected, 1e-6);
    }
}

#[test]
fn served_mask_of_a_wide_picture_is_the_prediction_of_the_library() {
    let one = || Ok(subject(segmenter()));
    let running = Running::of(vec![("one".to_owned(), load(one))], quick(), None);
    let picture = Picture::decode(&png(1), "a".as_ref()).unwrap();
    assert_eq!((picture.width, picture.height), (24, 20));
    let maps = segment(&segmenter(), &[picture], 0, Windows::Sliding, 16).unwrap();
    let expected = maps[0].predicted();
    let transposed: Vec<u8> =
        (0..24).flat_map(|x| (0..20).map(move |y| 24 * y + x)).map(|i| expected[i]).collect();
    assert_ne!(expected, transposed, "the picture tells rows from columns");
    let mask = post(running.address, "/segment", "image/png", &png(1));
    let mask = image::load_from_memory(&mask.body).unwrap();
    assert_eq!((mask.width(), mask.height()), (24, 20));
    let colours: Vec<u8> = expected.iter().flat_map(|class| colour((*class).into())).collect();
    assert_eq!(mask.to_rgb8().into_raw(), colours);
    let encoded = BASE64_STANDARD.encode(png(1));
    let input = json!({ "name": "image", "shape": [1], "datatype": "BYTES", "data": [encoded] });
    let body = json!({ "inputs": [input] }).to_string();
    let path = "/v2/models/one/infer";
    let reply = post(running.address, path, "application/json", body.as_bytes()).json();
    assert_eq!(reply["outputs"][0]["shape"], json!([1, 20, 24]));
    assert_eq!(reply["outputs"][0]["data"], json!(expected));
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
