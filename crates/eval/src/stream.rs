//! A data set through a system, batch by batch; nothing of it is kept.

use std::sync::Arc;

use omma_data::{Batch, Change, Dataset, EvalLoader, Pixels, Sample, Shared, TargetKind};

use crate::{
    error::{EvalError, Result},
    system::{Outputs, System},
};

/// Hears how far an evaluation is, and may end it.
pub trait Watcher {
    /// Something of so many images begins; of none, something that is not about images.
    fn begins(&mut self, what: &str, images: usize);
    /// So many more of them are done.
    fn done(&mut self, images: usize);
    /// Whether to stop. Asked between batches; the evaluation then fails with
    /// [`EvalError::Interrupted`].
    fn stopped(&self) -> bool {
        false
    }
}

/// Hears nothing and never stops.
impl Watcher for () {
    fn begins(&mut self, _: &str, _: usize) {}
    fn done(&mut self, _: usize) {}
}

/// Images to be judged by.
#[derive(Clone)]
pub struct Images {
    /// What they are called in records and messages.
    pub name: String,
    /// Where they come from.
    pub data: Shared,
    /// What is done to each before it is normalised.
    pub(crate) change: Option<Change>,
}

impl Images {
    /// Images as they are.
    pub fn new(name: impl Into<String>, data: Shared) -> Self {
        Self { name: name.into(), data, change: None }
    }

    /// The same with other names for the classes, as many as there are.
    pub fn with_classes(self, classes: Vec<String>) -> Self {
        let data = Arc::new(Renamed { data: self.data.clone(), classes });
        Self { data, ..self }
    }

    /// Batches that are made on a thread of their own while the last one is looked at.
    pub(crate) fn batches(
        &self,
        pixels: Pixels,
        batch: usize,
        watcher: &mut dyn Watcher,
        each: impl FnMut(&mut Batch) -> Result<()>,
    ) -> Result<()> {
        self.batches_of(TargetKind::default(), pixels, batch, watcher, each)
    }

    /// The same with other targets than classes.
    pub(crate) fn batches_of(
        &self,
        targets: TargetKind,
        pixels: Pixels,
        batch: usize,
        watcher: &mut dyn Watcher,
        mut each: impl FnMut(&mut Batch) -> Result<()>,
    ) -> Result<()> {
        if self.data.is_empty() {
            return Err(EvalError::Empty { data: self.name.clone() });
        }
        let mut loader = EvalLoader::new(self.data.clone(), pixels, batch).with_targets(targets);
        if let Some(change) = &self.change {
            loader = loader.with_change(change.clone());
        }
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
                if watcher.stopped() {
                    return Err(EvalError::Interrupted);
                }
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

    /// Every batch with the members' logits for it, all of them numbers.
    pub(crate) fn outputs(
        &self,
        system: &System,
        batch: usize,
        watcher: &mut dyn Watcher,
        mut each: impl FnMut(&Batch, Outputs) -> Result<()>,
    ) -> Result<()> {
        self.made(&system.logits_of(), batch, watcher, |batch, outputs| {
            self.check(system, batch, &outputs)?;
            each(batch, outputs)
        })
    }

    /// Computes this rank's batches for the others, one of which counts.
    pub fn help(&self, system: &System, batch: usize) -> Result<()> {
        if system.world().is_none() {
            return Ok(());
        }
        match self.outputs(system, batch, &mut (), |_, _| Ok(())) {
            // Rank 0 has seen enough, and says why.
            Err(EvalError::Interrupted) => Ok(()),
            found => found,
        }
    }

    /// The members' logits for every image, with its label, in order.
    ///
    /// - `each`: gets the logits, `[M]` of `[classes]`, and the label
    pub(crate) fn logits(
        &self,
        system: &System,
        batch: usize,
        watcher: &mut dyn Watcher,
        mut each: impl FnMut(&[&[f32]], usize),
    ) -> Result<()> {
        self.outputs(system, batch, watcher, |batch, outputs| {
            for (image, label) in batch.labels().iter().enumerate() {
                let members: Vec<&[f32]> = outputs.of_image(image).collect();
                each(&members, *label);
            }
            Ok(())
        })
    }

    /// Fails if an output is not a number.
    pub(crate) fn check(&self, system: &System, batch: &Batch, outputs: &Outputs) -> Result<()> {
        match outputs.first_broken() {
            Some(image) => Err(EvalError::NotFinite {
                model: system.name(),
                data: self.name.clone(),
                index: batch.indices[image],
            }),
            None => Ok(()),
        }
    }
}

/// Data whose classes have other names.
struct Renamed {
    data: Shared,
    classes: Vec<String>,
}

impl Dataset for Renamed {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.data.len()
    }

    fn label(&self, index: usize) -> usize {
        self.data.label(index)
    }

    fn get(&self, index: usize) -> omma_data::Result<Sample> {
        self.data.get(index)
    }

    fn name(&self, index: usize) -> String {
        self.data.name(index)
    }

    fn captions(&self, index: usize) -> omma_data::Result<Vec<String>> {
        self.data.captions(index)
    }

    fn has_captions(&self) -> bool {
        self.data.has_captions()
    }

    fn pixel_classes(&self) -> Option<&[String]> {
        self.data.pixel_classes()
    }
}
