//! Soft MoE: slots, experts, mixing.

use burn::tensor::Tensor;

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
    let [groups, size, width] = tokens.dims();
    let [experts, _, _] = parameters.up.dims();
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
    let runs = |group: usize, expert: usize| run.is_none_or(|run| run[group].contains(&expert));

    let inputs = mix(dispatch, tokens, Mixing::ToSlots).reshape([groups * columns, width]);
    let mut offsets = vec![0];
    let mut rows = Vec::with_capacity(groups * columns);
    for expert in 0..experts {
        for group in (0..groups).filter(|group| runs(*group, expert)) {
            let first = group * columns + expert * slots;
            rows.extend((first..first + slots).map(|row| row as u32));
        }
        offsets.push(rows.len());
    }
    let weights = Tensor::ones([rows.len()], (&inputs.device(), inputs.dtype()));
    let routes = Dispatch::new(offsets, rows, groups * columns);
    let outputs = expert_mlp(inputs, weights, parameters, &routes, activation, dropout);
    let [_, width] = outputs.dims();
    mix(combine, outputs.reshape([groups, columns, width]), Mixing::ToTokens)
}
