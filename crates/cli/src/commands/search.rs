//! `omma search`

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use burn::tensor::{Device, Tensor, TensorData};
use clap::Args;
use omma_base::files::write_atomically;
use omma_data::Picture;
use serde::Serialize;

use crate::{
    search::{Collection, Embedder, Hit, Index, best, page, photos_below},
    table::{grouped, note, say, say_json},
};

/// Find photos by words, or by a photo that they are like.
///
/// Every photo below the folder is compared with the query. Their vectors are kept in a folder
/// .omma-search beside them, one file per model, so that only new and changed photos are looked at the next
/// time; where nothing can be kept, it goes on without.
///
/// Examples:
///   omma search runs/limoe-1 "a red bird" photos/
///   omma search runs/limoe-1 "two dogs" photos/ --top 50 --page dogs.html
///   omma search runs/limoe-1 photos/ --image bird.jpg --json
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Search {
    /// The folder of a run of a model that reads text, or its checkpoint
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    subject: PathBuf,
    /// What to look for, in words (not with --image), then the folder with the photos
    #[arg(required = true, num_args = 1..=2, value_names = ["TEXT", "PHOTOS"])]
    what: Vec<String>,
    /// Look for photos like this one
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Photos that are named
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// Write a page with what is found
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Keep nothing beside the photos
    #[arg(long)]
    no_index: bool,
    /// Photos per forward pass
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Print what is found as JSON
    #[arg(long)]
    json: bool,
}

/// The longest bar of a score.
const BAR: usize = 20;

/// What was found, as other programs read it.
#[derive(Serialize)]
struct Answer<'a> {
    query: &'a str,
    photos: usize,
    /// Photos that were new or had changed.
    embedded: usize,
    /// Photos that were known and are gone.
    removed: usize,
    unreadable: usize,
    results: Vec<Found>,
}

#[derive(Serialize)]
struct Found {
    image: String,
    score: f32,
}

impl Search {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        let (query, folder) = self.query_and_folder()?;
        let (photos, nameless) = photos_below(&folder)?;
        if nameless > 0 {
            note(format!(
                "{} photos are left out: their names are no text",
                grouped(nameless as u64)
            ));
        }
        if photos.is_empty() {
            bail!("there is no image (JPEG, PNG, WebP, BMP) below {}", folder.display());
        }
        let embedder = Embedder::read(&self.subject, device)?;
        let wanted = match &self.image {
            Some(path) => embedder.pictures(&[embedder.fitted(&Picture::open(path)?)])?,
            None => embedder.texts(std::slice::from_ref(&query), 1)?,
        };
        let (batch, keeps) = (self.batch.into(), !self.no_index);
        let Collection { index, embedded, removed } =
            Collection::of(&embedder, &folder, photos, batch, keeps)?;
        if index.photos.is_empty() {
            let all = grouped(index.unreadable.len() as u64);
            bail!("none of {all} files below {} could be read as an image", folder.display());
        }
        let scores = scores(&index, wanted, device);
        let hits = best(&scores, self.top as usize);
        let path = |hit: &Hit| folder.join(&index.photos[hit.place].name);
        if let Some(to) = &self.page {
            let paths: Vec<PathBuf> = hits.iter().map(path).collect();
            let shown: Vec<(&Path, f32)> =
                paths.iter().map(PathBuf::as_path).zip(hits.iter().map(|hit| hit.score)).collect();
            let all = grouped(index.photos.len() as u64);
            let subtitle = format!("{} of {all} photos below {}", shown.len(), folder.display());
            write_atomically(to, |temporary| fs::write(temporary, page(&query, &subtitle, &shown)))
                .with_context(|| to.display().to_string())?;
        }
        if self.json {
            let found =
                |hit: &Hit| Found { image: path(hit).display().to_string(), score: hit.score };
            return say_json(&Answer {
                query: &query,
                photos: index.photos.len(),
                embedded,
                removed,
                unreadable: index.unreadable.len(),
                results: hits.iter().map(found).collect(),
            });
        }
        let mean = scores.iter().sum::<f32>() / scores.len() as f32;
        for hit in &hits {
            let bar = bar(hit.score, mean, hits[0].score);
            say(format!("{:6.3} {bar} {}", hit.score, path(hit).display()))?;
        }
        match &self.page {
            Some(to) => say(format!("wrote {}", to.display())),
            None => Ok(()),
        }
    }

    /// The query in words (of a photo, its name), and the folder.
    fn query_and_folder(&self) -> Result<(String, PathBuf)> {
        let (query, folder) = match (self.what.as_slice(), &self.image) {
            ([folder], Some(image)) => (image.display().to_string(), folder),
            ([query, folder], None) => (query.clone(), folder),
            ([_], None) => bail!(
                "name what to look for and the folder with the photos: omma search RUN \"a red bird\" photos/"
            ),
            _ => bail!("look for words or for a photo (--image), not for both"),
        };
        let folder = PathBuf::from(folder);
        if !folder.is_dir() {
            bail!("{} is not a folder with photos", folder.display());
        }
        Ok((query, folder))
    }
}

/// `[N]`: the cosines of all photos with a query, whose vectors have length 1.
fn scores(index: &Index, wanted: Vec<f32>, device: &Device) -> Vec<f32> {
    let (photos, width) = (index.photos.len(), wanted.len());
    let vectors = TensorData::new(index.vectors.clone(), [photos, width]);
    let vectors = Tensor::<2>::from_data(vectors, device);
    let wanted = Tensor::<2>::from_data(TensorData::new(wanted, [width, 1]), device);
    vectors.matmul(wanted).try_into_vec_as().expect("scores are floats")
}

/// A bar from what photos score on average to the best.
fn bar(score: f32, mean: f32, best: f32) -> String {
    let share = (score - mean) / (best - mean).max(f32::MIN_POSITIVE);
    let filled = (share.clamp(0.0, 1.0) * BAR as f32).round() as usize;
    format!("{}{}", "━".repeat(filled), " ".repeat(BAR - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_begin_at_the_mean_and_end_at_the_best() {
        let filled = |score| bar(score, 0.1, 0.3).matches('━').count();
        assert_eq!([filled(0.3), filled(0.2), filled(0.1), filled(-0.5)], [BAR, BAR / 2, 0, 0]);
        assert_eq!(bar(0.2, 0.2, 0.2).chars().count(), BAR);
    }
}
