//! The photos of a folder, with their vectors.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use omma_data::Picture;
use rayon::prelude::*;

use super::{Embedder, Index, Photo};
use crate::{
    screen::Activity,
    table::{grouped, note},
};

/// Files that are named when they cannot be read; more are only counted.
const NAMED: usize = 20;
/// How often an index that is being made is kept, so that little is lost.
const KEEP_EVERY: Duration = Duration::from_secs(30);

/// A folder's photos, brought up to date.
pub(crate) struct Collection {
    pub(crate) index: Index,
    /// Photos that were new or had changed.
    pub(crate) embedded: usize,
    /// Photos that were known and are gone.
    pub(crate) removed: usize,
}

impl Collection {
    /// The vectors of all photos: those that are kept, and of the rest now.
    ///
    /// - `batch`: photos per forward pass
    /// - `keeps`: whether an index beside the photos is read and written
    pub(crate) fn of(
        embedder: &Embedder,
        folder: &Path,
        photos: Vec<Photo>,
        batch: usize,
        keeps: bool,
    ) -> Result<Self> {
        let width = embedder.width();
        let kept = match keeps {
            true => Index::read(folder, &embedder.identity, width),
            false => Ok(None),
        };
        let kept = kept.unwrap_or_else(|error| {
            note(format!("{error:#}; it is made again"));
            None
        });
        let before = kept.as_ref().map_or(0, |index| index.photos.len() + index.unreadable.len());
        let names: std::collections::HashSet<String> = match &kept {
            Some(index) => {
                let all = index.photos.iter().chain(&index.unreadable);
                all.map(|photo| photo.name.clone()).collect()
            }
            None => Default::default(),
        };
        let still = photos.iter().filter(|photo| names.contains(&photo.name)).count();
        let removed = before - still;
        let (mut index, fresh) = kept.unwrap_or_default().split(photos, width);
        let embedded = fresh.len();
        if embedded > 0 {
            look_at(embedder, folder, &fresh, &mut index, batch, keeps)?;
            index = index.sorted(width);
        }
        if (embedded > 0 || removed > 0) && keeps {
            keep(&index, folder, &embedder.identity);
        }
        Ok(Collection { index, embedded, removed })
    }
}

fn look_at(
    embedder: &Embedder,
    folder: &Path,
    fresh: &[Photo],
    index: &mut Index,
    batch: usize,
    keeps: bool,
) -> Result<()> {
    let activity = Activity::counted("photos", "photo", 0, fresh.len() as u64);
    let (mut kept, mut refused) = (Instant::now(), 0);
    for batch in fresh.chunks(batch) {
        let open = |photo: &Photo| {
            Picture::open(&folder.join(&photo.name)).map(|picture| embedder.fitted(&picture))
        };
        let opened: Vec<_> = batch.par_iter().map(open).collect();
        let mut pictures = Vec::with_capacity(batch.len());
        for (photo, opened) in batch.iter().zip(opened) {
            match opened {
                Ok(picture) => {
                    pictures.push(picture);
                    index.photos.push(photo.clone());
                }
                Err(error) => {
                    if refused < NAMED {
                        note(format!("left out: {error}"));
                    }
                    refused += 1;
                    index.unreadable.push(photo.clone());
                }
            }
        }
        index.vectors.extend(embedder.pictures(&pictures)?);
        activity.add(batch.len() as u64);
        if kept.elapsed() > KEEP_EVERY && keeps {
            // Said once, at the end.
            let _ = index.write(folder, &embedder.identity);
            kept = Instant::now();
        }
    }
    drop(activity);
    if refused > 0 {
        let (bad, all) = (grouped(refused as u64), grouped(fresh.len() as u64));
        note(format!("{bad} of {all} files could not be read and were left out"));
    }
    Ok(())
}

fn keep(index: &Index, folder: &Path, model: &str) {
    if let Err(error) = index.write(folder, model) {
        note(format!("nothing is kept for the next time: {}: {error}", folder.display()));
    }
}
