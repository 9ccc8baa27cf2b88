//! Masks as they are written: one file of classes and one to look at for every image.

use std::{
    collections::HashSet,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use omma_base::text::visible;
use omma_data::{Picture, formats::write_mask};
use omma_eval::{PixelMap, colour, overlaid};
use serde::Serialize;

use super::{Format, Input};

/// Writes masks into a folder, and a line about each.
pub(crate) struct MaskWriter<'a> {
    folder: PathBuf,
    format: Format,
    names: &'a [String],
    top: usize,
    shown: bool,
    begun: bool,
    taken: HashSet<String>,
    to: &'a mut dyn Write,
}

/// What an image shows, by its pixels.
#[derive(Debug, Serialize)]
struct Line<'a> {
    image: &'a str,
    mask: String,
    overlay: String,
    /// Classes by their shares of the pixels, the largest first.
    top: Vec<Share<'a>>,
    /// The mean over pixels of how likely the likeliest class is held to be.
    confidence: f64,
}

#[derive(Debug, Serialize)]
struct Share<'a> {
    class: &'a str,
    share: f64,
}

impl<'a> MaskWriter<'a> {
    /// Into a folder that is not there yet, or is empty.
    pub(crate) fn new(
        folder: &Path,
        format: Format,
        names: &'a [String],
        top: usize,
        shown: bool,
        to: &'a mut dyn Write,
    ) -> Result<Self> {
        let context = || folder.display().to_string();
        std::fs::create_dir_all(folder).with_context(context)?;
        if std::fs::read_dir(folder).with_context(context)?.next().is_some() {
            bail!("{} is not empty; give another folder with --masks", folder.display());
        }
        let (folder, taken) = (folder.to_owned(), HashSet::new());
        Ok(Self { folder, format, names, top, shown, begun: false, taken, to })
    }

    /// A name that no other image of these has.
    fn stem(&mut self, input: &Input) -> String {
        let stem = Path::new(&input.name).file_stem().unwrap_or_default().to_string_lossy();
        let stem = if stem == "-" { "image" } else { &stem };
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let all = std::iter::once(stem.to_owned()).chain(numbered);
        let mut free = all.filter(|name| !self.taken.contains(name));
        let name = free.next().expect("numbers do not end");
        self.taken.insert(name.clone());
        name
    }

    /// Writes `NAME.png`, whose values are classes, and `NAME-overlay.png`.
    pub(crate) fn write(&mut self, input: &Input, picture: &Picture, map: &PixelMap) -> Result<()> {
        let stem = self.stem(input);
        let [mask, overlay] =
            ["", "-overlay"].map(|end| self.folder.join(format!("{stem}{end}.png")));
        let classes = map.predicted();
        write_mask(&mask, &classes, map.resolution, |class| colour(class.into()))?;
        let colours = classes.iter().map(|class| Some(colour(usize::from(*class))));
        overlaid(picture, colours).save_png(&overlay)?;
        let line = Line {
            image: &input.name,
            mask: mask.display().to_string(),
            overlay: overlay.display().to_string(),
            top: self.shares(&classes, map.classes),
            confidence: map.mean_confidence(),
        };
        let mut text = match self.format {
            Format::Text => in_words(&line),
            Format::Csv => csv(&line, self.top, !self.begun)?,
            Format::Jsonl => serde_json::to_string(&line)? + "\n",
        };
        if self.shown || self.format != Format::Csv {
            text = visible(&text).into_owned();
        }
        self.begun = true;
        Ok(self.to.write_all(text.as_bytes())?)
    }

    fn shares(&self, pixels: &[u8], classes: usize) -> Vec<Share<'a>> {
        let mut counts = vec![0_usize; classes];
        pixels.iter().for_each(|class| counts[usize::from(*class)] += 1);
        let mut order: Vec<usize> = (0..classes).filter(|class| counts[*class] > 0).collect();
        order.sort_by_key(|class| std::cmp::Reverse(counts[*class]));
        let share = |class: usize| Share {
            class: self.names.get(class).map_or("?", String::as_str),
            share: counts[class] as f64 / pixels.len().max(1) as f64,
        };
        order.into_iter().take(self.top).map(share).collect()
    }
}

/// `photo.jpg: road 41.2 %, sky 20.1 %  (confidence 0.87) → masks/photo.png`
fn in_words(line: &Line) -> String {
    let shares = line.top.iter().map(|one| format!("{} {:.1} %", one.class, 100.0 * one.share));
    let shares = shares.collect::<Vec<_>>().join(", ");
    format!("{}: {shares}  (confidence {:.2}) → {}\n", line.image, line.confidence, line.mask)
}

/// A row of the same columns for every image; the header before the first.
fn csv(line: &Line, top: usize, begins: bool) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    if begins {
        let mut header = ["image", "mask", "overlay", "confidence"].map(str::to_owned).to_vec();
        for place in 1..=top {
            header.extend(["class", "share"].map(|of| format!("{of}_{place}")));
        }
        writer.write_record(&header)?;
    }
    let number = |value: f64| format!("{value:.6}");
    let mut row = vec![line.image.to_owned(), line.mask.clone(), line.overlay.clone()];
    row.push(number(line.confidence));
    for place in 0..top {
        let share = line.top.get(place);
        row.push(share.map(|one| one.class.to_owned()).unwrap_or_default());
        row.push(share.map(|one| number(one.share)).unwrap_or_default());
    }
    writer.write_record(&row)?;
    Ok(String::from_utf8(writer.into_inner()?)?)
}
