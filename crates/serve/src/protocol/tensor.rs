//! Tensors of requests and answers: in JSON, or as bytes behind it (the binary extension).

use axum::{body::Bytes, http::HeaderName};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, value::RawValue};

use super::data::{Flat, Scalar};
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
struct WrittenRequest<'a> {
    id: Option<String>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(borrow)]
    inputs: Vec<WrittenTensor<'a>>,
    #[serde(default)]
    outputs: Vec<WrittenOutput>,
}

#[derive(Deserialize)]
struct WrittenTensor<'a> {
    name: String,
    shape: Vec<usize>,
    datatype: String,
    #[serde(default)]
    parameters: Parameters,
    /// Not looked into before the datatype is known, which may stand behind it.
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WrittenOutput {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

/// Those that are read; others are passed over.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Parameters {
    /// Of an input: how many of the bytes behind the JSON are its own.
    binary_data_size: Option<usize>,
    /// Of an output: whether it is binary.
    binary_data: Option<bool>,
    /// Of a request: whether outputs are binary that say nothing of it.
    binary_data_output: Option<bool>,
}

#[derive(Serialize)]
struct OutResponse<'a> {
    #[serde(flatten)]
    head: &'a Value,
    outputs: Vec<OutTensor<'a>>,
}

#[derive(Serialize)]
struct OutTensor<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<OutSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Values>,
}

#[derive(Serialize)]
struct OutSize {
    binary_data_size: usize,
}

fn malformed(why: impl Into<String>) -> ServeError {
    ServeError::Malformed(why.into())
}

impl InferRequest {
    /// - `json_length`: what the header says, if it is there
    /// - `most_files`: strings of an input at most, each of which is an image's file
    pub(super) fn parse(
        body: &Bytes,
        json_length: Option<&str>,
        most_files: usize,
    ) -> Result<Self> {
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
        let inputs = written.inputs.into_iter().map(|input| tensor(input, &mut rest, most_files));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        if !rest.is_empty() {
            return Err(malformed(format!("{} bytes after the last tensor", rest.len())));
        }
        let binary = written.parameters.binary_data_output.unwrap_or(false);
        let wanted = |output: WrittenOutput| Wanted {
            binary: binary || output.parameters.binary_data.unwrap_or(false),
            name: output.name,
        };
        let outputs = written.outputs.into_iter().map(wanted).collect();
        Ok(Self { id: written.id, inputs, outputs, binary })
    }
}

/// - `rest`: binary data that no tensor before has taken
fn tensor(written: WrittenTensor<'_>, rest: &mut Bytes, most_files: usize) -> Result<Tensor> {
    let WrittenTensor { name, shape, datatype, parameters, data } = written;
    let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
    let count = count.filter(|_| shape.len() <= MOST_AXES);
    let count =
        count.ok_or_else(|| malformed(format!("{name} cannot have the shape {shape:?}")))?;
    if datatype == "BYTES" && count > most_files {
        return Err(ServeError::TooLarge(format!("{count} images are more than {most_files}")));
    }
    let (values, found) = match (parameters.binary_data_size, data) {
        (Some(size), _) => {
            let size = Some(size).filter(|size| *size <= rest.len());
            let size =
                size.ok_or_else(|| malformed(format!("{name} has fewer bytes than it says")))?;
            of_bytes(&name, &datatype, rest.split_to(size), count)?
        }
        (None, Some(data)) => of_json(&name, &datatype, data, count)?,
        (None, None) => return Err(malformed(format!("{name} has no data"))),
    };
    match found == count {
        true => Ok(Tensor { name, shape, values }),
        false => Err(malformed(format!(
            "{name} has {found} values, and its shape {shape:?} has room for {count}"
        ))),
    }
}

fn unknown(name: &str, datatype: &str) -> ServeError {
    let datatype: String = datatype.chars().take(20).collect();
    ServeError::Unprocessable(format!("{name} is {datatype}; FP32, UINT8 and BYTES are read"))
}

/// The values, of which no more strings are kept than `count`, and how many there are.
fn of_bytes(name: &str, datatype: &str, bytes: Bytes, count: usize) -> Result<(Values, usize)> {
    match datatype {
        "FP32" => {
            let (numbers, rest) = bytes.as_chunks::<4>();
            let values = || numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
            match rest.is_empty() {
                true => Ok((Values::Float(values()), numbers.len())),
                false => Err(malformed(format!("{name} ends within a number"))),
            }
        }
        "UINT8" => {
            let found = bytes.len();
            Ok((Values::Byte(bytes), found))
        }
        "BYTES" => {
            let (mut strings, mut found, mut rest) = (Vec::new(), 0, bytes);
            while !rest.is_empty() {
                let ends = || malformed(format!("{name} ends within a string"));
                let head: [u8; 4] =
                    rest.get(..4).and_then(|head| head.try_into().ok()).ok_or_else(ends)?;
                let length = u32::from_le_bytes(head) as usize;
                if rest.len() - 4 < length {
                    return Err(ends());
                }
                let mut string = rest.split_to(4 + length);
                found += 1;
                if found <= count {
                    strings.push(string.split_off(4));
                }
            }
            Ok((Values::Strings(strings), found))
        }
        _ => Err(unknown(name, datatype)),
    }
}

/// The values, of which no more are kept than `count`, and how many there are.
fn of_json(name: &str, datatype: &str, data: &RawValue, count: usize) -> Result<(Values, usize)> {
    let wrong = |error: serde_json::Error| match error.is_data() {
        true => malformed(format!("{name} has a value that is not {datatype}")),
        false => malformed(format!("the JSON: {name}: {error}")),
    };
    match datatype {
        "FP32" => {
            let number = |scalar: Scalar<'_>| match scalar {
                Scalar::Whole(value) => Some(value as f64 as f32),
                Scalar::Number(value) => Some(value as f32),
                Scalar::Text(_) => None,
            };
            let Flat { values, found, .. } = Flat::of(data, count, number).map_err(wrong)?;
            Ok((Values::Float(values), found))
        }
        "UINT8" => {
            let byte = |scalar: Scalar<'_>| match scalar {
                Scalar::Whole(value) => u8::try_from(value).ok(),
                Scalar::Number(_) | Scalar::Text(_) => None,
            };
            let Flat { values, found, .. } = Flat::of(data, count, byte).map_err(wrong)?;
            Ok((Values::Byte(values.into()), found))
        }
        "BYTES" => {
            let text = |scalar: Scalar<'_>| match scalar {
                Scalar::Text(text) => Some(text.to_owned()),
                Scalar::Whole(_) | Scalar::Number(_) => None,
            };
            let Flat { values, found, .. } = Flat::of(data, count, text).map_err(wrong)?;
            Ok((Values::Texts(values), found))
        }
        _ => Err(unknown(name, datatype)),
    }
}

impl Values {
    fn datatype(&self) -> &'static str {
        match self {
            Self::Float(_) => "FP32",
            Self::Byte(_) => "UINT8",
            Self::Strings(_) | Self::Texts(_) => "BYTES",
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

/// As lists of JSON.
impl Serialize for Values {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Float(values) => to.collect_seq(values),
            Self::Byte(values) => to.collect_seq(values.iter()),
            Self::Strings(values) => {
                to.collect_seq(values.iter().map(|value| String::from_utf8_lossy(value)))
            }
            Self::Texts(values) => to.collect_seq(values),
        }
    }
}

/// An answer: its bytes, and how many of them are JSON if others follow.
///
/// - `outputs`: each with whether it is binary
pub(super) fn written(
    head: &Value,
    outputs: &[(Tensor, bool)],
) -> Result<(Vec<u8>, Option<usize>)> {
    let mut binary = Vec::new();
    let mut written = Vec::with_capacity(outputs.len());
    for (Tensor { name, shape, values }, is_binary) in outputs {
        let (parameters, data) = match is_binary {
            true => {
                let bytes = values.bytes();
                let size = OutSize { binary_data_size: bytes.len() };
                binary.extend(bytes);
                (Some(size), None)
            }
            false => (None, Some(values)),
        };
        written.push(OutTensor { name, datatype: values.datatype(), shape, parameters, data });
    }
    let whole = serde_json::to_vec(&OutResponse { head, outputs: written });
    let mut bytes = whole.map_err(|error| ServeError::Failed(error.to_string()))?;
    let length = outputs.iter().any(|(_, is_binary)| *is_binary).then_some(bytes.len());
    bytes.extend(binary);
    Ok((bytes, length))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(json: &str, binary: &[u8]) -> Result<InferRequest> {
        let body = [json.as_bytes(), binary].concat();
        let length = json.len().to_string();
        InferRequest::parse(&body.into(), Some(&length), 4)
    }

    #[test]
    fn nested_and_flat_json_are_the_same() {
        let with = |data: &str| {
            let json = format!(
                r#"{{"id":"7","inputs":[{{"name":"image","shape":[1,2,2],"datatype":"FP32","data":{data}}}]}}"#
            );
            InferRequest::parse(&json.into(), None, 4).unwrap().inputs
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

    fn refusal(shape: &str, datatype: &str, data: &str) -> Option<(u16, String)> {
        let json = format!(
            r#"{{"inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}"#
        );
        let error = InferRequest::parse(&json.into(), None, 4).err()?;
        Some((error.status().as_u16(), error.to_string()))
    }

    #[test]
    fn what_does_not_fit_its_shape_is_refused() {
        let status =
            |shape, datatype, data| refusal(shape, datatype, data).map(|(status, _)| status);
        assert_eq!(status("[2]", "UINT8", "[1,255]"), None);
        assert_eq!(status("[18446744073709551615,2]", "FP32", "[1,2]"), Some(400));
        assert_eq!(status("[1]", "INT64", "[1]"), Some(422));
        let (status, why) = refusal("[3]", "FP32", "[1,2]").unwrap();
        assert_eq!((status, &*why), (400, "x has 2 values, and its shape [3] has room for 3"));
        let (status, why) = refusal("[2,1]", "FP32", "[[1,2],[3,4,5]]").unwrap();
        assert_eq!((status, &*why), (400, "x has 5 values, and its shape [2, 1] has room for 2"));
        let (status, why) = refusal("[5]", "BYTES", r#"["","","","",""]"#).unwrap();
        assert_eq!((status, &*why), (413, "5 images are more than 4"));
        assert_eq!(refusal("[1]", "FP32", "null").unwrap().1, "x has no data");
    }

    #[test]
    fn values_are_of_their_datatype() {
        for (datatype, data) in [
            ("FP32", "[1]"),
            ("FP32", "[-2]"),
            ("FP32", "[2.5e3]"),
            ("FP32", "[18446744073709551615]"),
            ("FP32", "7"),
            ("UINT8", "[255]"),
            ("BYTES", r#"["aGk="]"#),
        ] {
            assert_eq!(refusal("[1]", datatype, data), None, "{datatype} {data}");
        }
        for (datatype, data) in [
            ("FP32", "[true]"),
            ("FP32", r#"["1"]"#),
            ("FP32", "[null]"),
            ("FP32", r#"[{"a":1}]"#),
            ("UINT8", "[256]"),
            ("UINT8", "[-1]"),
            ("UINT8", "[1.0]"),
            ("UINT8", "[false]"),
            ("BYTES", "[1]"),
            ("BYTES", "[null]"),
        ] {
            let why = format!("x has a value that is not {datatype}");
            assert_eq!(refusal("[1]", datatype, data), Some((400, why)), "{data}");
        }
        assert_eq!(refusal("[1]", "FP32", "[1e999]").unwrap().0, 400);
        assert_eq!(refusal("[1]", "FP32", &("[".repeat(500) + &"]".repeat(500))).unwrap().0, 400);
    }

    #[test]
    fn data_may_stand_before_its_datatype() {
        let json = r#"{"inputs":[{"data":[[1],[2]],"datatype":"UINT8","shape":[2,1],"name":"x"}]}"#;
        let request = InferRequest::parse(&json.into(), None, 4).unwrap();
        assert_eq!(request.inputs[0].values, Values::Byte(vec![1, 2].into()));
    }

    #[test]
    fn an_answer_can_be_read_as_a_request_is() {
        let tensor =
            |name: &str, values: Values| Tensor { name: name.to_owned(), shape: vec![2], values };
        let floats = tensor("p", Values::Float(vec![0.25, 0.75]));
        let labels = tensor("l", Values::Texts(vec!["a".to_owned(), "bc".to_owned()]));
        let (bytes, length) =
            written(&json!({"model_name": "m"}), &[(floats, true), (labels, false)]).unwrap();
        let length = length.unwrap();
        assert_eq!(bytes.len() - length, 8);
        let head: Value = serde_json::from_slice(&bytes[..length]).unwrap();
        assert_eq!(head["model_name"], "m");
        assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], 8);
        assert_eq!(head["outputs"][1]["data"], json!(["a", "bc"]));
    }
}
