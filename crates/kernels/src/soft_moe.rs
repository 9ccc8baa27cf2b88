//! Soft MoE: slots, experts, mixing.

use std::convert::Infallible;

use burn::tensor::{Device, Int, Tensor, TensorData};
use omma_base::transfer;

use crate::{Activation, Dispatch, Dropout, ExpertParameters, Mixing, expert_mlp, mix};

/// `combine · MLP(dispatchᵀ · x)` for every group, all experts or only some of every group's.
///
/// An expert that is not run for a group contributes nothing to it, as if its outputs were zero.
///
/// - `tokens`: `[G, S, D]`; `dispatch`, `combine`: `[G, S, E · P]`, slots of an expert side by side
/// - `run`: which experts are run, for every group; all if there is none
/// - returns: `[G, S, D']`
pub fn soft_moe(
    tokens: Tensor<3>,
    dispatch: Tensor<3>,
    combine: Tensor<3>,
    parameters: ExpertParameters,
    run: Option<&[Vec<usize>]>,
    activation: Activation,
    dropout: Option<Dropout>,
) -> Tensor<3> {
    let [experts, _, _] = parameters.up.dims();
    let Ok::<_, Infallible>(output) =
        soft_moe_by(tokens, (dispatch, combine), experts, run, |inputs, weights, routes| {
            Ok(expert_mlp(inputs, weights, parameters, routes, activation, dropout))
        });
    output
}

/// The same with experts that `apply` runs.
///
/// - `tables`: `dispatch` and `combine`
/// - `apply`: gets slots, `[G · P', D]`, a weight of 1 for each that an expert has, and which expert has which;
///   returns `[G · P', D']`, unless it fails
pub fn soft_moe_by<E>(
    tokens: Tensor<3>,
    (dispatch, combine): (Tensor<3>, Tensor<3>),
    experts: usize,
    run: Option<&[Vec<usize>]>,
    apply: impl FnOnce(Tensor<2>, Tensor<1>, &Dispatch) -> Result<Tensor<2>, E>,
) -> Result<Tensor<3>, E> {
    let [groups, size, width] = tokens.dims();
    let [_, _, columns] = dispatch.dims();
    assert_eq!(dispatch.dims(), combine.dims(), "soft_moe: dispatch and combine");
    assert_eq!(dispatch.dims()[..2], [groups, size], "soft_moe: tokens and dispatch");
    assert!(columns.is_multiple_of(experts), "soft_moe: {columns} slots for {experts} experts");
    let slots = columns / experts;
    if let Some(run) = run {
        assert_eq!(run.len(), groups, "soft_moe: a list of experts for every group");
        let known = run.iter().flatten().all(|expert| *expert < experts);
        assert!(known, "soft_moe: experts to run are below {experts}");
    }
    // Where every group has as many experts, only their slots are mixed and combined.
    let alike = |run: &&[Vec<usize>]| {
        let first = run.first().map_or(0, Vec::len);
        first > 0 && run.iter().all(|experts| experts.len() == first)
    };
    let chosen = run.filter(alike);
    let (dispatch, combine) = match chosen {
        Some(run) => {
            let index = columns_of(run, slots, size, &dispatch.device());
            (dispatch.gather(2, index.clone()), combine.gather(2, index))
        }
        None => (dispatch, combine),
    };
    let place = |group: usize, expert: usize| match (chosen, run) {
        (Some(run), _) => run[group].iter().position(|other| *other == expert),
        (None, Some(run)) => run[group].contains(&expert).then_some(expert),
        (None, None) => Some(expert),
    };

    let [_, _, columns] = dispatch.dims();
    let inputs = mix(dispatch, tokens, Mixing::ToSlots).reshape([groups * columns, width]);
    let mut offsets = vec![0];
    let mut rows = Vec::with_capacity(groups * columns);
    for expert in 0..experts {
        for group in 0..groups {
            if let Some(place) = place(group, expert) {
                let first = group * columns + place * slots;
                rows.extend((first..first + slots).map(|row| row as u32));
            }
        }
        offsets.push(rows.len());
    }
    let weights = Tensor::ones([rows.len()], (&inputs.device(), inputs.dtype()));
    let routes = Dispatch::new(offsets, rows, groups * columns);
    let outputs = apply(inputs, weights, &routes)?;
    let [_, width] = outputs.dims();
    Ok(mix(combine, outputs.reshape([groups, columns, width]), Mixing::ToTokens))
}

/// `[G, S, k · P]`: for every token of a group the columns of its experts' slots.
fn columns_of(run: &[Vec<usize>], slots: usize, size: usize, device: &Device) -> Tensor<3, Int> {
    let chosen = run.first().map_or(0, Vec::len);
    let mut index: Vec<i32> = Vec::with_capacity(run.len() * size * chosen * slots);
    for experts in run {
        let first = index.len();
        let columns = experts.iter().flat_map(|expert| expert * slots..(expert + 1) * slots);
        index.extend(columns.map(|column| column as i32));
        for _ in 1..size {
            index.extend_from_within(first..first + chosen * slots);
        }
    }
    transfer::brought(&index);
    Tensor::from_data(TensorData::new(index, [run.len(), size, chosen * slots]), device)
}
