//! Tensors of plans as words that processes say to each other: a shape and numbers, on the host.

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

pub(super) fn serialize<const D: usize, S: Serializer>(
    tensor: &Tensor<D>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let values: Vec<f32> = tensor.clone().try_into_vec_as().expect("weights are floats");
    (tensor.dims().as_slice(), values).serialize(serializer)
}

pub(super) fn deserialize<'de, const D: usize, De: Deserializer<'de>>(
    deserializer: De,
) -> Result<Tensor<D>, De::Error> {
    let (shape, values) = <(Vec<usize>, Vec<f32>)>::deserialize(deserializer)?;
    if shape.len() != D || shape.iter().product::<usize>() != values.len() {
        return Err(De::Error::custom(format!(
            "{} values have not the shape {shape:?}",
            values.len()
        )));
    }
    Ok(Tensor::from_data(TensorData::new(values, shape), &Device::flex()))
}
