//! The twins: the same operations from plain Burn operations, for any device; and on all devices in half precision, where
//! weights follow the type of the rows.

use burn::tensor::{
    Device, IndexingUpdateOp, Tensor, TensorData,
    activation::{self, softmax},
};

use omma_base::transfer;

use crate::{
    Activation, Dispatch, Dropout, ExpertParameters, Mixing,
    on_device::mask,
    precision::{is_half, widened},
};

/// [`crate::activate`].
pub fn activate<const R: usize>(x: Tensor<R>, form: Activation) -> Tensor<R> {
    match form {
        // Burn's own keeps one tensor for its derivative, and not four.
        Activation::GeluErf if is_half(&x) => activation::gelu(x),
        // That derivative is off by 3e-4 on GPUs.
        Activation::GeluErf => {
            let twice_probability = (x.clone() / std::f64::consts::SQRT_2).erf() + 1.0;
            x * twice_probability * 0.5
        }
        Activation::GeluTanh => activation::gelu_approximate(x),
        Activation::Relu => activation::relu(x),
    }
}

/// [`crate::linear`].
pub fn linear<const R: usize>(
    x: Tensor<R>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<R> {
    let mut shape = x.dims();
    let [inputs, outputs] = weight.dims();
    let rows: usize = shape[..R - 1].iter().product();
    let of_rows = x.dtype();
    let mut y = x.reshape([rows, inputs]).matmul(weight.cast(of_rows));
    if let Some(bias) = bias {
        y = y + bias.cast(of_rows).unsqueeze();
    }
    shape[R - 1] = outputs;
    y.reshape(shape)
}

/// [`crate::layer_norm`].
pub fn layer_norm<const R: usize>(
    x: Tensor<R>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f32,
) -> Tensor<R> {
    let of_rows = x.dtype();
    let x = widened(x);
    let centred = x.clone() - x.mean_dim(R - 1);
    let variance = centred.clone().square().mean_dim(R - 1);
    let y = centred / (variance + epsilon).sqrt() * gamma.unsqueeze() + beta.unsqueeze();
    y.cast(of_rows)
}

/// [`crate::mlp`].
pub fn mlp<const R: usize>(
    x: Tensor<R>,
    up: (Tensor<2>, Tensor<1>),
    down: (Tensor<2>, Tensor<1>),
    form: Activation,
    dropout: Option<Dropout>,
) -> Tensor<R> {
    let hidden = activate(linear(x, up.0, Some(up.1)), form);
    linear(drop_out(hidden, dropout, 0), down.0, Some(down.1))
}

/// [`crate::dropout`].
pub fn dropout<const R: usize>(x: Tensor<R>, dropout: Dropout) -> Tensor<R> {
    drop_out(x, Some(dropout), 0)
}

/// Multiplies by the mask of [`Dropout`], for values that start at index `first`.
fn drop_out<const R: usize>(x: Tensor<R>, dropout: Option<Dropout>, first: usize) -> Tensor<R> {
    let Some(dropout) = dropout else { return x };
    let shape = x.dims();
    if x.device() != Device::flex() {
        let mask = mask(&dropout, shape, |place| dropout.keeps(first + place), &x.device());
        return x.clone() * mask.cast(x.dtype());
    }
    let count: usize = shape.iter().product();
    let mask: Vec<f32> = (first..first + count).map(|index| dropout.factor(index)).collect();
    let options = (&x.device(), x.dtype());
    x * Tensor::from_data(TensorData::new(mask, shape), options)
}

/// The same for hidden rows of a dispatch, `[rows, hidden]`, that start at row `first`.
fn drop_out_rows(
    x: Tensor<2>,
    dropout: Option<Dropout>,
    first: usize,
    dispatch: &Dispatch,
) -> Tensor<2> {
    let Some(dropout) = dropout else { return x };
    let [rows, hidden] = x.dims();
    if dispatch.origins().is_none() {
        return drop_out(x, Some(dropout), first * hidden);
    }
    let mut mask = vec![1.0; rows * hidden];
    dropout.apply_to_rows(&mut mask, hidden, first, dispatch.origins());
    let options = (&x.device(), x.dtype());
    x * Tensor::from_data(TensorData::new(mask, [rows, hidden]), options)
}

/// [`crate::self_attention`].
pub fn self_attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [_, _, columns] = qkv.dims();
    let features = columns / 3;
    let part = |i: usize| qkv.clone().narrow(2, i * features, features);
    attention(part(0), part(1), part(2), heads)
}

/// [`crate::attention`].
pub fn attention(
    queries: Tensor<3>,
    keys: Tensor<3>,
    values: Tensor<3>,
    heads: usize,
) -> Tensor<3> {
    let [batch, n_queries, features] = queries.dims();
    let width = features / heads;
    let split = |x: Tensor<3>| {
        let [batch, tokens, _] = x.dims();
        x.reshape([batch, tokens, heads, width]).swap_dims(1, 2)
    };
    // Before the product: behind it, half precision may have run out of numbers.
    let queries = split(queries) / (width as f64).sqrt();
    let scores = widened(queries.matmul(split(keys).swap_dims(2, 3)));
    let mixed = softmax(scores, 3).cast(values.dtype()).matmul(split(values));
    mixed.swap_dims(1, 2).reshape([batch, n_queries, features])
}

/// [`crate::mix`].
pub fn mix(weights: Tensor<3>, x: Tensor<3>, mixing: Mixing) -> Tensor<3> {
    let weights = weights.cast(x.dtype());
    match mixing {
        Mixing::ToSlots => weights.swap_dims(1, 2).matmul(x),
        Mixing::ToTokens => weights.matmul(x),
    }
}

/// [`crate::expert_mlp`].
pub fn expert_mlp(
    tokens: Tensor<2>,
    weights: Tensor<1>,
    parameters: ExpertParameters,
    dispatch: &Dispatch,
    form: Activation,
    dropout: Option<Dropout>,
) -> Tensor<2> {
    let device = tokens.device();
    let [experts, _, _] = parameters.up.dims();
    let [_, _, outputs] = parameters.down.dims();
    let rows: Vec<i32> = dispatch.tokens().iter().map(|token| *token as i32).collect();
    let zeros = Tensor::zeros([dispatch.n_tokens(), outputs], (&device, weights.dtype()));
    if rows.is_empty() {
        return zeros;
    }
    transfer::brought(&rows);
    let rows = Tensor::from_data(TensorData::new(rows, [dispatch.tokens().len()]), &device);
    let parameters = parameters.cast(tokens.dtype());
    let inputs = tokens.select(0, rows.clone());
    let busy = (0..experts).filter(|e| dispatch.offsets()[*e] < dispatch.offsets()[*e + 1]);
    let results = busy.map(|e| {
        let (start, end) = (dispatch.offsets()[e], dispatch.offsets()[e + 1]);
        let matrix = |stack: &Tensor<3>| {
            let [_, rows, columns] = stack.dims();
            stack.clone().narrow(0, e, 1).reshape([rows, columns])
        };
        let before = inputs.clone().narrow(0, start, end - start).matmul(matrix(&parameters.up))
            + parameters.up_bias.clone().narrow(0, e, 1);
        let activated = drop_out_rows(activate(before, form), dropout, start, dispatch);
        activated.matmul(matrix(&parameters.down)) + parameters.down_bias.clone().narrow(0, e, 1)
    });
    let results =
        Tensor::cat(results.collect(), 0).cast(weights.dtype()) * weights.unsqueeze_dim(1);
    zeros.select_assign(0, rows, results, IndexingUpdateOp::Add)
}
