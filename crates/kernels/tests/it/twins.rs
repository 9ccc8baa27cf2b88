//! Every fused operation against its portable twin and against finite differences, in values and
//! gradients.
//!
//! With the feature `wgpu` every operation also runs on the first GPU, or on a software device where
//! there is none (Debian's `mesa-vulkan-drivers`), and must agree with the fused form:
//! `cargo test -p omma-kernels --features wgpu twins::`.

#[cfg(feature = "wgpu")]
use burn::tensor::DeviceKind;
use burn::tensor::{Device, Tensor, TensorData};
use omma_kernels::{
    Activation, Dispatch, Dropout, ExpertParameters, Mixing, activate, attention, expert_mlp,
    layer_norm, linear, mix, mlp, portable, self_attention, soft_moe,
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

const FORMS: [Activation; 3] = [Activation::GeluErf, Activation::GeluTanh, Activation::Relu];

/// An input of any rank, flattened.
#[derive(Debug, Clone)]
struct Leaf {
    values: Vec<f32>,
    shape: Vec<usize>,
}

impl Leaf {
    fn random(shape: &[usize], seed: u64) -> Self {
        let mut rng = Pcg64::seed_from_u64(seed);
        let values = (0..shape.iter().product()).map(|_| rng.random_range(-1.5..1.5)).collect();
        Self { values, shape: shape.to_vec() }
    }
}

/// The leaves of one run, as tensors.
struct Inputs {
    flat: Vec<Tensor<1>>,
    shapes: Vec<Vec<usize>>,
}

impl Inputs {
    fn get<const R: usize>(&self, i: usize) -> Tensor<R> {
        let shape: [usize; R] = self.shapes[i].clone().try_into().unwrap();
        self.flat[i].clone().reshape(shape)
    }
}

/// Output and gradients of `Σ cos-weighted output` for all leaves, on the CPU.
fn run<const R: usize>(
    leaves: &[Leaf],
    f: &dyn Fn(&Inputs) -> Tensor<R>,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    run_on(Device::flex(), leaves, f)
}

fn run_on<const R: usize>(
    device: Device,
    leaves: &[Leaf],
    f: &dyn Fn(&Inputs) -> Tensor<R>,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let device = device.autodiff();
    let flat: Vec<Tensor<1>> = leaves
        .iter()
        .map(|leaf| {
            let data = TensorData::new(leaf.values.clone(), [leaf.values.len()]);
            Tensor::from_data(data, &device).require_grad()
        })
        .collect();
    let inputs = Inputs { flat, shapes: leaves.iter().map(|leaf| leaf.shape.clone()).collect() };
    let output = f(&inputs);
    let count = output.shape().num_elements();
    let values: Vec<f32> = output.clone().try_into_vec_as().unwrap();
    let objective = (output.reshape([count]) * weights(count, &device)).sum();
    if !objective.is_tracked() {
        return (values, leaves.iter().map(|leaf| vec![0.0; leaf.values.len()]).collect());
    }
    let gradients = objective.backward();
    let gradient = |leaf: &Tensor<1>| -> Vec<f32> {
        let zeros = || vec![0.0; leaf.dims()[0]];
        leaf.grad(&gradients).map_or_else(zeros, |gradient| gradient.try_into_vec_as().unwrap())
    };
    (values, inputs.flat.iter().map(gradient).collect())
}

fn weights(count: usize, device: &Device) -> Tensor<1> {
    let weights: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).cos()).collect();
    Tensor::from_data(TensorData::new(weights, [count]), device)
}

fn assert_close(name: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let scale = expected.iter().fold(1.0_f32, |scale, value| scale.max(value.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance * scale, "{name}[{i}]: {found} {expected}");
    }
}

fn assert_twins<const R: usize>(
    leaves: &[Leaf],
    fused: &dyn Fn(&Inputs) -> Tensor<R>,
    twin: &dyn Fn(&Inputs) -> Tensor<R>,
) {
    let (fused_values, fused_gradients) = run(leaves, fused);
    let (twin_values, twin_gradients) = run(leaves, twin);
    assert_close("output", &fused_values, &twin_values, 2e-6 * 8.0);
    for (i, (fused, twin)) in fused_gradients.iter().zip(&twin_gradients).enumerate() {
        assert_close(&format!("gradient {i}"), fused, twin, 2e-5);
    }
    // A device refuses tensors without elements.
    #[cfg(feature = "wgpu")]
    if leaves.iter().all(|leaf| !leaf.values.is_empty()) {
        let (values, gradients) = run_on(Device::wgpu(DeviceKind::DefaultDevice), leaves, fused);
        assert_close("output on the device", &values, &fused_values, 1e-4);
        for (i, (device, fused)) in gradients.iter().zip(&fused_gradients).enumerate() {
            assert_close(&format!("gradient {i} on the device"), device, fused, 2e-4);
        }
    }
}

/// Central differences of a few elements of every leaf.
fn assert_finite_differences<const R: usize>(leaves: &[Leaf], f: &dyn Fn(&Inputs) -> Tensor<R>) {
    let (_, gradients) = run(leaves, f);
    let objective = |leaves: &[Leaf]| -> f64 {
        let (values, _) = run(leaves, f);
        values
            .iter()
            .enumerate()
            .map(|(i, v)| f64::from(*v) * f64::from((i as f32 * 0.7).cos()))
            .sum()
    };
    const STEP: f32 = 1.0 / 128.0;
    for leaf in 0..leaves.len() {
        let count = leaves[leaf].values.len();
        for element in (0..count).step_by(count.div_ceil(5).max(1)) {
            let moved = |by: f32| {
                let mut leaves = leaves.to_vec();
                leaves[leaf].values[element] += by;
                objective(&leaves)
            };
            let expected = (moved(STEP) - moved(-STEP)) / (2.0 * f64::from(STEP));
            let found = f64::from(gradients[leaf][element]);
            let allowed = 2e-3 * (1.0 + expected.abs());
            assert!(
                (found - expected).abs() <= allowed,
                "leaf {leaf}[{element}]: {found} {expected}"
            );
        }
    }
}

#[test]
fn nonlinearities() {
    for form in FORMS {
        for shape in [vec![1, 1], vec![3, 37], vec![0, 4]] {
            let leaves = [Leaf::random(&shape, 1)];
            assert_twins(&leaves, &|x| activate(x.get::<2>(0), form), &|x| {
                portable::activate(x.get::<2>(0), form)
            });
        }
        assert_finite_differences(&[Leaf::random(&[2, 5], 2)], &|x| activate(x.get::<2>(0), form));
    }
}

#[test]
fn linear_with_and_without_bias() {
    for (rows, inputs, outputs) in [(1, 1, 1), (7, 3, 5), (130, 33, 17), (0, 4, 3), (0, 70, 3)] {
        let shapes: [Vec<usize>; 3] = [vec![rows, 1, inputs], vec![inputs, outputs], vec![outputs]];
        let leaves: Vec<Leaf> =
            shapes.iter().zip(1..).map(|(shape, seed)| Leaf::random(shape, seed)).collect();
        assert_twins(&leaves, &|x| linear(x.get::<3>(0), x.get(1), Some(x.get(2))), &|x| {
            portable::linear(x.get::<3>(0), x.get(1), Some(x.get(2)))
        });
        assert_twins(&leaves[..2], &|x| linear(x.get::<3>(0), x.get(1), None), &|x| {
            portable::linear(x.get::<3>(0), x.get(1), None)
        });
    }
}

#[test]
fn mixing_either_way() {
    // Few groups, which are cut among the threads, and many.
    for (groups, tokens, slots, width) in
        [(1, 7, 4, 3), (3, 5, 20, 17), (70, 6, 9, 8), (0, 3, 2, 4)]
    {
        for (mixing, rows) in [(Mixing::ToSlots, tokens), (Mixing::ToTokens, slots)] {
            let leaves = [
                Leaf::random(&[groups, tokens, slots], 1),
                Leaf::random(&[groups, rows, width], 2),
            ];
            assert_twins(&leaves, &|x| mix(x.get(0), x.get(1), mixing), &|x| {
                portable::mix(x.get(0), x.get(1), mixing)
            });
        }
    }
}

#[test]
fn layer_norm_of_any_width() {
    for (rows, width) in [(1, 2), (5, 33), (70, 384)] {
        let leaves =
            [Leaf::random(&[rows, width], 1), Leaf::random(&[width], 2), Leaf::random(&[width], 3)];
        let fused = |x: &Inputs| layer_norm(x.get::<2>(0), x.get(1), x.get(2), 1e-6);
        assert_twins(&leaves, &fused, &|x| {
            portable::layer_norm(x.get::<2>(0), x.get(1), x.get(2), 1e-6)
        });
    }
    let leaves = [Leaf::random(&[2, 7], 1), Leaf::random(&[7], 2), Leaf::random(&[7], 3)];
    assert_finite_differences(&leaves, &|x| layer_norm(x.get::<2>(0), x.get(1), x.get(2), 1e-6));
}

#[test]
fn dense_mlp_with_and_without_dropout() {
    for form in FORMS {
        for dropout in [None, Some(Dropout { rate: 0.3, seed: 9 })] {
            for (rows, inputs, hidden, outputs) in [(1, 1, 1, 1), (9, 5, 13, 3), (300, 16, 40, 16)]
            {
                let shapes: [Vec<usize>; 5] = [
                    vec![rows, inputs],
                    vec![inputs, hidden],
                    vec![hidden],
                    vec![hidden, outputs],
                    vec![outputs],
                ];
                let leaves: Vec<Leaf> =
                    shapes.iter().zip(1..).map(|(shape, seed)| Leaf::random(shape, seed)).collect();
                assert_twins(
                    &leaves,
                    &|x| {
                        mlp(
                            x.get::<2>(0),
                            (x.get(1), x.get(2)),
                            (x.get(3), x.get(4)),
                            form,
                            dropout,
                        )
                    },
                    &|x| {
                        portable::mlp(
                            x.get::<2>(0),
                            (x.get(1), x.get(2)),
                            (x.get(3), x.get(4)),
                            form,
                            dropout,
                        )
                    },
                );
            }
        }
    }
}

#[test]
fn products_by_finite_differences() {
    let leaves: Vec<Leaf> = [vec![3, 4], vec![4, 2], vec![2], vec![2, 5], vec![5]]
        .iter()
        .zip(1..)
        .map(|(shape, seed)| Leaf::random(shape, seed))
        .collect();
    assert_finite_differences(&leaves[..3], &|x| linear(x.get::<2>(0), x.get(1), Some(x.get(2))));
    for dropout in [None, Some(Dropout { rate: 0.4, seed: 2 })] {
        assert_finite_differences(&leaves, &|x| {
            let (up, down) = ((x.get(1), x.get(2)), (x.get(3), x.get(4)));
            mlp(x.get::<2>(0), up, down, Activation::GeluErf, dropout)
        });
    }
}

#[test]
fn attention_of_any_length() {
    // Past 128 queries the scores come in several blocks.
    for (batch, tokens, heads, width) in
        [(1, 1, 1, 1), (2, 7, 3, 5), (1, 300, 2, 8), (3, 64, 2, 16)]
    {
        let leaves = [Leaf::random(&[batch, tokens, 3 * heads * width], 4)];
        assert_twins(&leaves, &|x| self_attention(x.get(0), heads), &|x| {
            portable::self_attention(x.get(0), heads)
        });
    }
    for (queries, keys) in [(1, 9), (140, 20), (5, 1)] {
        let features = 12;
        let shape = |tokens: usize| [2, tokens, features];
        let leaves = [
            Leaf::random(&shape(queries), 1),
            Leaf::random(&shape(keys), 2),
            Leaf::random(&shape(keys), 3),
        ];
        assert_twins(&leaves, &|x| attention(x.get(0), x.get(1), x.get(2), 3), &|x| {
            portable::attention(x.get(0), x.get(1), x.get(2), 3)
        });
    }
    assert_finite_differences(&[Leaf::random(&[1, 4, 12], 1)], &|x| self_attention(x.get(0), 2));
    let leaves =
        [Leaf::random(&[1, 2, 4], 1), Leaf::random(&[1, 3, 4], 2), Leaf::random(&[1, 3, 4], 3)];
    assert_finite_differences(&leaves, &|x| attention(x.get(0), x.get(1), x.get(2), 2));
    let nothing = |tokens| Tensor::<3>::zeros([2, tokens, 4], &Device::flex());
    assert_eq!(attention(nothing(0), nothing(3), nothing(3), 2).dims(), [2, 0, 4]);
    assert_eq!(attention(nothing(3), nothing(0), nothing(0), 2).dims(), [2, 3, 4]);
    assert_eq!(self_attention(Tensor::zeros([0, 3, 12], &Device::flex()), 2).dims(), [0, 3, 4]);
}

/// An expert and a token.
type Row = (usize, u32);

/// The experts of every row, as a dispatch, with leaves for everything else.
fn expert_case(
    experts: usize,
    tokens: usize,
    rows: &[Row],
    sizes: [usize; 3],
) -> (Dispatch, Vec<Leaf>) {
    let mut rows = rows.to_vec();
    rows.sort_by_key(|(expert, _)| *expert);
    let offsets: Vec<usize> =
        (0..=experts).map(|expert| rows.iter().filter(|(e, _)| *e < expert).count()).collect();
    let of_rows: Vec<u32> = rows.iter().map(|(_, token)| *token).collect();
    let dispatch = Dispatch::new(offsets, of_rows, tokens);
    let [inputs, hidden, outputs] = sizes;
    let shapes: [Vec<usize>; 6] = [
        vec![tokens, inputs],
        vec![rows.len()],
        vec![experts, inputs, hidden],
        vec![experts, hidden],
        vec![experts, hidden, outputs],
        vec![experts, outputs],
    ];
    let leaves = shapes.iter().zip(1..).map(|(shape, seed)| Leaf::random(shape, seed)).collect();
    (dispatch, leaves)
}

fn parameters(x: &Inputs) -> ExpertParameters {
    ExpertParameters { up: x.get(2), up_bias: x.get(3), down: x.get(4), down_bias: x.get(5) }
}

fn assert_experts(
    dispatch: &Dispatch,
    leaves: &[Leaf],
    form: Activation,
    dropout: Option<Dropout>,
) {
    assert_twins(
        leaves,
        &|x| expert_mlp(x.get(0), x.get(1), parameters(x), dispatch, form, dropout),
        &|x| portable::expert_mlp(x.get(0), x.get(1), parameters(x), dispatch, form, dropout),
    );
}

#[test]
fn experts_with_all_some_one_or_no_tokens() {
    let everyone: Vec<Row> = (0..200).map(|token| (1, token)).collect();
    let two_each: Vec<Row> = (0..50)
        .flat_map(|token| [(token as usize % 4, token), ((token as usize + 1) % 4, token)])
        .collect();
    let cases: [(usize, usize, &[Row]); 5] = [
        (1, 1, &[(0, 0)]),
        (3, 200, &everyone),
        (4, 50, &two_each),
        (8, 4, &[(7, 2), (0, 2), (3, 0)]),
        (2, 3, &[]),
    ];
    for form in FORMS {
        for dropout in [None, Some(Dropout { rate: 0.5, seed: 3 })] {
            for (experts, tokens, rows) in cases {
                let (dispatch, leaves) = expert_case(experts, tokens, rows, [5, 11, 3]);
                assert_experts(&dispatch, &leaves, form, dropout);
            }
        }
    }
    let (dispatch, leaves) = expert_case(3, 4, &[(0, 1), (2, 1), (2, 3)], [3, 4, 2]);
    assert_finite_differences(&leaves, &|x| {
        expert_mlp(x.get(0), x.get(1), parameters(x), &dispatch, Activation::GeluErf, None)
    });
}

#[test]
fn soft_experts_all_or_some() {
    let (groups, size, width, experts, slots, hidden) = (2, 5, 4, 3, 2, 7);
    let shapes: [Vec<usize>; 6] = [
        vec![groups, size, width],
        vec![groups, size, experts * slots],
        vec![experts, width, hidden],
        vec![experts, hidden],
        vec![experts, hidden, width],
        vec![experts, width],
    ];
    let leaves: Vec<Leaf> =
        shapes.iter().zip(1..).map(|(shape, seed)| Leaf::random(shape, seed)).collect();
    let subsets = [vec![0, 2], vec![1]];
    for run in [None, Some(&subsets[..])] {
        let fused = |x: &Inputs| {
            let weights: Tensor<3> = x.get(1);
            soft_moe(
                x.get(0),
                weights.clone(),
                weights,
                parameters(x),
                run,
                Activation::GeluTanh,
                None,
            )
        };
        let literal = |x: &Inputs| {
            let (tokens, weights): (Tensor<3>, Tensor<3>) = (x.get(0), x.get(1));
            let outputs = (0..groups).map(|group| {
                let tokens = tokens.clone().narrow(0, group, 1).reshape([size, width]);
                let weights = weights.clone().narrow(0, group, 1).reshape([size, experts * slots]);
                let chosen = run.map_or((0..experts).collect(), |run| run[group].clone());
                let terms = chosen.into_iter().map(|expert| {
                    let weights = weights.clone().narrow(1, expert * slots, slots);
                    let inputs = weights.clone().transpose().matmul(tokens.clone());
                    let of = |stack: Tensor<3>| {
                        let [_, rows, columns] = stack.dims();
                        stack.narrow(0, expert, 1).reshape([rows, columns])
                    };
                    let ExpertParameters { up, up_bias, down, down_bias } = parameters(x);
                    let hidden = portable::activate(
                        inputs.matmul(of(up)) + up_bias.narrow(0, expert, 1),
                        Activation::GeluTanh,
                    );
                    weights.matmul(hidden.matmul(of(down)) + down_bias.narrow(0, expert, 1))
                });
                terms.reduce(|a, b| a + b).unwrap().unsqueeze_dim::<3>(0)
            });
            Tensor::cat(outputs.collect(), 0)
        };
        assert_twins(&leaves, &fused, &literal);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn experts_on_any_dispatch(
        (experts, tokens, rows) in (1..6_usize, 1..40_usize).prop_flat_map(|(experts, tokens)| {
            let row = (0..experts, 0..tokens as u32);
            (Just(experts), Just(tokens), prop::collection::vec(row, 0..90))
        }),
        sizes in [1..20_usize, 1..30, 1..20],
    ) {
        let (dispatch, leaves) = expert_case(experts, tokens, &rows, sizes);
        assert_experts(&dispatch, &leaves, Activation::GeluTanh, None);
    }
}

/// Inputs without a graph, gradients that nobody wants, and checkpointed graphs all work.
#[test]
fn with_and_without_a_graph() {
    let leaf = Leaf::random(&[6, 4], 1);
    let on = |device: &Device| {
        Tensor::<2>::from_data(TensorData::new(leaf.values.clone(), [6, 4]), device)
    };
    let plain: Vec<f32> =
        activate(on(&Device::flex()), Activation::GeluErf).try_into_vec_as().unwrap();
    let checkpointed = Device::flex().autodiff().gradient_checkpointing();
    let x = on(&checkpointed).require_grad();
    let weight = Tensor::<2>::ones([4, 3], &checkpointed);
    let y = activate(x.clone(), Activation::GeluErf);
    let values: Vec<f32> = y.clone().try_into_vec_as().unwrap();
    assert_eq!(plain, values);
    let gradients = linear(y, weight, None).sum().backward();
    assert!(x.grad(&gradients).is_some());
}

/// A network that only predicts is cut by columns where it has few rows and keeps nothing for a backward pass, and
/// has the bits of one that learns.
#[test]
fn a_network_predicts_the_bits_that_it_learns_with() {
    for rows in [1, 50, 197, 1000] {
        let shapes: [&[usize]; 5] = [&[rows, 33], &[33, 300], &[300], &[300, 17], &[17]];
        let leaves = shapes.iter().zip(1..).map(|(shape, seed)| Leaf::random(shape, seed));
        let leaves: Vec<Leaf> = leaves.collect();
        for form in FORMS {
            let output = |device: &Device, learns: bool| -> Vec<f32> {
                let tensors = leaves.iter().map(|leaf| {
                    let data = TensorData::new(leaf.values.clone(), [leaf.values.len()]);
                    let tensor = Tensor::<1>::from_data(data, device);
                    if learns { tensor.require_grad() } else { tensor }
                });
                let shapes = leaves.iter().map(|leaf| leaf.shape.clone()).collect();
                let x = Inputs { flat: tensors.collect(), shapes };
                let y = mlp(x.get::<2>(0), (x.get(1), x.get(2)), (x.get(3), x.get(4)), form, None);
                y.try_into_vec_as().unwrap()
            };
            let learned = output(&Device::flex().autodiff(), true);
            assert_eq!(output(&Device::flex(), false), learned, "{rows} rows, {form:?}");
        }
    }
}
