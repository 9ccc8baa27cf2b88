//! Images through the trunk, into a store.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use burn::tensor::Device;
use omma_base::{
    Seed,
    files::{FolderLock, LockError},
};
use omma_data::EvalLoader;
use omma_eval::images_of;

use super::{Key, Source, Store, store::Writing};
use crate::{
    error::{Result, TrainError},
    recipe::Recipe,
    trainer::{Observer, Stop},
};

/// Where activations are kept: `$OMMA_CACHE`, or `omma/activations` where the user's caches are.
fn cache_folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = set("OMMA_CACHE") {
        return folder.into();
    }
    let caches = set("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = caches.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
    caches.unwrap_or_else(std::env::temp_dir).join("omma/activations")
}

/// The activations of a trunk for the images of a run: those that were kept, or new ones, which are kept.
/// Where another process is making them, this one waits for it.
pub(crate) fn open_or_make(
    source: &Source,
    device: &Device,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<Store> {
    let key = Key::of(source)?;
    let folder = cache_folder().join(key.name());
    std::fs::create_dir_all(&folder).map_err(TrainError::io(&folder))?;
    let _owner = own(&folder, observer, stop)?;
    if let Some(store) = Store::open(&folder, &key)? {
        observer.note(&format!("kept activations of {}", about(&store, &folder)));
        return Ok(store);
    }
    make(source, &key, &folder, device, observer, stop)?;
    let store = Store::open(&folder, &key)?.ok_or_else(|| TrainError::Damaged {
        path: folder.clone(),
        why: "activations that were just written cannot be read".to_owned(),
    })?;
    observer.note(&format!("made activations of {}", about(&store, &folder)));
    Ok(store)
}

fn about(store: &Store, folder: &Path) -> String {
    let draws = match store.draws() {
        1 => String::new(),
        draws => format!(", {draws} draws of each"),
    };
    let gigabytes = store.bytes() as f64 / f64::from(1 << 30);
    let [tokens, width] = store.shape();
    format!(
        "{} images{draws} ({tokens} × {width} each, {gigabytes:.2} GiB) in {}",
        store.images().len(),
        folder.display()
    )
}

/// The right to write into a folder of activations, as soon as nobody else has it.
fn own(folder: &Path, observer: &mut dyn Observer, stop: &Stop) -> Result<FolderLock> {
    loop {
        stop.check()?;
        match FolderLock::take(folder) {
            Ok(lock) => return Ok(lock),
            Err(LockError::Io(error)) => return Err(TrainError::io(folder)(error)),
            Err(LockError::Held { owner }) => {
                observer.doing(&format!("waiting for {owner}, which is making these activations"));
                std::thread::sleep(Duration::from_millis(500));
            }
        }
    }
}

/// Where the choices of a draw of all images come from; nothing where these are their middles alone.
pub(super) fn draw_seed(recipe: &Recipe, draw: usize) -> Option<Seed> {
    let seed = Seed::new(recipe.seed).named("activations").numbered(draw as u64);
    (recipe.data.cache_augmentations > 0).then_some(seed)
}

fn make(
    source: &Source,
    key: &Key,
    folder: &Path,
    device: &Device,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<()> {
    let Source { recipe, model, blocks, images } = *source;
    let draws = key.draws.max(1);
    let batch = (recipe.train.batch / recipe.train.parts().max(1)).max(1);
    let mut writing = Writing::begin(folder, key)?;
    observer.counting("making activations of the frozen part", 0, images.len() * draws);
    let mut done = 0;
    for draw in 0..draws {
        let mut loader = EvalLoader::new(images.clone(), recipe.pixels(), batch);
        if let Some(seed) = draw_seed(recipe, draw) {
            loader = loader.with_augmentation(recipe.augment, seed);
        }
        for batch in loader {
            stop.check()?;
            let mut batch = batch?;
            let count = batch.len();
            let tokens = model.trunk(blocks, images_of(&mut batch, device))?;
            let [_, length, width] = tokens.dims();
            let tokens: Vec<f32> = tokens.try_into_vec_as().expect("activations are floats");
            for (image, row) in batch.indices.iter().zip(tokens.chunks_exact(length * width)) {
                writing.add(draw, *image, row, [length, width])?;
            }
            done += count;
            observer.counting("making activations of the frozen part", done, images.len() * draws);
        }
    }
    writing.finish()
}
