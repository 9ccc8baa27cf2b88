//! `POST /embed` and `POST /search`: images and texts as vectors, and photos found by them.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::pictures::{decoded, values};
use crate::{
    error::{Result, ServeError},
    model::{Facts, Live, Task},
    predictor::{Answer, Ask},
    server::{Answered, Server},
    wishes::Wishes,
};

fn check(facts: &Facts) -> Result<()> {
    match facts.task {
        Task::Texts => Ok(()),
        _ => Err(ServeError::Unprocessable(format!(
            "{} does not compare images with texts, and makes no vectors to compare",
            facts.name
        ))),
    }
}

/// The vectors of all images, then of all texts.
async fn vectors(server: &Server, wishes: Wishes) -> Result<(Answered, Vec<Vec<f32>>)> {
    let model = server.model(wishes.model.as_deref())?;
    check(&model.live().facts)?;
    let has_texts = usize::from(!wishes.texts.is_empty());
    let (count, deadline) = (wishes.images.len() + has_texts, wishes.deadline);
    if count == 0 {
        return Err(ServeError::Unprocessable("there is neither an image nor a text".to_owned()));
    }
    let prepare = move |live: &Live| {
        check(&live.facts)?;
        let image = |(place, bytes)| Ok(Ask::Vector(values(&decoded(bytes, place)?, &live.pixels)));
        let mut asks = wishes.images.iter().enumerate().map(image).collect::<Result<Vec<Ask>>>()?;
        if !wishes.texts.is_empty() {
            asks.push(Ask::Texts(wishes.texts.clone()));
        }
        Ok(asks)
    };
    let mut answered = server.ask(model, count, deadline, prepare).await?;
    let mut rows = Vec::new();
    for answer in std::mem::take(&mut answered.answers) {
        if let Answer::Vectors(vectors) = answer {
            rows.extend(vectors);
        }
    }
    Ok((answered, rows))
}

pub(super) async fn embed(State(server): State<Arc<Server>>, request: Request) -> Result<Response> {
    let arrived = server.arrived(request).await?;
    let wishes = Wishes::of(&arrived, &server.options)?;
    let (Answered { live, timing, .. }, rows) = vectors(&server, wishes).await?;
    let reply = json!({ "model": live.facts.name, "embeddings": rows, "timing": timing });
    let mut response = Json(reply).into_response();
    response.extensions_mut().insert(timing);
    Ok(response)
}

pub(super) async fn search(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response> {
    let arrived = server.arrived(request).await?;
    let wishes = Wishes::of(&arrived, &server.options)?;
    if wishes.images.len() + wishes.texts.len() != 1 {
        let why = "look for one text or for one image".to_owned();
        return Err(ServeError::Unprocessable(why));
    }
    let model = server.model(wishes.model.as_deref())?;
    if model.live().photos.is_none() {
        return Err(ServeError::Unprocessable(format!(
            "{} has no photos to search; `omma serve --photos FOLDER` gives it some",
            model.name
        )));
    }
    let top = wishes.top;
    let (Answered { live, timing, .. }, rows) = vectors(&server, wishes).await?;
    let found =
        live.photos.as_ref().zip(rows.first()).map(|(photos, row)| photos.nearest(row, top));
    let photos = live.facts.photos;
    let reply =
        json!({ "model": live.facts.name, "photos": photos, "results": found, "timing": timing });
    let mut response = Json(reply).into_response();
    response.extensions_mut().insert(timing);
    Ok(response)
}
