//! A data set in memory.

use crate::{
    dataset::{Dataset, Sample},
    error::Result,
};

type Function<T> = Box<dyn Fn(usize) -> T + Send + Sync>;

/// A data set whose samples a function makes.
pub struct GeneratedDataset {
    classes: Vec<String>,
    len: usize,
    sample: Function<Result<Sample>>,
    label: Option<Function<usize>>,
    has_captions: bool,
}

impl GeneratedDataset {
    /// A data set of `len` samples; `sample` makes one from its index, the same one every time.
    pub fn new(
        classes: &[String],
        len: usize,
        sample: impl Fn(usize) -> Result<Sample> + Send + Sync + 'static,
    ) -> Self {
        let sample = Box::new(sample);
        Self { classes: classes.to_vec(), len, sample, label: None, has_captions: false }
    }

    /// Takes labels from a function; without one, the whole sample is made for its label, and a
    /// sample that cannot be read has label 0.
    #[must_use]
    pub fn with_labels(mut self, label: impl Fn(usize) -> usize + Send + Sync + 'static) -> Self {
        self.label = Some(Box::new(label));
        self
    }

    /// Declares that the samples have captions.
    #[must_use]
    pub fn with_captions(mut self) -> Self {
        self.has_captions = true;
        self
    }
}

impl Dataset for GeneratedDataset {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.len
    }

    fn label(&self, index: usize) -> usize {
        match &self.label {
            Some(label) => label(index),
            None => (self.sample)(index).map_or(0, |sample| sample.label),
        }
    }

    fn get(&self, index: usize) -> Result<Sample> {
        (self.sample)(index)
    }

    fn has_captions(&self) -> bool {
        self.has_captions
    }
}
