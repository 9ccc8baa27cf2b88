//! Several ranks that look at the same images, each at some of the batches.
//!
//! Ranks go through the batches in rounds, one batch each. All read all images, because which of them can be read decides
//! what a batch is; each computes its own batch of a round and gives rank 0 the outputs, which counts them in the order
//! of the images. So scores are those of one process.

use omma_data::Batch;
use omma_ranks::World;
use serde::{Deserialize, Serialize};

use crate::{
    error::{EvalError, Result},
    routing::RoutingTally,
    stream::{Images, Watcher},
    system::{Outputs, System},
};

/// What a rank found in its batch of a round.
#[derive(Serialize, Deserialize)]
enum Found {
    /// It has none.
    Nothing,
    /// Outputs of some shape, and how experts were used, as JSON.
    Outputs {
        shape: [usize; 3],
        counted: Vec<String>,
    },
    Fault {
        what: String,
        not_finite: bool,
    },
}

impl Images {
    /// Computes this rank's batches for rank 0, which looks at the same images.
    pub fn help(&self, system: &System, batch: usize) -> Result<()> {
        match &self.world {
            Some(world) => self.outputs_of_ranks(world, system, batch, &mut (), |_, _| Ok(())),
            None => Ok(()),
        }
    }

    /// Every batch with the members' logits for it, on rank 0.
    pub(crate) fn outputs_of_ranks(
        &self,
        world: &World,
        system: &System,
        batch: usize,
        watcher: &mut dyn Watcher,
        mut each: impl FnMut(&Batch, Outputs) -> Result<()>,
    ) -> Result<()> {
        let mut round: Vec<Batch> = Vec::with_capacity(world.size());
        let mut told_to_end = false;
        let mut compute = |batches: &mut Vec<Batch>| {
            if !world.told(world.leads().then_some(true)) {
                told_to_end = true;
                return Err(EvalError::Interrupted);
            }
            let own = batches.get_mut(world.rank()).map(|batch| system.logits(batch));
            system.serve_experts()?;
            let all = on_first_rank(world, own)?;
            for (batch, outputs) in batches.drain(..).zip(all) {
                self.check(system, &batch, &outputs)?;
                each(&batch, outputs)?;
            }
            batches.clear();
            Ok(())
        };
        let found = self.batches(system.pixels(), batch, watcher, |batch| {
            round.push(batch.clone());
            if round.len() == world.size() { compute(&mut round) } else { Ok(()) }
        });
        let found = found.and_then(|()| match round.is_empty() {
            true => Ok(()),
            false => compute(&mut round),
        });
        if world.leads() {
            world.told(Some(false));
            return found;
        }
        // Rank 0 says when it is over, whatever happened here.
        while !told_to_end && world.told(None) {
            system.serve_experts()?;
            let fault = match &found {
                Err(error) => error.to_string(),
                Ok(()) => format!("it has fewer images of {} than rank 0", self.name),
            };
            on_first_rank(
                world,
                Some(Err(EvalError::OnRank { rank: world.rank(), what: fault, not_finite: false })),
            )?;
        }
        match found {
            Err(EvalError::Interrupted) if told_to_end => Ok(()),
            found => found,
        }
    }
}

/// What all ranks found in their batches of a round, in their order; nothing on other ranks than the first.
fn on_first_rank(world: &World, own: Option<Result<Outputs>>) -> Result<Vec<Outputs>> {
    let told = match &own {
        None => Found::Nothing,
        Some(Ok(outputs)) => {
            let written = |tally: &RoutingTally| serde_json::to_string(tally).unwrap_or_default();
            let counted = outputs.tallies().iter().map(written).collect();
            Found::Outputs { shape: outputs.shape(), counted }
        }
        Some(Err(error)) => {
            Found::Fault { what: error.to_string(), not_finite: error.is_not_finite() }
        }
    };
    let all = world.shared(told);
    let fault = all.iter().enumerate().find_map(|(rank, found)| match found {
        Found::Fault { what, not_finite } => {
            let (what, not_finite) = (what.clone(), *not_finite);
            Some(EvalError::OnRank { rank, what, not_finite })
        }
        _ => None,
    });
    let own = own.transpose()?;
    if let Some(fault) = fault {
        // Rank 0 says it, and that it is over.
        return if world.leads() { Err(fault) } else { Ok(Vec::new()) };
    }
    let size = |found: &Found| match found {
        Found::Outputs { shape, .. } if world.leads() => shape.iter().product(),
        _ => 0,
    };
    let sizes: Vec<usize> = all.iter().map(size).collect();
    let mut sent = vec![0; world.size()];
    // What rank 0 has stays where it is, and so does who went where.
    let (values, mut own) = match own {
        Some(outputs) if !world.leads() => (outputs.into_values(), None),
        own => (Vec::new(), own),
    };
    sent[0] = values.len();
    let mut sizes_from_others = sizes;
    sizes_from_others[0] = 0;
    let values = world.all_to_all(values, &sent, &sizes_from_others);
    let mut rest = values.as_slice();
    let mut outputs = Vec::new();
    for (rank, found) in all.into_iter().enumerate().filter(|_| world.leads()) {
        let Found::Outputs { shape, counted } = found else { continue };
        if let Some(own) = own.take_if(|_| rank == 0) {
            outputs.push(own);
            continue;
        }
        let (values, left) = rest.split_at(shape.iter().product());
        rest = left;
        let tally = |json: &String| serde_json::from_str(json).unwrap_or_default();
        let counted = counted.iter().map(tally).collect();
        outputs.push(Outputs::from_elsewhere(shape, values.to_vec(), counted));
    }
    Ok(outputs)
}
