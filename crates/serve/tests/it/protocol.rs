//! The Open Inference Protocol, in JSON and in bytes.

use base64::{Engine, prelude::BASE64_STANDARD};
use omma_data::Picture;
use serde_json::{Value, json};

use crate::{
    client::{Reply, get, post, send},
    models::{Running, load, png, quick, segmenter, subject},
};

fn infer(running: &Running, request: &Value) -> Reply {
    post(
        running.address,
        "/v2/models/one/infer",
        "application/json",
        request.to_string().as_bytes(),
    )
}

fn output<'a>(reply: &'a Value, name: &str) -> &'a Value {
    let outputs = reply["outputs"].as_array().unwrap();
    outputs.iter().find(|output| output["name"] == name).unwrap()
}

#[test]
fn the_server_and_its_models_say_what_they_are() {
    let running = Running::with(quick());
    for path in [
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/one/ready",
        "/v2/models/one/versions/1/ready",
    ] {
        assert_eq!(get(running.address, path).status, 200, "{path}");
    }
    assert_eq!(get(running.address, "/v2").json()["name"], "omma");
    let model = get(running.address, "/v2/models/one").json();
    assert_eq!(
        model["inputs"][0],
        json!({ "name": "image", "datatype": "FP32", "shape": [-1, 16, 16, 3] })
    );
    assert_eq!(model["outputs"][0]["shape"], json!([-1, 10]));
    assert_eq!(get(running.address, "/v2/models/two").status, 404);
    assert_eq!(get(running.address, "/v2/models/one/versions/9").status, 404);
    let index = post(running.address, "/v2/repository/index", "application/json", b"{}").json();
    assert_eq!(index, json!([{ "name": "one", "version": "1", "state": "READY" }]));
}

#[test]
fn files_pixels_and_json_have_the_answer_of_predict() {
    let running = Running::with(quick());
    let predicted = post(running.address, "/predict?top=1", "image/png", &png(1)).json();
    let told = &predicted["predictions"][0];
    let encoded = BASE64_STANDARD.encode(png(1));
    let input = json!({ "name": "image", "shape": [1], "datatype": "BYTES", "data": [encoded] });
    let files = infer(&running, &json!({ "id": "7", "inputs": [input] })).json();
    assert_eq!((&files["id"], &files["model_name"]), (&json!("7"), &json!("one")));
    let picture = Picture::decode(&png(1), "a".as_ref()).unwrap();
    let input = json!({ "name": "image", "shape": [1, 20, 24, 3], "datatype": "UINT8", "data": picture.pixels });
    let pixels = infer(&running, &json!({ "inputs": [input] })).json();
    assert_eq!(files["outputs"], pixels["outputs"]);
    assert_eq!(output(&files, "label")["data"][0], told["label"]);
    let entropy = output(&files, "entropy")["data"][0].as_f64().unwrap();
    assert!((entropy - told["entropy"].as_f64().unwrap()).abs() < 1e-6);
    let probabilities = output(&files, "probabilities");
    assert_eq!(probabilities["shape"], json!([1, 10]));
    // The mean of both members' softmax.
    let logits = output(&files, "logits");
    assert_eq!(logits["shape"], json!([1, 2, 10]));
    let members: Vec<Vec<f64>> = numbers(logits).chunks(10).map(softmax).collect();
    assert_ne!(members[0], members[1]);
    for (class, found) in numbers(probabilities).into_iter().enumerate() {
        let expected = (members[0][class] + members[1][class]) / 2.0;
        assert!((found - expected).abs() < 1e-6, "class {class}: {found} is not {expected}");
    }
}

/// The data of a tensor.
fn numbers(output: &Value) -> Vec<f64> {
    output["data"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let powers: Vec<f64> = logits.iter().map(|logit| logit.exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

#[test]
fn bytes_behind_the_json_are_tensors_in_both_directions() {
    let running = Running::with(quick());
    let values: Vec<f32> = (0..2 * 16 * 16 * 3).map(|place| (place % 97) as f32 / 96.0).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let input = json!({ "name": "image", "shape": [2, 16, 16, 3], "datatype": "FP32" });
    let mut written = input.clone();
    written["data"] = json!(values);
    let plain = infer(&running, &json!({ "inputs": [written] })).json();
    let mut behind = input;
    behind["parameters"] = json!({ "binary_data_size": bytes.len() });
    let wanted = json!([{ "name": "probabilities", "parameters": { "binary_data": true } }, { "name": "label" }]);
    let head = json!({ "inputs": [behind], "outputs": wanted }).to_string();
    let length = head.len().to_string();
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let body = [head.as_bytes(), &bytes].concat();
    let reply = send(running.address, "POST", "/v2/models/one/infer", &headers, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let json_length: usize =
        reply.header("inference-header-content-length").unwrap().parse().unwrap();
    let head: Value = serde_json::from_slice(&reply.body[..json_length]).unwrap();
    assert_eq!(head["outputs"].as_array().unwrap().len(), 2);
    assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], 2 * 10 * 4);
    let (numbers, _) = reply.body[json_length..].as_chunks::<4>();
    let found: Vec<f32> = numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
    let expected = output(&plain, "probabilities")["data"].as_array().unwrap();
    let expected: Vec<f32> = expected.iter().map(|p| p.as_f64().unwrap() as f32).collect();
    assert_eq!(found, expected);
    assert_eq!(head["outputs"][1]["data"], output(&plain, "label")["data"]);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let running = Running::with(quick());
    let status = |shape: Value, datatype: &str, data: Value, name: &str| {
        let input = json!({ "name": name, "shape": shape, "datatype": datatype, "data": data });
        infer(&running, &json!({ "inputs": [input] })).status
    };
    let grey = vec![0.5; 16 * 16 * 3];
    assert_eq!(status(json!([1, 16, 16, 3]), "FP32", json!(grey), "image"), 200);
    assert_eq!(status(json!([1, 16, 16, 3]), "FP32", json!(grey), "picture"), 422);
    assert_eq!(status(json!([1, 3, 16, 16]), "FP32", json!(grey), "image"), 422);
    assert_eq!(status(json!([1, 8, 32, 3]), "FP32", json!(grey), "image"), 422);
    assert_eq!(status(json!([1, 16, 16, 3]), "FP32", json!(vec![1.5; 768]), "image"), 422);
    assert_eq!(status(json!([1, 16, 16, 3]), "FP32", json!([0.5]), "image"), 400);
    assert_eq!(status(json!([0, 16, 16, 3]), "FP32", json!([]), "image"), 422);
    assert_eq!(status(json!([1, 0, 16, 3]), "UINT8", json!([]), "image"), 422);
    assert_eq!(status(json!([1]), "INT64", json!([1]), "image"), 422);
    let input =
        json!({ "name": "image", "shape": [1, 16, 16, 3], "datatype": "FP32", "data": grey });
    let unknown = json!({ "inputs": [input], "outputs": [{ "name": "nothing" }] });
    assert_eq!(infer(&running, &unknown).status, 422);
    assert_eq!(infer(&running, &json!({ "inputs": [] })).status, 422);
}

#[test]
fn a_model_that_labels_pixels_answers_with_masks() {
    let running =
        Running::of(vec![("one".to_owned(), load(|| Ok(subject(segmenter()))))], quick(), None);
    let encoded = BASE64_STANDARD.encode(png(1));
    let input =
        json!({ "name": "image", "shape": [2], "datatype": "BYTES", "data": [encoded, encoded] });
    let reply = infer(&running, &json!({ "inputs": [input] })).json();
    assert_eq!(output(&reply, "mask")["shape"], json!([2, 20, 24]));
}
