//! From a batch of data to what a model takes.

use burn::tensor::{Device, Tensor, TensorData};
use omma_data::{Batch, Pixels};
use omma_model::ImageConfig;

/// What pixels become for a model.
pub fn pixels_for(image: &ImageConfig) -> Pixels {
    let (mean, deviation) = (image.normalisation.mean, image.normalisation.deviation);
    Pixels { resolution: image.resolution, mean, deviation }
}

/// `[B, H, W, 3]`: the images of a batch, which gives its pixels away.
pub fn images_of(batch: &mut Batch, device: &Device) -> Tensor<4> {
    let shape = [batch.len(), batch.resolution.height, batch.resolution.width, 3];
    Tensor::from_data(TensorData::new(std::mem::take(&mut batch.pixels), shape), device)
}
