//! Models that are too large to be counted.

use super::{ModelConfig, MoeConfig};
use crate::error::{ModelError, Result};

impl ModelConfig {
    /// Fails where operations, parameters or the values of a layer could not be counted in 64 bits. Each
    /// number alone is within its range; together they may mean a model that no machine could hold.
    pub(super) fn check_work(&self) -> Result<()> {
        let (image, encoder) = (&self.image, &self.encoder);
        let moe = self.moe();
        let of_moe = |size: fn(&MoeConfig) -> usize| moe.map_or(1.0, |moe| size(moe) as f64);
        let mimo = self.images_per_input() as f64;
        let repetition = self.mimo.as_ref().map_or(1.0, |mimo| mimo.batch_repetition as f64);
        let ensemble = encoder.batch_ensemble.as_ref().map_or(1.0, |one| one.members as f64);
        let members = of_moe(MoeConfig::members)
            * encoder.predictions_per_copy() as f64
            * mimo
            * repetition
            * ensemble
            * encoder.mc_samples as f64;
        let patches = |(rows, columns): (usize, usize)| rows as f64 * columns as f64;
        let tokens = patches(image.grid(image.resolution)).max(patches(image.position_grid()))
            + image.prefix_tokens() as f64;
        let width = self.feature_width() as f64;
        let hidden = encoder.mlp.max(moe.and_then(|moe| moe.hidden).unwrap_or(0)) as f64;
        // Rows that go through experts, with every place of every capacity taken, and columns of gates.
        let experts = of_moe(|moe| moe.router.experts);
        let slots = experts * of_moe(|moe| moe.slots().unwrap_or(1));
        let capacities = moe.into_iter().flat_map(MoeConfig::capacities);
        let (ratio, multiple) =
            capacities.fold((1.0_f64, 1.0_f64), |(ratio, multiple), capacity| {
                (ratio.max(capacity.factor), multiple.max(capacity.multiple_of as f64))
            });
        let rows = tokens * (1.0 + of_moe(MoeConfig::experts_per_token) * ratio) + slots * multiple;
        let block = tokens * width * (2.0 * tokens + 4.0 * width + 4.0 * slots)
            + 2.0 * rows * width * hidden;
        let pixels = (image.patch * image.patch) as f64 * image.channels as f64 * mimo;
        let representation =
            self.head.classifier().and_then(|head| head.representation).unwrap_or(0);
        let embedding = self.head.contrast().map_or(0, |head| head.embedding);
        let outputs = self.classes().max(representation).max(embedding) as f64 * mimo;
        let depth = encoder.depth as f64;
        let work = members * (depth * block + tokens * width * pixels + width * (outputs + width));
        let words = self.text.as_ref().map_or(0, |text| text.vocabulary + text.length) as f64;
        let parameters = depth * experts * width * (hidden + width + slots)
            + width * (tokens + pixels + outputs + words);
        // Training takes some 200 operations per value.
        const MOST: f64 = (u64::MAX / 512) as f64;
        let too_large = |what: &str, count: f64| ModelError::TooLarge {
            what: format!("about {count:.0e} {what}"),
        };
        match () {
            _ if parameters > MOST => Err(too_large("parameters", parameters)),
            _ if work > MOST => Err(too_large("operations per image", work)),
            _ => Ok(()),
        }
    }
}
