//! The mean of several models' weights (paper 002 App. A.3).

use std::collections::HashMap;

use burn::tensor::Device;
use omma_base::Seed;
use serde_json::Value;

use super::upcycle::by_name;
use crate::{
    config::{ModelConfig, short_name},
    error::{ModelError, Result},
    parameters::{ParameterValues, with_values},
    vit::VisionTransformer,
};

/// A model whose weights are the mean of others', each taken as often as its count says. The sums are in double
/// precision and in the order of `models`: the same shares give the same bits, and the mean of one is that one.
///
/// - `models`: of one configuration; those that are taken 0 times are left out
pub fn soup(models: &[(&VisionTransformer, usize)], device: &Device) -> Result<VisionTransformer> {
    let taken: Vec<&(&VisionTransformer, usize)> =
        models.iter().filter(|(_, count)| *count > 0).collect();
    let Some((first, _)) = taken.first() else { return Err(ModelError::EmptySoup) };
    let config = first.config();
    for (model, _) in &taken {
        if let Some((setting, first, other)) = first_difference(config, model.config()) {
            return Err(ModelError::Soup { setting, first, other });
        }
    }
    let shared = taken.iter().fold(0, |shared, (_, count)| greatest_common(shared, *count));
    let counts = taken.iter().map(|(_, count)| (count / shared) as f64);
    let total: f64 = counts.clone().sum();
    let values: Vec<(HashMap<String, ParameterValues>, f64)> =
        taken.iter().map(|(model, _)| by_name(model)).zip(counts).collect();
    with_values(config.init(Seed::new(0), device)?, |parameter| {
        // What is added to -0 keeps its sign, also where it is -0.
        let mut sums = vec![-0.0; parameter.shape.iter().product()];
        for (values, count) in &values {
            let own = values[&parameter.name].read();
            sums.iter_mut().zip(own).for_each(|(sum, value)| *sum += f64::from(value) * count);
        }
        Ok(Some(sums.into_iter().map(|sum| (sum / total) as f32).collect()))
    })
}

fn greatest_common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common(b, a % b) }
}

/// The first setting in which two configurations differ, by its short name, and its value in both.
pub fn first_difference(
    first: &ModelConfig,
    other: &ModelConfig,
) -> Option<(String, String, String)> {
    let tree = |config: &ModelConfig| serde_json::to_value(config).expect("it can be written");
    let (key, first, other) = differing("", &tree(first), &tree(other))?;
    Some((short_name(&key), first, other))
}

fn differing(key: &str, first: &Value, other: &Value) -> Option<(String, String, String)> {
    let (Value::Object(a), Value::Object(b)) = (first, other) else {
        return (first != other).then(|| (key.to_owned(), first.to_string(), other.to_string()));
    };
    let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
    keys.into_iter().find_map(|name| {
        let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
        let of =
            |tree: &serde_json::Map<String, Value>| tree.get(name).unwrap_or(&Value::Null).clone();
        differing(&key, &of(a), &of(b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{apply_settings, parameter_values, preset};

    const SMALL: &[&str] =
        &["width=8", "heads=2", "mlp=8", "patch=16", "moe.hidden=4", "moe.experts=3"];

    fn model(seed: u64, settings: &[&str]) -> VisionTransformer {
        let settings: Vec<&str> = SMALL.iter().chain(settings).copied().collect();
        let config = apply_settings(&preset("vmoe-tiny").unwrap(), &settings).unwrap();
        config.init(Seed::new(seed), &Device::flex()).unwrap()
    }

    fn bits(model: &VisionTransformer) -> Vec<(String, Vec<u32>)> {
        let values = parameter_values(model).into_iter();
        let bits = |value: ParameterValues| value.read().into_iter().map(f32::to_bits).collect();
        values.map(|value| (value.parameter.name.clone(), bits(value))).collect()
    }

    #[test]
    fn the_mean_of_one_is_that_one_to_the_bit() {
        let device = Device::flex();
        let (one, other) = (model(1, &[]), model(2, &[]));
        for count in [1, 2, 3, 7] {
            let mean = soup(&[(&other, 0), (&one, count)], &device).unwrap();
            assert_eq!(bits(&mean), bits(&one), "{count} times");
        }
        let halves = soup(&[(&one, 3), (&one, 4)], &device).unwrap();
        assert_eq!(bits(&halves), bits(&one));
        let (few, many) = ([(&one, 1), (&other, 2)], [(&one, 3), (&other, 6)]);
        let [few, many] = [few, many].map(|models| bits(&soup(&models, &device).unwrap()));
        assert_eq!(few, many);
    }

    #[test]
    fn a_soup_is_the_mean_of_every_weight() {
        let (one, other) = (model(1, &[]), model(2, &[]));
        let mean = soup(&[(&one, 1), (&other, 3)], &Device::flex()).unwrap();
        let values = |model| parameter_values(model).into_iter().map(|value| value.read());
        let mut seen = 0;
        for ((mean, a), b) in values(&mean).zip(values(&one)).zip(values(&other)) {
            for ((mean, a), b) in mean.into_iter().zip(a).zip(b) {
                let expected = (f64::from(a) + 3.0 * f64::from(b)) / 4.0;
                assert_eq!(mean, expected as f32);
                seen += usize::from(a != b);
            }
        }
        assert!(seen > 100, "{seen} weights are not alike");
        assert_eq!(mean.config(), one.config());
    }

    #[test]
    fn models_of_two_configurations_are_refused_by_their_first_difference() {
        let (one, other) = (model(1, &[]), model(1, &["moe.k=1", "mlp=16"]));
        let message = soup(&[(&one, 1), (&other, 1)], &Device::flex()).unwrap_err().to_string();
        let found = first_difference(one.config(), other.config()).unwrap();
        assert!(["moe.k", "mlp"].contains(&found.0.as_str()), "{found:?}");
        assert!(message.contains(&found.0), "{message}");
        assert_eq!(first_difference(one.config(), one.config()), None);
        let dense = model(1, &["moe=null"]);
        assert!(first_difference(one.config(), dense.config()).unwrap().0.starts_with("moe"));
        assert!(soup(&[(&one, 0)], &Device::flex()).is_err());
    }
}
