//! A classifier from texts alone.

use super::embeddings::{Embeddings, dot};

/// What classes are called in several ways, as one direction per class, `[C, E]`: every prompt is brought to
/// length 1, the mean over a class's prompts is taken, and that is brought to length 1 again. A mean of nothing,
/// as of two prompts that are opposites, stays nothing.
///
/// - `prompts`: `[C · P, E]`, the prompts of a class one after the other
/// - `per_class`: `P`
pub fn zero_shot_classifier(prompts: &Embeddings, per_class: usize) -> Embeddings {
    assert!(per_class > 0 && prompts.len().is_multiple_of(per_class), "as many prompts per class");
    let mut values = Vec::with_capacity(prompts.values().len() / per_class);
    for class in prompts.values().chunks_exact(per_class * prompts.width()) {
        let mut mean = vec![0.0_f64; prompts.width()];
        for prompt in class.chunks_exact(prompts.width()) {
            let length = dot(prompt, prompt).sqrt();
            if length > 0.0 {
                let parts = mean.iter_mut().zip(prompt);
                parts.for_each(|(sum, value)| *sum += f64::from(*value) / length);
            }
        }
        let length = mean.iter().map(|value| value * value).sum::<f64>().sqrt();
        let unit = if length > 0.0 { 1.0 / length } else { 0.0 };
        values.extend(mean.iter().map(|value| (value * unit) as f32));
    }
    Embeddings::new(values, prompts.width())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_prompt_counts_no_more_than_a_short_one() {
        let prompts = Embeddings::new(vec![100.0, 0.0, 0.0, 0.5], 2);
        let half = 0.5_f32.sqrt();
        assert_eq!(zero_shot_classifier(&prompts, 2).values(), [half, half]);
        assert_eq!(zero_shot_classifier(&prompts, 1).values(), [1.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn opposites_and_empty_prompts_are_no_direction() {
        let opposites = Embeddings::new(vec![2.0, 0.0, -1.0, 0.0], 2);
        assert_eq!(zero_shot_classifier(&opposites, 2).values(), [0.0, 0.0]);
        let empty = Embeddings::new(vec![0.0, 0.0, 0.0, 3.0], 2);
        assert_eq!(zero_shot_classifier(&empty, 2).values(), [0.0, 1.0]);
    }
}
