//! `POST /v2/models/M/infer`: images in, predictions out.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{RawPathParams, Request, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use omma_data::Picture;
use omma_eval::metrics::mean_softmax;
use serde_json::json;

use super::{
    INPUT,
    metadata::named,
    tensor::{InferRequest, JSON_LENGTH, Tensor, Values, written},
};
use crate::{
    body::Arrived,
    error::{Result, ServeError},
    model::{Live, Task},
    predictor::{Answer, Ask},
    routes::{check_room, decoded, to_segment, told, values},
    server::{Answered, Server},
    wishes,
};

/// Images of a request, in one of the three forms.
enum Images {
    /// `[n, H, W, 3]`, from 0 to 1.
    Floats {
        shape: [usize; 3],
        values: Vec<f32>,
    },
    /// `[n, h, w, 3]`
    Pixels {
        shape: [usize; 3],
        values: Bytes,
    },
    Files(Vec<Bytes>),
}

pub(super) async fn infer(
    State(server): State<Arc<Server>>,
    path: RawPathParams,
    request: Request,
) -> Result<Response> {
    let model = named(&server, &path)?;
    let arrived = server.arrived(request).await?;
    let Arrived { headers, bytes, deadline, .. } = &arrived;
    let json_length = headers.get(JSON_LENGTH).and_then(|length| length.to_str().ok());
    let (own, json_length) = (bytes.clone(), json_length.map(str::to_owned));
    let most = server.options.max_images.min(server.options.batching.max_queue);
    let parse = move || InferRequest::parse(&own, json_length.as_deref(), most);
    let InferRequest { id, inputs, outputs: wanted, binary } =
        server.blocking(*deadline, parse).await?;
    let (images, count) = Images::of(inputs)?;
    match count {
        0 => return Err(ServeError::Unprocessable("there is no image in the request".to_owned())),
        count if count > most => {
            return Err(ServeError::TooLarge(format!("{count} images are more than {most}")));
        }
        _ => {}
    }
    let prepare = move |live: &Live| {
        let asks = (0..count).map(|place| images.ask(place, live)).collect::<Result<Vec<Ask>>>()?;
        check_room(&asks, &live.facts)?;
        Ok(asks)
    };
    let answered = server.ask(model, count, *deadline, prepare).await?;
    let timing = answered.timing;
    let (name, version) = (model.name.clone(), answered.live.facts.version.to_string());
    let mut all = outputs(answered, &server)?;
    let mut chosen: Vec<(Tensor, bool)> = Vec::new();
    for want in &wanted {
        let place = all.iter().position(|output| output.name == want.name).ok_or_else(|| {
            ServeError::Unprocessable(format!(
                "{name} has no output {:?}, or it is asked for twice",
                want.name
            ))
        })?;
        chosen.push((all.remove(place), want.binary));
    }
    if wanted.is_empty() {
        chosen.extend(all.into_iter().map(|output| (output, binary)));
    }
    let mut head = json!({ "model_name": name, "model_version": version });
    if let Some(id) = id {
        head["id"] = id.into();
    }
    let (bytes, length) = written(&head, &chosen)?;
    let kind = if length.is_some() { "application/octet-stream" } else { "application/json" };
    let mut response = ([(header::CONTENT_TYPE, kind)], bytes).into_response();
    if let Some(length) = length {
        response.headers_mut().insert(JSON_LENGTH, HeaderValue::from(length));
    }
    response.extensions_mut().insert(timing);
    Ok(response)
}

impl Images {
    /// The images of a request, and how many there are.
    fn of(inputs: Vec<Tensor>) -> Result<(Self, usize)> {
        let wrong = |why: String| Err(ServeError::Unprocessable(why));
        let [Tensor { name, shape, values }] = <[Tensor; 1]>::try_from(inputs).map_err(|all| {
            ServeError::Unprocessable(format!(
                "one input is read, {INPUT}; there are {}",
                all.len()
            ))
        })?;
        if name != INPUT {
            return wrong(format!("there is no input {name:?}; {INPUT} is the only one"));
        }
        match (values, shape.as_slice()) {
            (Values::Float(values), &[count, height, width, 3]) => {
                Ok((Self::Floats { shape: [height, width, 3], values }, count))
            }
            (Values::Byte(values), &[count, height, width, 3]) => {
                Ok((Self::Pixels { shape: [height, width, 3], values }, count))
            }
            (Values::Strings(files), &[count] | &[count, 1]) => Ok((Self::Files(files), count)),
            (Values::Texts(texts), &[count] | &[count, 1]) => {
                let files = texts.iter().map(|text| wishes::decoded(text));
                Ok((Self::Files(files.collect::<Result<_>>()?), count))
            }
            (_, shape) => wrong(format!(
                "{INPUT} is FP32 or UINT8 [n, height, width, 3], or BYTES [n]; its shape is {shape:?}"
            )),
        }
    }

    fn ask(&self, place: usize, live: &Live) -> Result<Ask> {
        if live.facts.task == Task::Pixels {
            return to_segment(self.picture(place)?, &live.facts);
        }
        let values = match self {
            Self::Floats { shape, values } => {
                normalised(shape, of_place(values, shape, place), live)?
            }
            _ => values(&self.picture(place)?, &live.pixels),
        };
        Ok(match live.facts.task {
            Task::Texts => Ask::Vector(values),
            _ => Ask::Classes { values, labels: None, experts: false },
        })
    }

    fn picture(&self, place: usize) -> Result<Picture> {
        match self {
            Self::Files(files) => decoded(&files[place], place),
            Self::Pixels { shape, values } => {
                picture(shape, of_place(values, shape, place).to_vec())
            }
            Self::Floats { shape, values } => {
                let bytes = of_place(values, shape, place).iter();
                picture(shape, bytes.map(|value| (value * 255.0).round() as u8).collect())
            }
        }
    }
}

fn of_place<'a, T>(values: &'a [T], shape: &[usize; 3], place: usize) -> &'a [T] {
    let length: usize = shape.iter().product();
    &values[place * length..][..length]
}

fn picture(shape: &[usize; 3], pixels: Vec<u8>) -> Result<Picture> {
    match shape {
        [0, ..] | [_, 0, _] => Err(ServeError::Unprocessable("an image without pixels".to_owned())),
        [height, width, _] => Ok(Picture { width: *width, height: *height, pixels }),
    }
}

/// Colours from 0 to 1 as the model takes them; they are as large as it sees.
fn normalised(shape: &[usize; 3], values: &[f32], live: &Live) -> Result<Vec<f32>> {
    let (height, width) = live.facts.resolution;
    if shape[..2] != [height, width] {
        return Err(ServeError::Unprocessable(format!(
            "{INPUT} as FP32 is {height} × {width}, as the model sees it; as UINT8 or BYTES it may have any size"
        )));
    }
    if values.iter().any(|value| !(0.0..=1.0).contains(value)) {
        return Err(ServeError::Unprocessable(format!("{INPUT} as FP32 is from 0 to 1")));
    }
    let (mean, deviation) = (live.pixels.mean, live.pixels.deviation);
    let value = |(place, value): (usize, &f32)| (value - mean[place % 3]) / deviation[place % 3];
    Ok(values.iter().enumerate().map(value).collect())
}

/// Every output that there is.
fn outputs(answered: Answered, server: &Server) -> Result<Vec<Tensor>> {
    let Answered { live, answers, .. } = answered;
    let (facts, count) = (&live.facts, answers.len());
    let tensor = |name: &str, shape: &[usize], values: Values| Tensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        values,
    };
    let (mut probabilities, mut logits, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let (mut entropy, mut ood, mut vectors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut masks, mut sizes) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Answer::Classes(found) => {
                let members: Vec<&[f32]> = found.logits.iter().map(Vec::as_slice).collect();
                let mean = mean_softmax(&members, facts.temperature.unwrap_or(1.0));
                probabilities.extend(mean.iter().map(|probability| *probability as f32));
                logits.extend(found.logits.iter().flatten());
                let told = told(found, facts, &server.options);
                live.metrics.predicted(told.prediction.entropy, told.is_ood == Some(true));
                labels.push(told.label);
                entropy.push(told.prediction.entropy as f32);
                ood.push(told.ood_score as f32);
            }
            Answer::Vectors(found) => vectors.extend(found.into_iter().flatten()),
            Answer::Pixels(map) => {
                masks.extend(map.predicted());
                sizes.push([map.resolution.height, map.resolution.width]);
            }
        }
    }
    let classes = facts.classes.len();
    Ok(match facts.task {
        Task::Classes => vec![
            tensor("probabilities", &[count, classes], Values::Float(probabilities)),
            tensor("label", &[count], Values::Texts(labels)),
            tensor("entropy", &[count], Values::Float(entropy)),
            tensor("ood_score", &[count], Values::Float(ood)),
            tensor("logits", &[count, facts.members, classes], Values::Float(logits)),
        ],
        Task::Texts => {
            let width = vectors.len() / count.max(1);
            vec![tensor("embedding", &[count, width], Values::Float(vectors))]
        }
        Task::Pixels => {
            let [height, width] = sizes.first().copied().unwrap_or_default();
            if sizes.iter().any(|size| *size != [height, width]) {
                let why = "masks of one request are of images of one size".to_owned();
                return Err(ServeError::Unprocessable(why));
            }
            vec![tensor("mask", &[count, height, width], Values::Byte(masks.into()))]
        }
    })
}
