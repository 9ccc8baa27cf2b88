//! Single images.

use omma_data::{Batch, Picture};
use serde::Serialize;

use crate::{
    error::{EvalError, Result},
    metrics::{entropy, mean_of_members, softmax},
    segment::{PixelMap, Segmenting, Windows},
    system::System,
};

/// A class and how likely it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Guess {
    /// The class's name, or its number where names are not known.
    pub class: String,
    /// Mean of the members' probabilities.
    pub probability: f64,
    /// Standard deviation of the members' probabilities; 0 for one member.
    pub spread: f64,
}

/// What a system makes of one image.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The likeliest classes, the likeliest first.
    pub top: Vec<Guess>,
    /// Entropy of the mean probabilities, in nats.
    pub entropy: f64,
    /// What of it is disagreement between members: the entropy of the mean less the mean of the
    /// entropies.
    pub mutual_information: f64,
    /// How many predictions the mean is of.
    pub members: usize,
}

impl Prediction {
    /// Of one image, with at most `top` classes.
    ///
    /// - `logits`: `[M]` of `[classes]`
    /// - `temperature`: what these are divided by; 1 for a prediction as it is
    /// - `names`: of the classes; numbers where it is too short
    pub fn of(logits: &[&[f32]], temperature: f64, names: &[String], top: usize) -> Self {
        let members: Vec<Vec<f64>> =
            logits.iter().map(|logits| softmax(logits, temperature)).collect();
        prediction(&members, names, top)
    }
}

/// The likeliest classes of pictures, at most `top` each.
///
/// - `before`: pictures that came before these; what is drawn for predictions follows from it
/// - `names`: of the classes; numbers where it is too short
pub fn predict(
    system: &System,
    pictures: &[Picture],
    before: usize,
    names: &[String],
    top: usize,
) -> Result<Vec<Prediction>> {
    system.check_classes("the pictures", system.classes())?;
    let mut batch = Batch::unlabelled(pictures, before, &system.pixels());
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let outputs = system.logits(&mut batch)?;
    if let Some(index) = outputs.first_broken() {
        let (model, data) = (system.name(), "the pictures".to_owned());
        return Err(EvalError::NotFinite { model, data, index });
    }
    let predictions = (0..pictures.len()).map(|image| {
        let logits: Vec<&[f32]> = outputs.of_image(image).collect();
        Prediction::of(&logits, 1.0, names, top)
    });
    Ok(predictions.collect())
}

/// How likely every class is at every pixel of pictures, each as large as it is.
///
/// - `before`: pictures that came before these; what is drawn for predictions follows from it
/// - `batch`: windows per forward pass
pub fn segment(
    system: &System,
    pictures: &[Picture],
    before: usize,
    windows: Windows,
    batch: usize,
) -> Result<Vec<PixelMap>> {
    if !system.labels_pixels() {
        return Err(EvalError::LabelsImages { model: system.name() });
    }
    let segmenting = Segmenting { system, windows, batch, with_experts: false };
    let pictures: Vec<_> = pictures.iter().map(|one| (one, one.resolution())).collect();
    let found = segmenting.run(&pictures, before, |_| {})?;
    Ok(found.into_iter().map(|one| one.map).collect())
}

fn prediction(members: &[Vec<f64>], names: &[String], top: usize) -> Prediction {
    let mean = mean_of_members(members.iter().map(Vec::as_slice));
    let count = members.len().max(1) as f64;
    let spread = |class: usize| {
        let squares: f64 = members.iter().map(|own| (own[class] - mean[class]).powi(2)).sum();
        (squares / count).sqrt()
    };
    let mut order: Vec<usize> = (0..mean.len()).collect();
    order.sort_by(|a, b| mean[*b].total_cmp(&mean[*a]));
    let guess = |class: usize| Guess {
        class: names.get(class).cloned().unwrap_or_else(|| class.to_string()),
        probability: mean[class],
        spread: spread(class),
    };
    let own: f64 = members.iter().map(|own| entropy(own)).sum::<f64>() / count;
    Prediction {
        top: order.into_iter().take(top).map(guess).collect(),
        entropy: entropy(&mean),
        mutual_information: (entropy(&mean) - own).max(0.0),
        members: members.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_sorted_and_disagreement_is_seen() {
        let members = [vec![0.7, 0.2, 0.1], vec![0.1, 0.2, 0.7]];
        let names = ["cat".to_owned(), "dog".to_owned()];
        let both = prediction(&members, &names, 2);
        assert_eq!(both.top.len(), 2);
        assert_eq!(both.top[0].class, "cat");
        assert!((both.top[0].probability - 0.4).abs() < 1e-12);
        assert!((both.top[0].spread - 0.3).abs() < 1e-12);
        assert_eq!(both.top[1].class, "2");
        assert!(both.mutual_information > 0.1);
        let alone = prediction(&members[..1], &names, 9);
        assert_eq!((alone.top.len(), alone.mutual_information), (3, 0.0));
        assert_eq!(alone.top[0].spread, 0.0);
    }
}
