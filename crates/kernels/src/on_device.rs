//! Forms for devices, where starting an operation and moving bytes cost more than arithmetic; from plain Burn
//! operations, like the [twins](crate::portable), and held to them by tests.

use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData};
use omma_base::transfer;

use crate::{Activation, Dispatch, Dropout, ExpertParameters, portable};

/// Buffers of all experts have this many rows more or less: products of odd sizes are slow.
const ROWS: usize = 8;

/// [`crate::expert_mlp`] with all experts in one product: every expert has a buffer as large as the busiest needs.
/// Where this would more than double the work, one expert after the other.
pub fn expert_mlp(
    tokens: Tensor<2>,
    weights: Tensor<1>,
    parameters: ExpertParameters,
    dispatch: &Dispatch,
    form: Activation,
    dropout: Option<Dropout>,
) -> Tensor<2> {
    let experts = dispatch.n_experts();
    let busiest = dispatch.offsets().windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let size = busiest.next_multiple_of(ROWS);
    let uneven = experts * size > 2 * dispatch.tokens().len() + experts * ROWS;
    if busiest == 0 || uneven || dispatch.origins().is_some() {
        return portable::expert_mlp(tokens, weights, parameters, dispatch, form, dropout);
    }
    stacked(tokens, weights, parameters, (dispatch, size), form, dropout)
}

/// - `size`: rows of every expert's buffer
fn stacked(
    tokens: Tensor<2>,
    weights: Tensor<1>,
    parameters: ExpertParameters,
    (dispatch, size): (&Dispatch, usize),
    form: Activation,
    dropout: Option<Dropout>,
) -> Tensor<2> {
    let device = tokens.device();
    let [experts, inputs, hidden] = parameters.up.dims();
    let [_, _, outputs] = parameters.down.dims();
    let own = |expert: usize| dispatch.offsets()[expert]..dispatch.offsets()[expert + 1];
    // What a buffer has too much is computed from the first token, and not read.
    let mut of_buffer = vec![0_i32; experts * size];
    let mut places = Vec::with_capacity(dispatch.tokens().len());
    for expert in 0..experts {
        for (row, token) in dispatch.tokens()[own(expert)].iter().enumerate() {
            let place = expert * size + row;
            of_buffer[place] = *token as i32;
            places.push(place as i32);
        }
    }
    let rows = dispatch.tokens().iter().map(|token| *token as i32).collect();
    let zeros = Tensor::zeros([dispatch.n_tokens(), outputs], (&device, weights.dtype()));
    let (of_rows, parameters) = (tokens.dtype(), parameters.cast(tokens.dtype()));

    let buffers = tokens.select(0, index(of_buffer, &device)).reshape([experts, size, inputs]);
    let bias = |bias: Tensor<2>| bias.unsqueeze_dim::<3>(1);
    let before = buffers.matmul(parameters.up) + bias(parameters.up_bias);
    let mut activated = portable::activate(before, form);
    if let Some(dropout) = dropout {
        let factor = |place: usize| {
            let (expert, row) = (place / hidden / size, place / hidden % size);
            let first = (own(expert).start + row) * hidden;
            row < own(expert).len() && dropout.keeps(first + place % hidden)
        };
        let mask = mask(&dropout, [experts, size, hidden], factor, &device);
        activated = activated * mask.cast(of_rows);
    }
    let results = activated.matmul(parameters.down) + bias(parameters.down_bias);
    let results = results.reshape([experts * size, outputs]).select(0, index(places, &device));
    let results = results.cast(weights.dtype()) * weights.unsqueeze_dim(1);
    zeros.select_assign(0, index(rows, &device), results, IndexingUpdateOp::Add)
}

fn index(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    transfer::brought(&values);
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), device)
}

/// Factors of dropout: a bit for every value goes to the device.
///
/// - `keeps`: whether the value at a place of the result stays
pub(crate) fn mask<const R: usize>(
    dropout: &Dropout,
    shape: [usize; R],
    keeps: impl Fn(usize) -> bool,
    device: &Device,
) -> Tensor<R> {
    let count: usize = shape.iter().product();
    let word = |first: usize| {
        let bits = (first..(first + 32).min(count)).enumerate();
        bits.fold(0_u32, |word, (bit, place)| word | u32::from(keeps(place)) << bit) as i32
    };
    let words: Vec<i32> = (0..count).step_by(32).map(word).collect();
    let shifts = Tensor::<1, Int>::arange(0..32, device).unsqueeze_dim::<2>(0);
    let whole = [words.len(), 32];
    let bits = index(words, device).unsqueeze_dim::<2>(1).expand(whole);
    let bits = bits.bitwise_right_shift(shifts.expand(whole)).bitwise_and_scalar(1);
    let kept = bits.reshape([-1]).narrow(0, 0, count).float();
    kept.reshape(shape) * (1.0 / (1.0 - dropout.rate))
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;

    use super::*;

    #[test]
    fn a_mask_of_bits_is_the_mask() {
        let device = Device::flex();
        let dropout = Dropout { rate: 0.3, seed: 9 };
        for shape in [[1, 1], [5, 13], [4, 32], [3, 100]] {
            let found = mask(&dropout, shape, |place| dropout.keeps(place + 7), &device);
            let expected: Vec<f32> =
                (0..shape[0] * shape[1]).map(|place| dropout.factor(place + 7)).collect();
            assert_eq!(found.try_into_vec_as::<f32>().unwrap(), expected);
        }
    }

    #[test]
    fn experts_in_one_product_are_experts_one_by_one() {
        let device = Device::flex();
        let drawn =
            |shape: [usize; 3]| Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
        let (inputs, hidden) = (6, 10);
        let parameters = ExpertParameters {
            up: drawn([4, inputs, hidden]),
            up_bias: drawn([1, 4, hidden]).reshape([4, hidden]),
            down: drawn([4, hidden, inputs]),
            down_bias: drawn([1, 4, inputs]).reshape([4, inputs]),
        };
        // One expert has nothing, one token goes twice, one nowhere.
        let routes = [2, 0, 5, 8, 5, 6, 1, 3, 4, 7];
        let dispatch = Dispatch::new(vec![0, 4, 4, 9, 10], routes.to_vec(), 10);
        let tokens = drawn([1, 10, inputs]).reshape([10, inputs]);
        let weights = drawn([1, 1, 10]).reshape([10]);
        let dropout = Dropout { rate: 0.4, seed: 3 };
        for (dropout, size) in [(None, 5), (None, 8), (Some(dropout), 6), (Some(dropout), 8)] {
            let form = Activation::GeluErf;
            let of = |size: Option<usize>| -> Vec<f32> {
                let (tokens, weights) = (tokens.clone(), weights.clone());
                let parameters = parameters.clone();
                let found = match size {
                    Some(size) => {
                        stacked(tokens, weights, parameters, (&dispatch, size), form, dropout)
                    }
                    None => {
                        portable::expert_mlp(tokens, weights, parameters, &dispatch, form, dropout)
                    }
                };
                found.try_into_vec_as().unwrap()
            };
            for (a, b) in of(Some(size)).iter().zip(of(None)) {
                assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{a} is not {b}");
            }
        }
    }
}
