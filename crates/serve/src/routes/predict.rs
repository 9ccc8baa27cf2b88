//! `POST /predict`: what is in images, and how sure that is.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use omma_eval::{Guess, Prediction, metrics::mean_softmax};
use serde::Serialize;

use super::pictures::{decoded, values};
use crate::{
    error::{Result, ServeError},
    experts::ExpertMap,
    model::{Facts, Task},
    options::Options,
    predictor::{Answer, Ask, Classified, LabelNames},
    server::{Answered, Server, Timing},
    wishes::Wishes,
};

/// What is answered.
#[derive(Debug, Serialize)]
struct Reply<'a> {
    model: &'a str,
    version: u64,
    /// One per image, in their order.
    predictions: Vec<Told>,
    timing: Timing,
    /// Why images pass one by one, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    alone: Option<&'static str>,
}

/// What is said of an image.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    /// The likeliest class.
    pub(crate) label: String,
    /// How likely it is; calibrated where a temperature is known.
    pub(crate) probability: f64,
    /// Without a temperature.
    #[serde(flatten)]
    pub(crate) prediction: Prediction,
    /// The same at the temperature that was fitted, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calibrated: Option<Calibrated>,
    /// How far out of the distribution the image is taken to be; more is further.
    pub(crate) ood_score: f64,
    /// Whether that is above the threshold, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) is_ood: Option<bool>,
    /// Which expert took which patch, layer by layer, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) experts: Option<Vec<ExpertMap>>,
}

/// A prediction at another temperature.
#[derive(Debug, Serialize)]
pub(crate) struct Calibrated {
    temperature: f64,
    top: Vec<Guess>,
    entropy: f64,
}

impl Told {
    /// - `classes`: names of what the logits are of
    fn of(
        found: Classified,
        classes: &[String],
        temperature: Option<f64>,
        top: usize,
        options: &Options,
    ) -> Self {
        let logits: Vec<&[f32]> = found.logits.iter().map(Vec::as_slice).collect();
        let prediction = Prediction::of(&logits, 1.0, classes, top);
        let calibrated = temperature.map(|temperature| {
            let Prediction { top, entropy, .. } =
                Prediction::of(&logits, temperature, classes, top);
            Calibrated { temperature, top, entropy }
        });
        let ood_score = options.ood_score.of(&logits, &mean_softmax(&logits, 1.0));
        let best =
            calibrated.as_ref().map_or(&prediction.top, |calibrated| &calibrated.top).first();
        Self {
            label: best.map(|best| best.class.clone()).unwrap_or_default(),
            probability: best.map_or(0.0, |best| best.probability),
            is_ood: options.ood_threshold.map(|threshold| ood_score > threshold),
            prediction,
            calibrated,
            ood_score,
            experts: found.experts,
        }
    }
}

/// What is said of an image by a model's own classes.
pub(crate) fn told(found: Classified, facts: &Facts, options: &Options) -> Told {
    Told::of(found, &facts.classes, facts.temperature, 1, options)
}

/// The classes that an image is told apart by: the model's own, or those that are named.
fn labels(facts: &Facts, wishes: &Wishes) -> Result<Option<LabelNames>> {
    let wrong = |why: String| Err(ServeError::Unprocessable(why));
    let name = &facts.name;
    match (facts.task, wishes.labels.is_empty()) {
        (Task::Pixels, _) => wrong(format!("{name} labels pixels, not images; ask for /segment")),
        (Task::Classes, false) => wrong(format!(
            "{name} does not compare images with texts; it has classes of its own, no labels"
        )),
        (Task::Classes, true) if facts.classes.is_empty() => {
            wrong(format!("{name} has no classifier"))
        }
        (Task::Classes, true) => Ok(None),
        (Task::Texts, true) => {
            wrong(format!("{name} has no classes of its own; name some with labels"))
        }
        (Task::Texts, false) => Ok(Some(wishes.labels.clone().into())),
    }
}

pub(super) async fn predict(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response> {
    let arrived = server.arrived(request).await?;
    let wishes = Wishes::of(&arrived, &server.options)?.with_images()?;
    let model = server.model(wishes.model.as_deref())?;
    labels(&model.live().facts, &wishes)?;
    let (top, count, deadline) = (wishes.top, wishes.images.len(), wishes.deadline);
    let named = wishes.labels.clone();
    let prepare = move |live: &crate::model::Live| {
        let labels = labels(&live.facts, &wishes)?;
        let ask = |(place, bytes)| {
            let values = values(&decoded(bytes, place)?, &live.pixels);
            Ok(Ask::Classes { values, labels: labels.clone(), experts: wishes.experts })
        };
        wishes.images.iter().enumerate().map(ask).collect()
    };
    let Answered { live, answers, timing } = server.ask(model, count, deadline, prepare).await?;
    let facts = &live.facts;
    let classes = if named.is_empty() { &facts.classes } else { &named };
    let mut predictions = Vec::with_capacity(count);
    for answer in answers {
        let Answer::Classes(found) = answer else { continue };
        let told = Told::of(found, classes, facts.temperature, top, &server.options);
        live.metrics.predicted(told.prediction.entropy, told.is_ood == Some(true));
        predictions.push(told);
    }
    let (model, version) = (facts.name.as_str(), facts.version);
    let reply = Reply { model, version, predictions, timing, alone: facts.alone };
    let mut response = Json(reply).into_response();
    response.extensions_mut().insert(timing);
    Ok(response)
}
