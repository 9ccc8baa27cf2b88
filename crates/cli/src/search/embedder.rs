//! A contrastive model with its tokenizer.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::{Device, Int, Tensor, TensorData};
use omma_data::{
    Batch, Picture,
    text::{TextCounts, Tokenizer},
};
use omma_eval::{images_of, pixels_for};
use omma_model::{Mode, TextConfig, VisionTransformer, checkpoint};

use crate::{
    commands::{check_exists, note_margin},
    screen::Activity,
    subject::checkpoint_of,
    table::note,
};

/// Turns images and texts into vectors of length 1.
pub(crate) struct Embedder {
    model: VisionTransformer,
    text: TextConfig,
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
        let Some(text) = model.config().text.clone() else {
            bail!(
                "{shown} reads no text: it is {}; `omma train limoe` makes a model that does",
                model.config().in_words()
            );
        };
        note_margin(&model.config().image);
        let identity = serde_json::to_value(&identity)?.as_str().unwrap_or_default().to_owned();
        Ok(Self { model, text, checkpoint, identity, device: device.clone() })
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
        let mut batch = Batch::unlabelled(pictures, 0, &pixels_for(&self.model.config().image));
        let images = images_of(&mut batch, &self.device);
        self.values(self.model.embed_images(images, &Mode::Inference)?.embeddings)
    }

    /// `[B, E]`: the vectors of texts.
    pub(crate) fn texts(&self, texts: &[String], batch: usize) -> Result<Vec<f32>> {
        let tokenizer = self.tokenizer()?;
        let mut vectors = Vec::with_capacity(texts.len() * self.width());
        let mut counts = TextCounts::default();
        let activity = Activity::counted("texts", "text", 0, texts.len() as u64);
        for texts in texts.chunks(batch.max(1)) {
            let (ids, found) = tokenizer.encode_all(texts, self.text.length);
            counts += found;
            let shape = [texts.len(), self.text.length];
            let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &self.device);
            vectors.extend(self.values(self.model.embed_texts(ids, &Mode::Inference)?.embeddings)?);
            activity.add(texts.len() as u64);
        }
        if counts.unknown + counts.empty + counts.cut > 0 {
            note(counts);
        }
        Ok(vectors)
    }

    fn values(&self, embeddings: Tensor<2>) -> Result<Vec<f32>> {
        let values: Vec<f32> = embeddings.try_into_vec_as().expect("embeddings are floats");
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => bail!("{} makes vectors that are not numbers", self.checkpoint.display()),
        }
    }

    fn tokenizer(&self) -> Result<Tokenizer> {
        let path = checkpoint::tokenizer_path(&self.checkpoint);
        if !path.exists() {
            bail!(
                "{} has no {}, which says how words become tokens; copy there the one that it was trained with",
                self.checkpoint.display(),
                checkpoint::TOKENIZER
            );
        }
        let tokenizer = Tokenizer::read(&path).context("the tokenizer of the model")?;
        let (has, takes) = (tokenizer.vocabulary(), self.text.vocabulary);
        if has > takes {
            bail!(
                "{} has {has} tokens, but the model knows {takes}; it was trained with another one",
                path.display()
            );
        }
        Ok(tokenizer)
    }
}
