//! Predictions that are drawn: MC samples, and routers with noise.

use burn::tensor::Device;
use omma_base::Seed;
use omma_data::{Batch, Picture};
use omma_eval::System;
use omma_model::{apply_settings, preset, with_values};

/// A small model with a classifier, and settings.
fn system(settings: &[&str]) -> System {
    let small = ["resolution=16", "patch=8", "width=16", "depth=4", "heads=2", "mlp=32"];
    let apart = ["moe.start.shared=false"];
    let config = preset("vmoe-tiny").unwrap();
    let config = apply_settings(&config, &[&small[..], &apart, settings].concat()).unwrap();
    let model = config.init(Seed::new(0), &Device::flex()).unwrap();
    let model = with_values(model, |parameter| {
        let values = (0..parameter.shape.iter().product()).map(|place: usize| (place as f32).sin());
        Ok((parameter.name == "head.weight").then(|| values.collect()))
    });
    System::new(vec![("m".to_owned(), model.unwrap())], &Device::flex()).unwrap()
}

/// The members' logits for the same two pictures, as a batch that begins at `before`.
fn logits(system: &System, before: usize) -> Vec<f32> {
    let pictures = [[200, 10, 10], [10, 200, 90]].map(|colour| Picture::filled(16, 16, colour));
    let mut batch = Batch::unlabelled(&pictures, before, &system.pixels());
    let outputs = system.logits(&mut batch).unwrap();
    (0..2)
        .flat_map(|image| outputs.of_image(image).flatten().copied().collect::<Vec<_>>())
        .collect()
}

/// Samples that every batch had in common would make the mean over a data set the mean of a few models.
#[test]
fn samples_and_noise_change_from_batch_to_batch_and_repeat_with_their_seed() {
    for settings in [&["moe.dropout=0.5", "mc_samples=2"][..], &["moe.inference_noise=8"]] {
        let drawn = system(settings);
        assert_eq!(logits(&drawn, 0), logits(&drawn, 0), "{settings:?}");
        assert_ne!(logits(&drawn, 0), logits(&drawn, 2), "{settings:?}");
        let other = system(settings).drawn_from(Seed::new(1));
        assert_ne!(logits(&drawn, 0), logits(&other, 0), "{settings:?}");
    }
    let plain = system(&["moe.dropout=0.5", "moe.noise=8"]);
    assert_eq!(logits(&plain, 0), logits(&plain, 2), "nothing is drawn");
}
