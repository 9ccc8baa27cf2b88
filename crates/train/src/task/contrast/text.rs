//! Which tokenizer a run reads with.

use omma_data::{Selection, Shared, text::Tokenizer};
use omma_model::checkpoint;

use crate::{error::Result, recipe::Recipe};

/// Images whose captions a vocabulary is learned from, at most, evenly spread over the data.
const LEARNED_FROM: usize = 50_000;

/// The tokenizer of a new run: the one that its recipe names, that of the checkpoint it starts from, or one that is
/// learned from the captions of its training images.
pub(crate) fn found_tokenizer(recipe: &Recipe, images: &Shared) -> Result<Tokenizer> {
    let named = recipe.contrast.tokenizer.clone();
    let before = recipe.init.as_deref().map(checkpoint::tokenizer_path);
    let before = before.filter(|path| path.exists());
    if let Some(path) = named.or(before) {
        return Ok(Tokenizer::read(&path)?);
    }
    let some = Selection::spread(images, LEARNED_FROM);
    let mut captions = Vec::new();
    for index in 0..some.len() {
        captions.extend(some.captions(index)?);
    }
    let most = recipe.model.text.as_ref().map_or(0, |text| text.vocabulary);
    Ok(Tokenizer::learn(captions.into_iter(), recipe.contrast.vocabulary, most)?)
}
