//! Batches of activations in the order of the run.

use std::sync::{
    Arc,
    mpsc::{Receiver, sync_channel},
};

use omma_base::Seed;
use omma_data::{Cursor, DataError, Order, Shared, TargetKind, Targets};

use super::Store;
use crate::{
    error::{Result, TrainError},
    trainer::{Examples, Input},
};

/// Endless batches of activations: the order of images is that of [`omma_data::TrainLoader`], and in every
/// epoch another draw of each comes up, in turn.
pub(crate) struct ActivationLoader {
    batches: Receiver<Result<Examples>>,
}

impl ActivationLoader {
    /// Batches from the cursor on, read ahead on a thread of their own.
    pub(crate) fn new(
        store: Store,
        data: &Shared,
        targets: TargetKind,
        batch: usize,
        (seed, cursor): (Seed, Cursor),
        ahead: usize,
    ) -> Result<Self> {
        let TargetKind::Classes { smoothing } = targets else {
            let what = "activations are kept for classification alone (data.cache)".to_owned();
            return Err(TrainError::Recipe { what });
        };
        let mut order = Order::new(store.images().len(), batch, seed)?;
        let classes = data.classes().len();
        let labels: Arc<[usize]> =
            store.images().iter().map(|image| data.label(*image as usize)).collect();
        let (send, batches) = sync_channel(ahead.max(1));
        let make = move |number: u64, order: &mut Order| -> Result<Examples> {
            let draw = (order.epoch(number) % store.draws() as u64) as usize;
            let (places, first) = order.of(number);
            let place = |slot: usize| places[(first + slot) % places.len()] as usize;
            let [tokens, width] = store.shape();
            let mut values = Vec::with_capacity(batch * tokens * width);
            for slot in 0..batch {
                store.read(draw, place(slot), &mut values)?;
            }
            let labels = (0..batch).map(|slot| labels[place(slot)]).collect();
            Ok(Examples {
                input: Input::Tokens { values, shape: [batch, tokens, width] },
                targets: Targets::of_classes(labels, classes, smoothing),
            })
        };
        let read = move || {
            for number in cursor.batches.. {
                if send.send(make(number, &mut order)).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new()
            .name("activations".to_owned())
            .spawn(read)
            .map_err(|_| DataError::WorkerLost)?;
        Ok(Self { batches })
    }

    pub(crate) fn next_batch(&mut self) -> Result<Examples> {
        self.batches.recv().map_err(|_| DataError::WorkerLost)?
    }
}
