//! Tensors of requests and answers: in JSON, or as bytes behind it (the binary extension).

use axum::{body::Bytes, http::HeaderName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{Result, ServeError};

/// How many of a body's bytes are JSON; the tensors' own follow.
pub(super) const JSON_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");
/// Axes of a tensor, of which images have four.
const MOST_AXES: usize = 8;

/// A request, its binary parts given to its inputs.
#[derive(Debug)]
pub(super) struct InferRequest {
    pub(super) id: Option<String>,
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Wanted>,
    /// Whether outputs that are not named are binary.
    pub(super) binary: bool,
}

/// An output that is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) binary: bool,
}

/// A tensor by its name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) values: Values,
}

/// What a tensor holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Values {
    Float(Vec<f32>),
    Byte(Bytes),
    /// Of which each is as long as it is.
    Strings(Vec<Bytes>),
    /// The same in JSON.
    Texts(Vec<String>),
}

#[derive(Deserialize)]
struct WrittenRequest {
    id: Option<String>,
    #[serde(default)]
    parameters: Map<String, Value>,
    inputs: Vec<WrittenTensor>,
    #[serde(default)]
    outputs: Vec<WrittenOutput>,
}

#[derive(Deserialize)]
struct WrittenTensor {
    name: String,
    shape: Vec<usize>,
    datatype: String,
    #[serde(default)]
    parameters: Map<String, Value>,
    data: Option<Value>,
}

#[derive(Deserialize)]
struct WrittenOutput {
    name: String,
    #[serde(default)]
    parameters: Map<String, Value>,
}

#[derive(Serialize)]
struct OutTensor<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

fn malformed(why: impl Into<String>) -> ServeError {
    ServeError::Malformed(why.into())
}

impl InferRequest {
    /// - `json_length`: what the header says, if it is there
    pub(super) fn parse(body: &Bytes, json_length: Option<&str>) -> Result<Self> {
        let length = match json_length {
            None => body.len(),
            Some(text) => {
                let length: Option<usize> = text.trim().parse().ok();
                length.filter(|length| *length <= body.len()).ok_or_else(|| {
                    malformed(format!(
                        "{JSON_LENGTH}: {text} is not a part of {} bytes",
                        body.len()
                    ))
                })?
            }
        };
        let written: WrittenRequest = serde_json::from_slice(&body[..length])
            .map_err(|error| malformed(format!("the JSON: {error}")))?;
        let mut rest = body.slice(length..);
        let inputs = written.inputs.into_iter().map(|input| tensor(input, &mut rest));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        if !rest.is_empty() {
            return Err(malformed(format!("{} bytes after the last tensor", rest.len())));
        }
        let binary = is_set(&written.parameters, "binary_data_output");
        let wanted = |output: WrittenOutput| Wanted {
            binary: binary || is_set(&output.parameters, "binary_data"),
            name: output.name,
        };
        let outputs = written.outputs.into_iter().map(wanted).collect();
        Ok(Self { id: written.id, inputs, outputs, binary })
    }
}

fn is_set(parameters: &Map<String, Value>, name: &str) -> bool {
    parameters.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// - `rest`: binary data that no tensor before has taken
fn tensor(written: WrittenTensor, rest: &mut Bytes) -> Result<Tensor> {
    let WrittenTensor { name, shape, datatype, parameters, data } = written;
    let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
    let count = count.filter(|_| shape.len() <= MOST_AXES);
    let count =
        count.ok_or_else(|| malformed(format!("{name} cannot have the shape {shape:?}")))?;
    let values = match (parameters.get("binary_data_size"), data) {
        (Some(size), _) => {
            let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
            let size = size.filter(|size| *size <= rest.len());
            let size =
                size.ok_or_else(|| malformed(format!("{name} has fewer bytes than it says")))?;
            of_bytes(&name, &datatype, rest.split_to(size))?
        }
        (None, Some(data)) => of_json(&name, &datatype, data, count)?,
        (None, None) => return Err(malformed(format!("{name} has no data"))),
    };
    match values.len() == count {
        true => Ok(Tensor { name, shape, values }),
        false => Err(malformed(format!(
            "{name} has {} values, and its shape {shape:?} has room for {count}",
            values.len()
        ))),
    }
}

fn unknown(name: &str, datatype: &str) -> ServeError {
    let datatype: String = datatype.chars().take(20).collect();
    ServeError::Unprocessable(format!("{name} is {datatype}; FP32, UINT8 and BYTES are read"))
}

fn of_bytes(name: &str, datatype: &str, bytes: Bytes) -> Result<Values> {
    match datatype {
        "FP32" => {
            let (numbers, rest) = bytes.as_chunks::<4>();
            match rest.is_empty() {
                true => Ok(Values::Float(numbers.iter().map(|n| f32::from_le_bytes(*n)).collect())),
                false => Err(malformed(format!("{name} ends within a number"))),
            }
        }
        "UINT8" => Ok(Values::Byte(bytes)),
        "BYTES" => {
            let (mut strings, mut rest) = (Vec::new(), bytes);
            while !rest.is_empty() {
                let ends = || malformed(format!("{name} ends within a string"));
                let head: [u8; 4] =
                    rest.get(..4).and_then(|head| head.try_into().ok()).ok_or_else(ends)?;
                let length = u32::from_le_bytes(head) as usize;
                if rest.len() - 4 < length {
                    return Err(ends());
                }
                let mut string = rest.split_to(4 + length);
                strings.push(string.split_off(4));
            }
            Ok(Values::Strings(strings))
        }
        _ => Err(unknown(name, datatype)),
    }
}

/// Flat, or nested as the shape is.
fn of_json(name: &str, datatype: &str, data: Value, count: usize) -> Result<Values> {
    let mut flat = Vec::with_capacity(count.min(1 << 20));
    let mut rest = vec![data];
    while let Some(value) = rest.pop() {
        match value {
            Value::Array(values) => rest.extend(values.into_iter().rev()),
            value => flat.push(value),
        }
    }
    let wrong = || malformed(format!("{name} has a value that is not {datatype}"));
    match datatype {
        "FP32" => {
            let numbers = flat.iter().map(|value| value.as_f64().map(|value| value as f32));
            Ok(Values::Float(numbers.collect::<Option<_>>().ok_or_else(wrong)?))
        }
        "UINT8" => {
            let bytes =
                flat.iter().map(|value| value.as_u64().and_then(|value| u8::try_from(value).ok()));
            let bytes: Option<Vec<u8>> = bytes.collect();
            Ok(Values::Byte(bytes.ok_or_else(wrong)?.into()))
        }
        "BYTES" => {
            let texts = flat.into_iter().map(|value| match value {
                Value::String(text) => Some(text),
                _ => None,
            });
            Ok(Values::Texts(texts.collect::<Option<_>>().ok_or_else(wrong)?))
        }
        _ => Err(unknown(name, datatype)),
    }
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Self::Float(values) => values.len(),
            Self::Byte(values) => values.len(),
            Self::Strings(values) => values.len(),
            Self::Texts(values) => values.len(),
        }
    }

    fn datatype(&self) -> &'static str {
        match self {
            Self::Float(_) => "FP32",
            Self::Byte(_) => "UINT8",
            Self::Strings(_) | Self::Texts(_) => "BYTES",
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Float(values) => json!(values),
            Self::Byte(values) => json!(values.as_ref()),
            Self::Strings(values) => {
                json!(values.iter().map(|value| String::from_utf8_lossy(value)).collect::<Vec<_>>())
            }
            Self::Texts(values) => json!(values),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let counted = |string: &[u8]| [&(string.len() as u32).to_le_bytes(), string].concat();
        match self {
            Self::Float(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Byte(values) => values.to_vec(),
            Self::Strings(values) => values.iter().flat_map(|value| counted(value)).collect(),
            Self::Texts(values) => {
                values.iter().flat_map(|value| counted(value.as_bytes())).collect()
            }
        }
    }
}

/// An answer: its bytes, and how many of them are JSON if others follow.
///
/// - `outputs`: each with whether it is binary
pub(super) fn written(head: Value, outputs: &[(Tensor, bool)]) -> (Vec<u8>, Option<usize>) {
    let mut binary = Vec::new();
    let mut written = Vec::with_capacity(outputs.len());
    for (Tensor { name, shape, values }, is_binary) in outputs {
        let (parameters, data) = match is_binary {
            true => {
                let bytes = values.bytes();
                let size = json!({ "binary_data_size": bytes.len() });
                binary.extend(bytes);
                (Some(size), None)
            }
            false => (None, Some(values.json())),
        };
        written.push(OutTensor { name, datatype: values.datatype(), shape, parameters, data });
    }
    let mut whole = head;
    whole["outputs"] = json!(written);
    let mut bytes = whole.to_string().into_bytes();
    let length = outputs.iter().any(|(_, is_binary)| *is_binary).then_some(bytes.len());
    bytes.extend(binary);
    (bytes, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str, binary: &[u8]) -> Result<InferRequest> {
        let body = [json.as_bytes(), binary].concat();
        let length = json.len().to_string();
        InferRequest::parse(&body.into(), Some(&length))
    }

    #[test]
    fn nested_and_flat_json_are_the_same() {
        let with = |data: &str| {
            let json = format!(
                r#"{{"id":"7","inputs":[{{"name":"image","shape":[1,2,2],"datatype":"FP32","data":{data}}}]}}"#
            );
            InferRequest::parse(&json.into(), None).unwrap().inputs
        };
        assert_eq!(with("[[[1,2.5],[3,4]]]"), with("[1,2.5,3,4]"));
    }

    #[test]
    fn binary_tensors_follow_the_json_in_their_order() {
        let json = r#"{"inputs":[
            {"name":"a","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}},
            {"name":"b","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":11}}],
            "outputs":[{"name":"c","parameters":{"binary_data":true}},{"name":"d"}]}"#;
        let mut binary = [1.0_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()].concat();
        binary.extend(b"\x03\0\0\0abc\0\0\0\0");
        let request = parsed(json, &binary).unwrap();
        assert_eq!(request.inputs[0].values, Values::Float(vec![1.0, -2.0]));
        let strings = vec![Bytes::from("abc"), Bytes::new()];
        assert_eq!(request.inputs[1].values, Values::Strings(strings));
        assert_eq!((request.outputs[0].binary, request.outputs[1].binary), (true, false));
        assert!(
            parsed(json, &binary[..18]).is_err()
                && parsed(json, &[&binary[..], b"x"].concat()).is_err()
        );
    }

    #[test]
    fn what_does_not_fit_its_shape_is_refused() {
        let with = |shape: &str, datatype: &str, data: &str| {
            let json = format!(
                r#"{{"inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}"#
            );
            InferRequest::parse(&json.into(), None).err().map(|error| error.status().as_u16())
        };
        assert_eq!(with("[2]", "UINT8", "[1,255]"), None);
        assert_eq!(with("[2]", "UINT8", "[1,256]"), Some(400));
        assert_eq!(with("[3]", "FP32", "[1,2]"), Some(400));
        assert_eq!(with("[18446744073709551615,2]", "FP32", "[1,2]"), Some(400));
        assert_eq!(with("[1]", "INT64", "[1]"), Some(422));
    }

    #[test]
    fn an_answer_can_be_read_as_a_request_is() {
        let tensor =
            |name: &str, values: Values| Tensor { name: name.to_owned(), shape: vec![2], values };
        let floats = tensor("p", Values::Float(vec![0.25, 0.75]));
        let labels = tensor("l", Values::Texts(vec!["a".to_owned(), "bc".to_owned()]));
        let (bytes, length) =
            written(json!({"model_name": "m"}), &[(floats, true), (labels, false)]);
        let length = length.unwrap();
        assert_eq!(bytes.len() - length, 8);
        let head: Value = serde_json::from_slice(&bytes[..length]).unwrap();
        assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], 8);
        assert_eq!(head["outputs"][1]["data"], json!(["a", "bc"]));
    }
}
