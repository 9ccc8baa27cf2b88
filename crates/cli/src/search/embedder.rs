//! A contrastive model with its tokenizer.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use burn::tensor::Device;
use omma_base::Seed;
use omma_data::{Batch, Picture};
use omma_eval::{EvalError, Reader, Watcher, images_of, pixels_for};
use omma_model::{VisionTransformer, checkpoint};

use crate::{
    commands::{check_exists, note_margin},
    screen::Activity,
    subject::{checkpoint_of, tokenizer_of},
    table::note,
    watch::Watch,
};

/// Turns images and texts into vectors of length 1.
pub(crate) struct Embedder {
    model: VisionTransformer,
    /// As the user named it.
    path: PathBuf,
    /// Where its weights are.
    checkpoint: PathBuf,
    /// Tells its vectors from those of other models.
    pub(crate) identity: String,
    device: Device,
}

impl Embedder {
    /// Reads a run's model or a checkpoint of ours; fails where that reads no text.
    pub(crate) fn read(path: &Path, device: &Device) -> Result<Self> {
        check_exists(path)?;
        let checkpoint = checkpoint_of(path)?;
        let shown = path.display();
        if !checkpoint::is_ours(&checkpoint) {
            bail!(
                "{shown} is none of our checkpoints; `omma train limoe` makes one that reads text"
            );
        }
        let activity = Activity::new(format!("reading {shown}"));
        let (model, identity) = checkpoint::load_identified(&checkpoint, device)?;
        drop(activity);
        if !model.reads() {
            bail!(
                "{shown} reads no text: it is {}; `omma train limoe` makes a model that does",
                model.config().in_words()
            );
        }
        note_margin(&model.config().image);
        let identity = serde_json::to_value(&identity)?.as_str().unwrap_or_default().to_owned();
        let (path, device) = (path.to_owned(), device.clone());
        Ok(Self { model, path, checkpoint, identity, device })
    }

    /// Numbers of a vector.
    pub(crate) fn width(&self) -> usize {
        self.model.config().head.contrast().map_or(0, |contrast| contrast.embedding)
    }

    /// An image at the size that the model takes: a batch of photographs as they are may not fit into memory.
    pub(crate) fn fitted(&self, picture: &Picture) -> Picture {
        picture.centre_crop(self.model.config().image.resolution, 1.0)
    }

    /// `[B, E]`: the vectors of images.
    pub(crate) fn pictures(&self, pictures: &[Picture]) -> Result<Vec<f32>> {
        if pictures.is_empty() {
            return Ok(Vec::new());
        }
        let config = self.model.config();
        let mut batch = Batch::unlabelled(pictures, 0, &pixels_for(&config.image));
        let images = images_of(&mut batch, &self.device);
        let mode = config.prediction_mode(Seed::new(0));
        let vectors = self.model.embed_images(images, &mode)?.embeddings;
        let vectors: Vec<f32> = vectors.try_into_vec_as().expect("embeddings are floats");
        match vectors.iter().all(|value| value.is_finite()) {
            true => Ok(vectors),
            false => bail!("{} makes vectors that are not numbers", self.path.display()),
        }
    }

    /// `[B, E]`: the vectors of texts.
    pub(crate) fn texts(&self, texts: &[String], batch: usize) -> Result<Vec<f32>> {
        let tokenizer = tokenizer_of(&self.model, &[&self.checkpoint, &self.path])?;
        let tokenizer = tokenizer
            .ok_or_else(|| EvalError::NoTokenizer { model: self.path.display().to_string() })?;
        let reader = Reader::new(&self.model, &tokenizer, &self.device)?;
        let mut watch = Watch::new();
        watch.begins("texts", texts.len());
        let (vectors, counts) = reader.texts(texts, batch, &mut watch)?;
        drop(watch);
        if counts.unknown + counts.empty + counts.cut > 0 {
            note(counts);
        }
        Ok(vectors.values().to_vec())
    }
}
