//! Several ranks that look at the same images, each at some of the batches.
//!
//! Ranks go through the batches in rounds, one batch each. All read all images, because which of them can be read decides
//! what a batch is; each makes something of its own batch of a round and says what, so that all know it of every batch,
//! in the order of the images. What they count is what one process counts.

use omma_data::{Batch, Pixels, TargetKind};
use omma_ranks::World;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    error::{EvalError, Result},
    stream::{Images, Watcher},
};

/// What makes something of batches.
pub(crate) trait Maker {
    /// What that is.
    type Made: Said;

    /// What it wants of images.
    fn pixels(&self) -> Pixels;

    /// What it wants beside them.
    fn targets(&self) -> TargetKind {
        TargetKind::default()
    }

    /// Those who look at images together.
    fn world(&self) -> Option<&World>;

    /// What it makes of a batch, which gives its pixels away.
    fn make(&self, batch: &mut Batch) -> Result<Self::Made>;

    /// Computes for ranks that make something of theirs, until none does.
    fn serve(&self) -> Result<()> {
        Ok(())
    }
}

/// What ranks say to each other.
pub(crate) trait Said: Sized {
    /// As it is said.
    type Words: Serialize + DeserializeOwned;

    fn words(&self) -> Self::Words;

    /// What another rank has said.
    fn heard(words: Self::Words) -> Self;
}

/// Of every model of an ensemble.
impl<T: Said> Said for Vec<T> {
    type Words = Vec<T::Words>;

    fn words(&self) -> Self::Words {
        self.iter().map(Said::words).collect()
    }

    fn heard(words: Self::Words) -> Self {
        words.into_iter().map(T::heard).collect()
    }
}

/// What a rank says in a round.
#[derive(Serialize, Deserialize)]
struct Told<W> {
    /// The images of all batches, which are the same on all ranks unless one cannot read what others can.
    round: Vec<usize>,
    found: Found<W>,
}

/// What a rank found in its batch.
#[derive(Serialize, Deserialize)]
enum Found<W> {
    /// It has none.
    Nothing,
    Something(W),
    Fault {
        what: String,
        not_finite: bool,
    },
}

impl Images {
    /// Every batch with what is made of it, on all ranks.
    pub(crate) fn made<M: Maker>(
        &self,
        maker: &M,
        batch: usize,
        watcher: &mut dyn Watcher,
        mut each: impl FnMut(&Batch, M::Made) -> Result<()>,
    ) -> Result<()> {
        let (targets, pixels) = (maker.targets(), maker.pixels());
        if let Some(world) = maker.world() {
            return self.made_by_ranks(world, maker, batch, watcher, each);
        }
        self.batches_of(targets, pixels, batch, watcher, |batch| {
            let made = maker.make(batch)?;
            each(batch, made)
        })
    }

    fn made_by_ranks<M: Maker>(
        &self,
        world: &World,
        maker: &M,
        batch: usize,
        watcher: &mut dyn Watcher,
        mut each: impl FnMut(&Batch, M::Made) -> Result<()>,
    ) -> Result<()> {
        let mut round: Vec<Batch> = Vec::with_capacity(world.size());
        let mut told_to_end = false;
        let mut go_round = |batches: &mut Vec<Batch>| {
            if !world.told(world.leads().then_some(true)) {
                told_to_end = true;
                return Err(EvalError::Interrupted);
            }
            let own = batches.get_mut(world.rank()).map(|batch| maker.make(batch));
            maker.serve()?;
            let round = batches.iter().flat_map(|batch| batch.indices.clone()).collect();
            let all = on_all_ranks(world, round, own)?;
            batches.drain(..).zip(all).try_for_each(|(batch, made)| each(&batch, made))
        };
        let (targets, pixels) = (maker.targets(), maker.pixels());
        let found = self.batches_of(targets, pixels, batch, watcher, |batch| {
            round.push(batch.clone());
            if round.len() == world.size() { go_round(&mut round) } else { Ok(()) }
        });
        let found = found.and_then(|()| match round.is_empty() {
            true => Ok(()),
            false => go_round(&mut round),
        });
        if world.leads() {
            world.told(Some(false));
            return found;
        }
        // Rank 0 says when it is over, whatever happened here.
        while !told_to_end && world.told(None) {
            maker.serve()?;
            let what = match &found {
                Err(error) => error.to_string(),
                Ok(()) => format!("it has fewer images of {} than rank 0", self.name),
            };
            let own = EvalError::OnRank { rank: world.rank(), what, not_finite: false };
            // All hear of it, this rank among them.
            let _ = on_all_ranks::<M::Made>(world, Vec::new(), Some(Err(own)));
        }
        found
    }
}

/// What all ranks made of their batches of a round, in their order, if none has failed.
fn on_all_ranks<T: Said>(
    world: &World,
    round: Vec<usize>,
    own: Option<Result<T>>,
) -> Result<Vec<T>> {
    let found = match &own {
        None => Found::Nothing,
        Some(Ok(made)) => Found::Something(made.words()),
        Some(Err(error)) => {
            Found::Fault { what: error.to_string(), not_finite: error.is_not_finite() }
        }
    };
    let all = world.shared(Told { round, found });
    // What this rank made stays as it is.
    let mut own = own.transpose()?;
    let is_fault = |told: &Told<T::Words>| matches!(told.found, Found::Fault { .. });
    let reads_others = |told: &Told<T::Words>| told.round != all[0].round;
    if let Some(rank) = all.iter().position(reads_others).filter(|_| !all.iter().any(is_fault)) {
        let what = "it cannot read the same images as rank 0".to_owned();
        return Err(EvalError::OnRank { rank, what, not_finite: false });
    }
    let found = all.into_iter().map(|told| told.found);
    let made = found.enumerate().filter_map(|(rank, found)| match found {
        Found::Nothing => None,
        Found::Something(words) => Some(Ok(match own.take_if(|_| rank == world.rank()) {
            Some(own) => own,
            None => T::heard(words),
        })),
        Found::Fault { what, not_finite } => {
            Some(Err(EvalError::OnRank { rank, what, not_finite }))
        }
    });
    made.collect()
}
