//! The way of sparse routing: logits, gates, affinity, allocation, weights.

use std::ops::Range;

use burn::tensor::{DType, Tensor, TensorData, activation::softmax};
use omma_base::transfer;
use rand::RngExt;
use rand_distr::StandardNormal;
use rayon::prelude::*;

use super::{
    Context, Router, Routing,
    batch::{Batch, Calls},
    check_finite, host,
};
use crate::{
    affinity::{Affinity, CombineWeights, SparseSide},
    allocation::Arrivals,
    error::{Result, RoutingError},
    gate::GateTable,
    layout::Groups,
    losses::{AuxiliaryLosses, GateTensors, first_largest},
    modalities::several,
    plan::{Plan, SparsePlan, indices},
    pool::Gate,
};

impl Router {
    pub(super) fn route_sparse(&self, tokens: Tensor<2>, context: &Context) -> Result<Routing> {
        let config = self.config();
        let batch = Batch::new(tokens, context, config.scope)?;
        let groups = Groups::new(&batch.layout, &config.grouping);
        let (clean, noisy) = self.logits(&batch, context)?;
        let alive = config.pruning.alive(config.experts)?;
        let capacities = config.capacities(&groups, &alive, context)?;

        let calls: Vec<Calls> =
            self.gates.iter().map(|gate| Calls::new(gate, &groups, &batch)).collect();
        let values = self.gate_values((&clean, noisy.as_ref()), &calls, &alive, context);
        let host_gates: Vec<Vec<f32>> = values.iter().map(|values| host(&values.gates)).collect();
        self.check_logits(noisy.as_ref().unwrap_or(&clean), &host_gates, &batch)?;
        let (tables, weights): (Vec<_>, Vec<_>) = self
            .gates
            .iter()
            .zip(values.iter().zip(host_gates))
            .map(|(gate, (values, gates))| {
                self.table(gate, values, gates, &alive, capacities.as_deref())
            })
            .unzip();

        let arrivals =
            Arrivals { groups: &groups, modality: batch.modality.as_deref(), seed: context.seed };
        let (assignments, weights) = config.assign(&tables, weights, &arrivals, capacities);
        let plan = SparsePlan::new(assignments, weights, groups, batch.span);
        let plan = match config.combine {
            CombineWeights::Normalised => plan.with_normalised_weights(),
            CombineWeights::Gates | CombineWeights::Affinity => plan,
        };
        let k = config.token_choice().map(|choice| choice.k);
        let modality = batch.modality.as_deref();
        Ok(Routing {
            losses: AuxiliaryLosses::new(&config.losses, &values, modality, k),
            coverage: self.coverage(noisy.as_ref().unwrap_or(&clean), &calls, &alive),
            plan: Plan::Sparse(plan),
            tables,
            modality: several(batch.modality),
        })
    }

    /// Logits of all gates side by side, `[rows, columns]`, without and with noise.
    fn logits(&self, batch: &Batch, context: &Context) -> Result<(Tensor<2>, Option<Tensor<2>>)> {
        let logits = batch.tokens.clone().matmul(self.weight.val());
        // Softmax, losses and comparisons are in single precision whatever the tokens are in.
        let logits = if logits.dtype() == DType::F32 { logits } else { logits.cast(DType::F32) };
        let [rows, columns] = logits.dims();
        if context.noise_of(self.config()) == 0.0 {
            return Ok((logits, None));
        }
        let noise = match &context.noise {
            Some(noise) if noise.dims() == [rows, columns] => noise.clone(),
            Some(noise) => {
                let (expected, found) = (vec![rows, columns], noise.dims().to_vec());
                return Err(RoutingError::Shape { what: "the noise", expected, found });
            }
            None => self.draw_noise(rows, context, &logits),
        };
        let noisy = logits.clone() + noise;
        Ok((logits, Some(noisy)))
    }

    /// Fails on logits that are not finite. They leave a trace in the gates, a value that is not a
    /// number or exactly 0, so that the logits themselves are rarely read.
    fn check_logits(&self, logits: &Tensor<2>, gates: &[Vec<f32>], batch: &Batch) -> Result<()> {
        let suspicious = |gate: &f32| !(*gate > 0.0 && *gate <= f32::MAX);
        if !gates.iter().flatten().any(suspicious) {
            return Ok(());
        }
        let [_, columns] = logits.dims();
        let expert = |column: usize| {
            let gate = self.gates.iter().find(|gate| gate.columns.contains(&column));
            gate.map_or(column, |gate| gate.experts[column - gate.columns.start])
        };
        check_finite(&host(logits), columns, |unit| batch.deciding_token(unit), expert)
    }

    /// `σ · N(0, 1)` with every gate's own `σ`, in blocks of rows with a stream of their own.
    fn draw_noise(&self, rows: usize, context: &Context, like: &Tensor<2>) -> Tensor<2> {
        const ROWS_PER_STREAM: usize = 1024;
        let [_, columns] = like.dims();
        let sigmas: Vec<f32> = self
            .gates
            .iter()
            .flat_map(|gate| {
                std::iter::repeat_n(self.sigma(gate, context) as f32, gate.columns.len())
            })
            .collect();
        let seed = context.seed.named("noise");
        let mut noise = vec![0.0_f32; rows * columns];
        noise.par_chunks_mut(ROWS_PER_STREAM * columns).enumerate().for_each(|(block, noise)| {
            let mut rng = seed.numbered(block as u64).rng();
            for row in noise.chunks_exact_mut(columns) {
                for (value, sigma) in row.iter_mut().zip(&sigmas) {
                    *value = rng.sample::<f32, _>(StandardNormal) * sigma;
                }
            }
        });
        transfer::brought(&noise);
        Tensor::from_data(TensorData::new(noise, [rows, columns]), &like.device())
    }

    /// `noise / E`, with `E` the experts that the gate was made for.
    fn sigma(&self, gate: &Gate, context: &Context) -> f64 {
        context.noise_of(self.config()) / gate.size as f64
    }

    /// The differentiable values of every gate for the tokens that call it.
    fn gate_values(
        &self,
        (clean, noisy): (&Tensor<2>, Option<&Tensor<2>>),
        calls: &[Calls],
        alive: &[bool],
        context: &Context,
    ) -> Vec<GateTensors> {
        let of_gate = |(gate, calls): (&Gate, &Calls)| {
            let kept: Vec<u32> = self.kept(gate, alive).map(|(column, _)| column).collect();
            let cut = |logits: &Tensor<2>| {
                let [_, columns] = logits.dims();
                let mut values = logits.clone();
                if kept.len() < columns {
                    values = match contiguous(&kept) {
                        Some(range) => values.narrow(1, range.start, range.len()),
                        None => values.select(1, indices(&kept, &logits.device())),
                    };
                }
                if calls.everyone_in_order {
                    values
                } else {
                    values.select(0, indices(&calls.tokens, &logits.device()))
                }
            };
            let clean = cut(clean);
            let noisy = noisy.map(|noisy| (cut(noisy), self.sigma(gate, context)));
            let routing = noisy.as_ref().map_or(&clean, |(noisy, _)| noisy);
            let gates = softmax(routing.clone(), 1);
            let (tokens, bounds) = (calls.tokens.clone(), calls.bounds.clone());
            GateTensors { clean, noisy, gates, tokens, bounds }
        };
        self.gates.iter().zip(calls).map(of_gate).collect()
    }

    /// The gate's columns of the weight with their experts, less those that router-drop removes.
    fn kept(&self, gate: &Gate, alive: &[bool]) -> impl Iterator<Item = (u32, usize)> {
        let columns = gate.columns.clone().zip(&gate.experts);
        let kept = columns.filter(|(_, expert)| !self.config().drops_pruned() || alive[**expert]);
        kept.map(|(column, expert)| (column as u32, *expert))
    }

    /// A gate's table on the host, and the differentiable values that combine weights are taken
    /// from, `[rows · columns]`.
    fn table(
        &self,
        gate: &Gate,
        values: &GateTensors,
        gates: Vec<f32>,
        alive: &[bool],
        capacities: Option<&[usize]>,
    ) -> (GateTable, Tensor<1>) {
        let experts: Vec<usize> = self.kept(gate, alive).map(|(_, expert)| expert).collect();
        let routing = values.noisy.as_ref().map_or(&values.clean, |(noisy, _)| noisy);
        let solved = self.solve(values, routing, &gates, capacities);
        let weights = solved.as_ref().and_then(|solved| solved.weights.clone());
        let weights = weights.unwrap_or_else(|| values.gates.clone());
        let table = GateTable {
            available: experts.iter().map(|expert| alive[*expert]).collect(),
            experts,
            tokens: values.tokens.clone(),
            bounds: values.bounds.clone(),
            gates,
            affinity: solved.map(|solved| solved.affinity),
        };
        let [rows, columns] = weights.dims();
        (table, weights.reshape([rows * columns]))
    }

    /// Solves the transport problem of every group, if the affinity is one.
    fn solve(
        &self,
        values: &GateTensors,
        logits: &Tensor<2>,
        gates: &[f32],
        capacities: Option<&[usize]>,
    ) -> Option<Solved> {
        let config = self.config();
        let differentiable = config.combine == CombineWeights::Affinity;
        let [_, columns] = logits.dims();
        let ranges: Vec<Range<usize>> =
            values.bounds.windows(2).map(|bounds| bounds[0]..bounds[1]).collect();
        let cells = |rows: &Range<usize>| rows.start * columns..rows.end * columns;
        let part = |tensor: &Tensor<2>, rows: &Range<usize>| {
            tensor.clone().narrow(0, rows.start, rows.len())
        };
        match &config.affinity {
            Affinity::Softmax => None,
            Affinity::Sinkhorn(solver) => {
                let host_logits = host(logits);
                let plans: Vec<_> = ranges
                    .par_iter()
                    .map(|rows| solver.solve(&host_logits[cells(rows)], [rows.len(), columns]))
                    .collect();
                let weights = plans.iter().zip(&ranges).filter(|(_, rows)| !rows.is_empty());
                let weights = differentiable.then(|| {
                    let weights =
                        weights.map(|(plan, rows)| plan.differentiable(part(logits, rows)));
                    weights.collect()
                });
                Some(Solved::new(plans.into_iter().map(|plan| plan.plan), weights))
            }
            Affinity::SparseTransport(solver) => {
                let plans: Vec<_> = ranges
                    .par_iter()
                    .enumerate()
                    .map(|(group, rows)| {
                        let (side, k) = match (config.token_choice(), capacities) {
                            (Some(choice), _) => (SparseSide::Tokens, choice.k),
                            (None, capacities) => {
                                let capacities = capacities.expect("expert choice has a capacity");
                                (SparseSide::Experts, capacities[group])
                            }
                        };
                        solver.solve(&gates[cells(rows)], [rows.len(), columns], side, k)
                    })
                    .collect();
                let weights = plans.iter().zip(&ranges).filter(|(_, rows)| !rows.is_empty());
                let weights = differentiable.then(|| {
                    let weights =
                        weights.map(|(plan, rows)| plan.differentiable(part(&values.gates, rows)));
                    weights.collect()
                });
                Some(Solved::new(plans.into_iter().map(|plan| plan.plan), weights))
            }
        }
    }

    /// The share of tokens whose best expert, pruned or not, is still there. Nobody knows where the
    /// columns are gone.
    fn coverage(&self, logits: &Tensor<2>, calls: &[Calls], alive: &[bool]) -> Option<f64> {
        if alive.iter().all(|alive| *alive) || self.config().pruning.cuts_columns() {
            return None;
        }
        let [_, columns] = logits.dims();
        let logits = host(logits);
        let (mut served, mut total) = (0, 0);
        for (gate, calls) in self.gates.iter().zip(calls) {
            for &token in &calls.tokens {
                let row = &logits[token as usize * columns..][gate.columns.clone()];
                served += usize::from(alive[gate.experts[first_largest(row)]]);
            }
            total += calls.tokens.len();
        }
        Some(served as f64 / total as f64)
    }
}

/// Transport plans of all groups of a gate, and the same as functions of the logits where combine
/// weights come from them.
struct Solved {
    affinity: Vec<f32>,
    weights: Option<Tensor<2>>,
}

impl Solved {
    fn new(plans: impl Iterator<Item = Vec<f32>>, weights: Option<Vec<Tensor<2>>>) -> Self {
        let weights = weights.filter(|weights| !weights.is_empty());
        let weights = weights.map(|weights| Tensor::cat(weights, 0));
        Self { affinity: plans.flatten().collect(), weights }
    }
}

/// The range that consecutive columns form.
fn contiguous(columns: &[u32]) -> Option<Range<usize>> {
    let (first, last) = (*columns.first()? as usize, *columns.last()? as usize);
    (last - first + 1 == columns.len()).then_some(first..last + 1)
}
