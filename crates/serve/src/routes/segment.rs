//! `POST /segment`: the class of every pixel, as a PNG.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use omma_data::{Picture, formats::mask_png};
use omma_eval::{PixelMap, colour, overlaid};
use serde_json::json;

use super::pictures::{decoded, to_segment};
use crate::{
    error::{Result, ServeError},
    model::{Facts, Live, Task},
    predictor::Answer,
    server::{Answered, Server},
    wishes::Wishes,
};

/// Where the shares of classes are, as JSON.
const SHARES: HeaderName = HeaderName::from_static("x-omma-classes");
/// Classes that are named there.
const MOST_SHARES: usize = 32;

fn check(facts: &Facts) -> Result<()> {
    match facts.task {
        Task::Pixels => Ok(()),
        _ => Err(ServeError::Unprocessable(format!(
            "{} labels images, not pixels; ask for /predict",
            facts.name
        ))),
    }
}

/// Answers with a mask whose values are classes, or with `overlay` the picture under its classes' colours. How much of
/// the picture each class has, and how sure that is, is said in a header.
pub(super) async fn segment(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response> {
    let arrived = server.arrived(request).await?;
    let wishes = Wishes::of(&arrived, &server.options)?.with_images()?;
    if wishes.images.len() > 1 {
        return Err(ServeError::Unprocessable("a mask is of one image; send one".to_owned()));
    }
    let model = server.model(wishes.model.as_deref())?;
    check(&model.live().facts)?;
    let (overlay, image) = (wishes.overlay, wishes.images[0].clone());
    let prepare = move |live: &Live| {
        check(&live.facts)?;
        Ok(vec![to_segment(decoded(&image, 0)?, &live.facts)?])
    };
    let original = wishes.images[0].clone();
    let Answered { live, mut answers, timing } =
        server.ask(model, 1, wishes.deadline, prepare).await?;
    let Some(Answer::Pixels(map)) = answers.pop() else {
        return Err(ServeError::Failed("the model has no answer to this".to_owned()));
    };
    let names = live.facts.classes.clone();
    let draw = move || {
        let shares = shares(&map, &names);
        let picture = if overlay { Some(decoded(&original, 0)?) } else { None };
        Ok((png(&map, picture.as_ref())?, shares))
    };
    let (png, shares) = server.blocking(wishes.deadline, draw).await?;
    let mut response = ([(header::CONTENT_TYPE, "image/png")], png).into_response();
    if let Ok(shares) = HeaderValue::from_str(&shares) {
        response.headers_mut().insert(SHARES, shares);
    }
    response.extensions_mut().insert(timing);
    Ok(response)
}

fn png(map: &PixelMap, under: Option<&Picture>) -> Result<Vec<u8>> {
    let classes = map.predicted();
    let Some(picture) = under else {
        return Ok(mask_png(&classes, map.resolution, |class| colour(class.into())));
    };
    let colours = classes.iter().map(|class| Some(colour(usize::from(*class))));
    overlaid(picture, colours).png().map_err(|error| ServeError::Failed(error.to_string()))
}

/// `{"confidence": 0.9, "classes": [{"class": "sky", "share": 0.4, "colour": "#88aaff"}]}`, the largest first.
fn shares(map: &PixelMap, names: &[String]) -> String {
    let pixels = map.predicted();
    let mut counts = vec![0_usize; map.classes];
    pixels.iter().for_each(|class| counts[usize::from(*class)] += 1);
    let mut order: Vec<usize> = (0..map.classes).filter(|class| counts[*class] > 0).collect();
    order.sort_by_key(|class| std::cmp::Reverse(counts[*class]));
    let share = |class: usize| {
        let [red, green, blue] = colour(class);
        // A header is plain text; other letters are kept as JSON's escapes.
        let name: String = names.get(class).map_or_else(|| class.to_string(), String::clone);
        json!({
            "class": name.escape_default().to_string(),
            "share": counts[class] as f64 / pixels.len().max(1) as f64,
            "colour": format!("#{red:02x}{green:02x}{blue:02x}"),
        })
    };
    let classes: Vec<_> = order.into_iter().take(MOST_SHARES).map(share).collect();
    json!({ "confidence": map.mean_confidence(), "classes": classes }).to_string()
}
