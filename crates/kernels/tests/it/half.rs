//! Every operation in half precision beside the same in single precision, in values and gradients: within what rounding
//! makes of them, and not the same.
//!
//! With the feature `wgpu` also on the first GPU, or on a software device, in what it computes in.

use burn::tensor::{DType, Device, Tensor, TensorData};
use omma_kernels::{
    Activation, Dispatch, Dropout, ExpertParameters, Precision, attention, expert_mlp, layer_norm,
    linear, mlp, self_attention, soft_moe,
};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Values, and gradients of a weighted sum of them.
type Found = (Vec<f32>, Vec<Vec<f32>>);

/// What an operation makes of its inputs, of which the first are its rows.
struct Case<'a> {
    shapes: &'a [&'a [usize]],
    run: &'a dyn Fn(Precision, &[Tensor<1>]) -> Tensor<1>,
}

impl Case<'_> {
    fn run(&self, device: &Device, precision: Precision) -> Found {
        let device = device.clone().autodiff();
        let mut rng = Pcg64::seed_from_u64(5);
        let leaf = |shape: &&[usize]| {
            let count = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
            Tensor::<1>::from_data(TensorData::new(values, [count]), &device).require_grad()
        };
        let leaves: Vec<_> = self.shapes.iter().map(leaf).collect();
        let output = (self.run)(precision, &leaves);
        assert_eq!(output.dtype(), DType::F32);
        let count = output.dims()[0];
        let weights: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).cos()).collect();
        let weights = Tensor::from_data(TensorData::new(weights, [count]), &device);
        let gradients = (output.clone() * weights).sum().backward();
        let gradient = |leaf: &Tensor<1>| {
            let gradient = leaf.grad(&gradients).expect("every input has a gradient");
            assert_eq!(gradient.dtype(), DType::F32);
            gradient.try_into_vec_as().unwrap()
        };
        (output.try_into_vec_as().unwrap(), leaves.iter().map(gradient).collect())
    }

    /// The largest difference relative to the largest value, over values and gradients of every input.
    fn check(&self, name: &str) {
        let (values, gradients) = self.run(&Device::flex(), Precision::F32);
        for device in devices() {
            let half = [(Precision::Bf16, 0.03), (Precision::F16, 0.004)];
            for (precision, tolerance) in
                half.into_iter().filter(|(precision, _)| precision.is_on(&device))
            {
                let (found, own) = self.run(&device, precision);
                let off = difference(&found, &values);
                assert!(off > 1e-5, "{name} in {precision} is in single precision");
                assert!(off < tolerance, "{name} in {precision} is off by {off}");
                for (input, (found, expected)) in own.iter().zip(&gradients).enumerate() {
                    let off = difference(found, expected);
                    assert!(off < tolerance, "{name} in {precision}, gradient {input}: {off}");
                }
            }
        }
    }
}

fn devices() -> Vec<Device> {
    vec![
        Device::flex(),
        #[cfg(feature = "wgpu")]
        Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
    ]
}

fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(1e-3_f32, |scale, value| scale.max(value.abs()));
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs() / scale);
    off.fold(0.0, |most, off| if off.is_nan() { f32::INFINITY } else { most.max(off) })
}

fn shaped<const R: usize>(x: &Tensor<1>, shape: [usize; R]) -> Tensor<R> {
    x.clone().reshape(shape)
}

fn flat<const R: usize>(x: Tensor<R>) -> Tensor<1> {
    x.reshape([-1])
}

#[test]
fn layers_in_half_precision_are_near_those_in_single_precision() {
    let linear: Case = Case {
        shapes: &[&[6, 10], &[10, 7], &[7]],
        run: &|precision, x| {
            flat(precision.within(shaped(&x[0], [6, 10]), |rows| {
                linear(rows, shaped(&x[1], [10, 7]), Some(x[2].clone()))
            }))
        },
    };
    linear.check("linear");
    for form in [Activation::GeluErf, Activation::GeluTanh, Activation::Relu] {
        for dropout in [None, Some(Dropout { rate: 0.4, seed: 3 })] {
            let mlp =
                Case {
                    shapes: &[&[6, 10], &[10, 12], &[12], &[12, 9], &[9]],
                    run: &|precision, x| {
                        let up = (shaped(&x[1], [10, 12]), x[2].clone());
                        let down = (shaped(&x[3], [12, 9]), x[4].clone());
                        flat(precision.within(shaped(&x[0], [6, 10]), |rows| {
                            mlp(rows, up, down, form, dropout)
                        }))
                    },
                };
            mlp.check(&format!("mlp by {form:?}"));
        }
    }
    let norm = Case {
        shapes: &[&[6, 10], &[10], &[10]],
        run: &|precision, x| {
            flat(precision.within(shaped(&x[0], [6, 10]), |rows| {
                layer_norm(rows, x[1].clone(), x[2].clone(), 1e-6)
            }))
        },
    };
    norm.check("layer_norm");
}

#[test]
fn attention_in_half_precision_is_near_that_in_single_precision() {
    let own = Case {
        shapes: &[&[2, 5, 24]],
        run: &|precision, x| {
            flat(precision.within(shaped(&x[0], [2, 5, 24]), |qkv| self_attention(qkv, 2)))
        },
    };
    own.check("self_attention");
    let other =
        Case {
            shapes: &[&[2, 3, 8], &[2, 5, 8], &[2, 5, 8]],
            run: &|precision, x| {
                let [keys, values] = [1, 2].map(|i| precision.cast(shaped(&x[i], [2, 5, 8])));
                flat(precision.within(shaped(&x[0], [2, 3, 8]), |queries| {
                    attention(queries, keys, values, 2)
                }))
            },
        };
    other.check("attention");
}

/// Scores that are beyond 65504 before they are divided.
#[test]
fn attention_does_not_run_out_of_numbers() {
    let device = Device::flex();
    let queries = Tensor::<3>::full([1, 2, 64], 40.0, &device);
    let values = Tensor::<3>::full([1, 2, 64], 2.0, &device);
    let found = Precision::F16.within(queries.clone(), |queries| {
        attention(queries.clone(), queries, Precision::F16.cast(values), 1)
    });
    let found: Vec<f32> = found.try_into_vec_as().unwrap();
    assert!(found.iter().all(|value| *value == 2.0), "{found:?}");
}

const EXPERTS: usize = 3;
const OF_EXPERTS: [&[usize]; 4] =
    [&[EXPERTS, 6, 8], &[EXPERTS, 8], &[EXPERTS, 8, 6], &[EXPERTS, 6]];

fn parameters(x: &[Tensor<1>]) -> ExpertParameters {
    ExpertParameters {
        up: shaped(&x[0], [EXPERTS, 6, 8]),
        up_bias: shaped(&x[1], [EXPERTS, 8]),
        down: shaped(&x[2], [EXPERTS, 8, 6]),
        down_bias: shaped(&x[3], [EXPERTS, 6]),
    }
}

/// Experts with about as many rows each, which devices run in one product, and one that has nearly all of them.
#[test]
fn experts_in_half_precision_are_near_those_in_single_precision() {
    let even = Dispatch::new(vec![0, 4, 7, 10], vec![2, 0, 5, 8, 5, 6, 1, 3, 4, 7], 10);
    let most: Vec<u32> = (0..60).map(|row| row % 10).collect();
    let uneven = Dispatch::new(vec![0, 1, 59, 60], most, 10);
    for dispatch in [even, uneven] {
        for dropout in [None, Some(Dropout { rate: 0.4, seed: 3 })] {
            let rows = dispatch.tokens().len();
            let of_rows: [&[usize]; 2] = [&[10, 6], &[rows]];
            let experts = Case {
                shapes: &[&of_rows[..], &OF_EXPERTS].concat(),
                run: &|precision, x| {
                    let (form, weights) = (Activation::GeluErf, x[1].clone());
                    flat(precision.within(shaped(&x[0], [10, 6]), |tokens| {
                        expert_mlp(tokens, weights, parameters(&x[2..]), &dispatch, form, dropout)
                    }))
                },
            };
            experts.check(&format!("expert_mlp of {rows} rows"));
        }
    }
}

#[test]
fn a_soft_mixture_in_half_precision_is_near_that_in_single_precision() {
    let of_tokens: [&[usize]; 3] = [&[2, 4, 6], &[2, 4, 6], &[2, 4, 6]];
    let soft = Case {
        shapes: &[&of_tokens[..], &OF_EXPERTS].concat(),
        run: &|precision, x| {
            let [dispatch, combine] = [1, 2].map(|i| shaped(&x[i], [2, 4, 6]));
            flat(precision.within(shaped(&x[0], [2, 4, 6]), |tokens| {
                let form = Activation::GeluErf;
                soft_moe(tokens, dispatch, combine, parameters(&x[3..]), None, form, None)
            }))
        },
    };
    soft.check("soft_moe");
}
