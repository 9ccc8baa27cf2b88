//! Runs a checkpoint on images and keeps what every stage says.
//!
//! ```sh
//! cargo run --release --example stages -- CHECKPOINT IMAGES.safetensors OUTPUT.safetensors
//! ```
//!
//! `IMAGES` has one tensor `images [B, H, W, channels]`; `OUTPUT` gets `embedded`, `block_0` and so on,
//! `encoded`, `features` and `logits`.

use std::{collections::BTreeMap, error::Error, path::Path};

use burn::tensor::{Device, Tensor, TensorData};
use omma_model::{Mode, Stage, checkpoint, open_tensors};
use safetensors::{Dtype, tensor::TensorView};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [checkpoint, images, output] = arguments.as_slice() else {
        return Err("usage: stages CHECKPOINT IMAGES.safetensors OUTPUT.safetensors".into());
    };
    let device = Device::flex();
    let model = checkpoint::load(Path::new(checkpoint), &device)?;
    let mut file = open_tensors(Path::new(images))?;
    let shape = file.tensors().get("images").ok_or("no tensor \"images\"")?.shape.clone();
    let images = TensorData::new(file.read("images")?, shape.as_slice());
    let images = Tensor::<4>::from_data(images, &device);

    let mut kept: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    let mut keep = |name: String, tensor: &Tensor<3>| {
        let values: Vec<f32> = tensor.clone().try_into_vec_as().expect("floats");
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        kept.insert(name, (tensor.dims().to_vec(), bytes));
    };
    let result = model.forward_observed(images, &Mode::Inference, |stage, tokens| {
        let name = match stage {
            Stage::Embedded => "embedded".to_owned(),
            Stage::Block(index) => format!("block_{index}"),
            Stage::Encoded => "encoded".to_owned(),
        };
        keep(name, tokens);
    })?;
    keep("features".to_owned(), &result.features);
    keep("logits".to_owned(), &result.predictions.logits);
    let views = kept.iter().map(|(name, (shape, bytes))| {
        Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?))
    });
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    safetensors::tensor::serialize_to_file(views, None, Path::new(output))?;
    Ok(())
}
