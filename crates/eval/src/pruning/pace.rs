//! How fast two models are, side by side.

use std::{sync::Arc, time::Instant};

use burn::tensor::{Int, Tensor};
use omma_base::Seed;
use omma_data::Selection;
use omma_model::{TEXTS, VisionTransformer, text_tensor};

use super::judge::Judge;
use crate::{
    error::{EvalError, Result},
    inputs::{images_of, pixels_for},
    reader::Unlabelled,
    stream::{Images, Watcher},
};

/// Rounds, in each of which every model sees everything once.
const ROUNDS: usize = 7;
/// Batches of a round.
const BATCHES: usize = 4;

enum Input {
    Images(Tensor<4>),
    Texts(Tensor<2, Int>),
}

/// How fast two models are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Images, or texts, that each takes per second: the medians of the rounds.
    pub per_second: [f64; 2],
    /// How much faster the second is: the median over rounds, of which each has its own answer, whatever else the
    /// machine does meanwhile.
    pub ratio: f64,
}

/// Measures two models, in rounds in which they take turns, on the same images in memory; for the modality of texts,
/// on texts.
pub fn pace(
    models: [&VisionTransformer; 2],
    judge: &Judge,
    modality: Option<usize>,
    watcher: &mut dyn Watcher,
) -> Result<Pace> {
    let (inputs, count) = match modality {
        Some(TEXTS) => texts(models[0], judge)?,
        _ => images(models[0], judge)?,
    };
    watcher.begins("how fast they are", 2 * ROUNDS * count);
    let mut seconds = [Vec::new(), Vec::new()];
    // The first round is for memory and caches.
    for round in 0..=ROUNDS {
        for (model, seconds) in models.iter().zip(&mut seconds) {
            if watcher.stopped() {
                return Err(EvalError::Interrupted);
            }
            let started = Instant::now();
            for input in &inputs {
                run(model, input)?;
            }
            if round > 0 {
                seconds.push(started.elapsed().as_secs_f64());
                watcher.done(count);
            }
        }
    }
    let [first, second] = &seconds;
    let ratios = first.iter().zip(second).map(|(first, second)| first / second.max(1e-9)).collect();
    let per_second = seconds.map(|seconds| count as f64 / median(seconds).max(1e-9));
    Ok(Pace { per_second, ratio: median(ratios) })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn run(model: &VisionTransformer, input: &Input) -> Result<()> {
    let mode = model.config().prediction_mode(Seed::new(0));
    // What is read has been computed.
    let _: Vec<f32> = match input {
        Input::Images(images) if model.reads() => {
            model.embed_images(images.clone(), &mode)?.embeddings.try_into_vec_as()
        }
        Input::Images(images) => {
            model.forward(images.clone(), &mode)?.predictions.logits.try_into_vec_as()
        }
        Input::Texts(ids) => model.embed_texts(ids.clone(), &mode)?.embeddings.try_into_vec_as(),
    }
    .expect("outputs are floats");
    Ok(())
}

fn images(model: &VisionTransformer, judge: &Judge) -> Result<(Vec<Input>, usize)> {
    let data = Selection::spread(&judge.images.data, BATCHES * judge.batch.max(1));
    let data = Arc::new(Unlabelled::new(data));
    let some = Images { data, ..judge.images.clone() };
    let (mut inputs, mut count) = (Vec::new(), 0);
    some.batches(pixels_for(&model.config().image), judge.batch, &mut (), |batch| {
        count += batch.len();
        inputs.push(Input::Images(images_of(batch, judge.device)));
        Ok(())
    })?;
    Ok((inputs, count))
}

fn texts(model: &VisionTransformer, judge: &Judge) -> Result<(Vec<Input>, usize)> {
    let data = &judge.images.data;
    let (text, tokenizer) = match (&model.config().text, judge.tokenizer) {
        (Some(text), Some(tokenizer)) => (text, tokenizer),
        _ => return Err(EvalError::NoTexts { data: judge.images.name.clone() }),
    };
    let mut texts = judge.prompts();
    let most = BATCHES * judge.batch.max(1);
    for index in 0..data.len().min(most) {
        texts.extend(data.captions(index)?);
    }
    if texts.is_empty() {
        return Err(EvalError::NoTexts { data: judge.images.name.clone() });
    }
    texts.truncate(most);
    let inputs = texts.chunks(judge.batch.max(1)).map(|texts| {
        let (ids, _) = tokenizer.encode_all(texts, text.length);
        Input::Texts(text_tensor(ids, text.length, judge.device))
    });
    Ok((inputs.collect(), texts.len()))
}
