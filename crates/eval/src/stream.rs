//! A data set through a system, batch by batch; nothing of it is kept.

use omma_data::{Batch, Change, EvalLoader, Shared};

use crate::{
    error::{EvalError, Result},
    system::System,
};

/// Hears how far an evaluation is.
pub trait Watcher {
    /// Something of so many images begins.
    fn begins(&mut self, what: &str, images: usize);
    /// So many more of them are done.
    fn done(&mut self, images: usize);
}

/// Hears nothing.
impl Watcher for () {
    fn begins(&mut self, _: &str, _: usize) {}
    fn done(&mut self, _: usize) {}
}

/// Images to be judged by.
#[derive(Clone)]
pub struct Images {
    /// What they are called.
    pub name: String,
    /// The images.
    pub data: Shared,
    /// What is done to each.
    pub change: Option<Change>,
}

impl Images {
    /// Images as they are.
    pub fn new(name: impl Into<String>, data: Shared) -> Self {
        Self { name: name.into(), data, change: None }
    }

    fn loader(&self, system: &System, batch: usize) -> EvalLoader {
        let loader = EvalLoader::new(self.data.clone(), system.pixels(), batch);
        match &self.change {
            Some(change) => loader.with_change(change.clone()),
            None => loader,
        }
    }

    /// Batches that are made on a thread of their own while the last one is looked at.
    pub(crate) fn batches(
        &self,
        system: &System,
        batch: usize,
        watcher: &mut dyn Watcher,
        mut each: impl FnMut(&mut Batch) -> Result<()>,
    ) -> Result<()> {
        if self.data.is_empty() {
            return Err(EvalError::Empty { data: self.name.clone() });
        }
        let loader = self.loader(system, batch);
        std::thread::scope(|scope| {
            let (send, receive) = std::sync::mpsc::sync_channel(2);
            scope.spawn(move || {
                for batch in loader {
                    if send.send(batch).is_err() {
                        break;
                    }
                }
            });
            let mut seen = 0;
            for made in receive {
                let mut made = made?;
                let images = made.len();
                each(&mut made)?;
                seen += images;
                watcher.done(images);
            }
            match seen {
                0 => Err(EvalError::Empty { data: self.name.clone() }),
                _ => Ok(()),
            }
        })
    }

    /// What the members say of every image, with its label, in order.
    ///
    /// - `each`: gets the members' logits, `[M]` of `[classes]`, and the label
    pub fn predictions(
        &self,
        system: &System,
        batch: usize,
        watcher: &mut dyn Watcher,
        mut each: impl FnMut(&[&[f32]], usize),
    ) -> Result<()> {
        self.batches(system, batch, watcher, |batch| {
            let said = system.logits(batch)?;
            if let Some(image) = said.first_broken() {
                let (model, data) = (system.name(), self.name.clone());
                return Err(EvalError::NotFinite { model, data, index: batch.indices[image] });
            }
            for (image, label) in batch.labels().iter().enumerate() {
                let members: Vec<&[f32]> = said.of(image).collect();
                each(&members, *label);
            }
            Ok(())
        })
    }
}
