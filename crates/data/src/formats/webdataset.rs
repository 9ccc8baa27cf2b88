//! WebDataset: samples in tar archives, the files of a sample next to each other and of the same name
//! up to the first dot: an image, and a `cls`, a `txt` or a `json` with a caption.

use std::{
    collections::HashMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use omma_base::files::open_regular;

use super::{
    classes::{check_classes, classes, places},
    json_words::captions,
};
use crate::{
    dataset::{Dataset, Sample},
    error::{DataError, Result},
    picture::Picture,
};

/// Where the bytes of a file in an archive are.
#[derive(Debug, Clone)]
struct Place {
    shard: usize,
    start: u64,
    size: u64,
}

/// Samples of all shards. The archives are listed once and read where they are.
#[derive(Debug)]
pub struct WebDataset {
    shards: Vec<PathBuf>,
    classes: Vec<String>,
    samples: Vec<Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    image: Place,
    label: usize,
    captions: Vec<String>,
    name: String,
}

/// More names than this are taken for a slip of the pen.
const MOST_NAMES: usize = 1_000_000;

/// `{000..012}` in a name, written out. A name whose braces make no sense stays as it is.
pub(super) fn expand_braces(pattern: &str) -> Vec<String> {
    let as_it_is = || vec![pattern.to_owned()];
    let Some((before, rest)) = pattern.split_once('{') else { return as_it_is() };
    let Some((inside, after)) = rest.split_once('}') else { return as_it_is() };
    let parts: Vec<String> = match inside.split_once("..") {
        Some((from, to)) => match (from.parse::<usize>(), to.parse::<usize>()) {
            (Ok(first), Ok(last)) if first <= last && last - first < MOST_NAMES => {
                (first..=last).map(|n| format!("{n:0width$}", width = from.len())).collect()
            }
            _ => return as_it_is(),
        },
        None => inside.split(',').map(str::to_owned).collect(),
    };
    let ends = expand_braces(after);
    if parts.len().saturating_mul(ends.len()) > MOST_NAMES {
        return as_it_is();
    }
    parts
        .iter()
        .flat_map(|part| ends.iter().map(move |end| format!("{before}{part}{end}")))
        .collect()
}

impl WebDataset {
    /// Lists the samples of archives.
    pub fn read(shards: &[PathBuf]) -> Result<Self> {
        Self::read_as(shards, None)
    }

    /// Lists the samples of a split whose classes another split has named.
    pub(super) fn read_as(shards: &[PathBuf], known: Option<&[String]>) -> Result<Self> {
        let path = shards.first().cloned().unwrap_or_default();
        let fault = |why: String| DataError::Format { path: path.clone(), why };
        let mut found = Vec::new();
        for (shard, path) in shards.iter().enumerate() {
            found.extend(list(shard, path)?);
        }
        // Where some have a label, a sample without is of no use; where none has, there are no classes.
        let labelled = found.iter().any(|sample| sample.label.is_some());
        let all = found.len();
        found.retain(|sample| !labelled || sample.label.is_some());
        if found.len() < all {
            tracing::warn!("left out: {} samples without a label", all - found.len());
        }
        if found.is_empty() {
            return Err(fault(
                "no sample with an image and a cls file, a txt file or a json file with a caption"
                    .to_owned(),
            ));
        }
        if !labelled && known.is_some_and(|known| !known.is_empty()) {
            return Err(fault("it has no labels, and the training images have".to_owned()));
        }
        let classes = match known {
            Some(known) => known.to_vec(),
            None => classes(found.iter().filter_map(|sample| sample.label.as_deref())),
        };
        check_classes(&path, classes.len())?;
        let places = places(&classes);
        let place = |label: &str| {
            let place = places.get(label).copied();
            place.ok_or_else(|| fault(format!("the training images have no class {label:?}")))
        };
        let samples = found.into_iter().map(|Found { image, label, captions, name }| {
            let label = label.as_deref().map_or(Ok(0), place)?;
            Ok(Entry { image, label, captions, name })
        });
        let samples = samples.collect::<Result<_>>()?;
        Ok(Self { shards: shards.to_vec(), classes, samples })
    }
}

/// A sample as it is in an archive.
struct Found {
    image: Place,
    label: Option<String>,
    captions: Vec<String>,
    name: String,
}

/// The files of a sample that were met so far.
#[derive(Default)]
struct Parts {
    image: Option<Place>,
    label: Option<String>,
    /// Of a `txt`.
    caption: Option<String>,
    /// Of a `json`.
    more: Vec<String>,
}

impl Parts {
    /// All that is said of the image; a `json` often repeats what the `txt` says.
    fn captions(&mut self) -> Vec<String> {
        let mut captions: Vec<String> = Vec::new();
        for caption in self.caption.take().into_iter().chain(self.more.drain(..)) {
            if !caption.is_empty() && !captions.contains(&caption) {
                captions.push(caption);
            }
        }
        captions
    }
}

/// Archives are made of blocks; at least one of zeros is their end.
const BLOCK: u64 = 512;

/// Longer texts are cut.
const LONGEST_TEXT: u64 = 1 << 20;

fn list(shard: usize, path: &Path) -> Result<Vec<Found>> {
    let file = open_regular(path).map_err(DataError::io(path))?;
    let length = file.metadata().map_err(DataError::io(path))?.len();
    let cut = |why: &str| DataError::Format { path: path.into(), why: why.to_owned() };
    let mut archive = tar::Archive::new(file);
    // Archives may be written one behind the other; each has its own end.
    archive.set_ignore_zeros(true);
    let (mut last, mut links, mut unread) = (0, 0, 0);
    let mut samples: HashMap<String, Parts> = HashMap::new();
    let mut order = Vec::new();
    for entry in archive.entries_with_seek().map_err(DataError::io(path))? {
        let mut entry = entry.map_err(DataError::io(path))?;
        let (start, size) = (entry.raw_file_position(), entry.size());
        last = match start.checked_add(size) {
            Some(end) if end <= length => end.next_multiple_of(BLOCK),
            _ => return Err(cut("the archive ends inside a file")),
        };
        let kind = entry.header().entry_type();
        if kind.is_hard_link() || kind.is_symlink() {
            links += 1;
        }
        if !kind.is_file() {
            continue;
        }
        let full = entry.path().map_err(DataError::io(path))?.to_string_lossy().into_owned();
        let (folder, file) = full.rsplit_once('/').unwrap_or(("", &full));
        let Some((base, extension)) = file.split_once('.') else { continue };
        let key = format!("{folder}/{base}");
        if !samples.contains_key(&key) {
            order.push(key.clone());
        }
        let sample = samples.entry(key).or_default();
        match extension.to_ascii_lowercase().as_str() {
            "jpg" | "jpeg" | "png" | "webp" | "bmp" => {
                sample.image = Some(Place { shard, start, size });
            }
            kind @ ("cls" | "txt" | "json") => {
                let mut text = Vec::new();
                entry
                    .by_ref()
                    .take(LONGEST_TEXT)
                    .read_to_end(&mut text)
                    .map_err(DataError::io(path))?;
                let text = String::from_utf8_lossy(&text).trim().to_owned();
                match kind {
                    "cls" => sample.label = Some(text),
                    "txt" => sample.caption = Some(text),
                    _ => match said(&text) {
                        Some(captions) => sample.more = captions,
                        None => unread += 1,
                    },
                }
            }
            _ => {}
        }
    }
    if length < last + BLOCK {
        return Err(cut("the archive ends without the mark of its end; the rest of it is missing"));
    }
    if links > 0 {
        return Err(cut(&format!(
            "{links} of its entries are links, which are not followed; write the archive with `tar \
             --dereference --hard-dereference`"
        )));
    }
    let mut bare = 0;
    let complete = order.into_iter().filter_map(|name| {
        let mut parts = samples.remove(&name)?;
        let captions = parts.captions();
        let Parts { image, label, .. } = parts;
        let known = label.is_some() || !captions.is_empty();
        bare += usize::from(image.is_some() && !known);
        Some(Found { image: image?, label, captions, name }).filter(|_| known)
    });
    let complete = complete.collect();
    if bare > 0 {
        tracing::warn!(
            "left out: {bare} images of {} with neither cls nor txt nor a caption in json",
            path.display()
        );
    }
    if unread > 0 {
        tracing::warn!(
            "{unread} json files of {} say nothing of an image: they are damaged, longer than {LONGEST_TEXT} \
             bytes, or their captions are no texts",
            path.display()
        );
    }
    Ok(complete)
}

/// The captions in a `json`; nothing where it cannot be read.
fn said(json: &str) -> Option<Vec<String>> {
    captions(&serde_json::from_str(json).ok()?, None).ok()
}

impl Dataset for WebDataset {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.samples.len()
    }

    fn label(&self, index: usize) -> usize {
        self.samples[index].label
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let Entry { image, label, captions, name } = &self.samples[index];
        let path = &self.shards[image.shard];
        let mut bytes = vec![0; image.size as usize];
        File::open(path)
            .and_then(|mut file| {
                file.seek(SeekFrom::Start(image.start))?;
                file.read_exact(&mut bytes)
            })
            .map_err(DataError::io(path))?;
        let picture = Picture::decode(&bytes, &path.join(name.trim_start_matches('/')))?;
        Ok(Sample { captions: captions.clone(), ..Sample::new(picture, *label) })
    }

    fn name(&self, index: usize) -> String {
        let Entry { image, name, .. } = &self.samples[index];
        let path = self.shards[image.shard].join(name.trim_start_matches('/'));
        path.to_string_lossy().into_owned()
    }

    fn captions(&self, index: usize) -> Result<Vec<String>> {
        Ok(self.samples[index].captions.clone())
    }

    fn has_captions(&self) -> bool {
        self.samples.iter().any(|sample| !sample.captions.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn png(shade: u8) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        Picture::filled(3, 3, [shade; 3]).save_png(file.path()).unwrap();
        std::fs::read(file.path()).unwrap()
    }

    fn archive(path: &Path, files: &[(&str, Vec<u8>)]) {
        let mut builder = tar::Builder::new(File::create(path).unwrap());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, bytes.as_slice()).unwrap();
        }
        builder.into_inner().unwrap().flush().unwrap();
    }

    #[test]
    fn ranges_and_lists_are_written_out() {
        assert_eq!(expand_braces("a-{008..010}.tar"), ["a-008.tar", "a-009.tar", "a-010.tar"]);
        assert_eq!(expand_braces("{a,b}{1..2}"), ["a1", "a2", "b1", "b2"]);
        for odd in ["plain", "open{1..2", "{2..1}", "{a..b}", "{0..99999999}", "{0..9999}{0..9999}"]
        {
            assert_eq!(expand_braces(odd), [odd]);
        }
    }

    #[test]
    fn samples_of_several_shards_are_one_data_set() {
        let folder = tempfile::tempdir().unwrap();
        let long = "x".repeat(150);
        let shards: Vec<PathBuf> = (0..3).map(|i| folder.path().join(format!("{i}.tar"))).collect();
        archive(
            &shards[0],
            &[("a/0.v1.png", png(9)), ("a/0.png", png(1)), ("a/0.cls", b"2\n".into())],
        );
        archive(&shards[1], &[("1.cls", b"0".into()), ("1.txt", b"one".into()), ("1.PNG", png(2))]);
        archive(
            &shards[2],
            &[(&format!("{long}.png"), png(3)), (&format!("{long}.cls"), b"1".into())],
        );
        let data = WebDataset::read(&shards).unwrap();
        assert_eq!(data.classes(), ["0", "1", "2"]);
        let samples: Vec<_> = (0..data.len()).map(|index| data.get(index).unwrap()).collect();
        let found: Vec<_> = samples.iter().map(|s| (s.label, s.picture.pixels[0])).collect();
        assert_eq!(found, [(2, 1), (0, 2), (1, 3)]);
        assert_eq!(samples[1].captions, ["one"]);
    }

    #[test]
    fn words_captions_and_broken_images() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        let captions =
            [("0.png", png(1)), ("0.txt", b"a drop".into()), ("1.png", b"broken".into())];
        archive(&path, &[&captions[..], &[("1.txt", vec![0xff, b'!'])]].concat());
        let data = WebDataset::read(std::slice::from_ref(&path)).unwrap();
        assert_eq!((data.len(), data.classes().len()), (2, 0));
        assert_eq!(data.get(0).unwrap().captions, ["a drop"]);
        let message = data.get(1).unwrap_err().to_string();
        assert!(message.contains("a.tar/1"), "{message}");

        let words = [("2.png", png(1)), ("2.cls", b"dog".into()), ("3.png", png(1))];
        archive(&path, &[&words[..], &captions, &[("3.cls", b"cat".into())]].concat());
        let data = WebDataset::read(&[path]).unwrap();
        assert_eq!((data.len(), data.classes()), (2, &["cat".to_owned(), "dog".to_owned()][..]));
    }

    #[test]
    fn a_json_may_have_the_captions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        let files: [(&str, &[u8]); 7] = [
            ("0.json", br#"{"caption": "one", "width": 3}"#),
            ("0.txt", b"one\n"),
            ("1.json", br#"{"text": ["two", "three"]}"#),
            ("2.json", br#"{"caption": "cut off"#),
            ("2.txt", b"four"),
            ("3.json", br#"{"width": 3}"#),
            ("4.txt", b"  "),
        ];
        let images = (0..5).map(|i| (["0.png", "1.png", "2.png", "3.png", "4.png"][i], png(1)));
        let files = files.into_iter().map(|(name, bytes)| (name, bytes.to_vec()));
        archive(&path, &images.chain(files).collect::<Vec<_>>());
        let data = WebDataset::read(&[path]).unwrap();
        let found: Vec<_> = (0..data.len()).map(|i| data.captions(i).unwrap()).collect();
        assert_eq!(found, [vec!["one"], vec!["two", "three"], vec!["four"]]);
        assert!(data.has_captions() && data.classes().is_empty());
        assert_eq!(data.get(1).unwrap().captions, ["two", "three"]);
    }

    #[test]
    fn archives_that_cannot_be_used_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        archive(&path, &[("0.png", png(1)), ("0.cls", b"1".into()), ("1.png", vec![0; 5000])]);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 4000]).unwrap();
        let message = WebDataset::read(std::slice::from_ref(&path)).unwrap_err().to_string();
        assert!(message.contains("a.tar"), "{message}");
        // Cut between two files: what is left looks whole but for its end.
        let samples = |range: std::ops::Range<usize>| -> Vec<(String, Vec<u8>)> {
            let both = |i: usize| [(format!("{i}.png"), png(1)), (format!("{i}.cls"), b"1".into())];
            range.flat_map(both).collect()
        };
        let write = |samples: &[(String, Vec<u8>)]| {
            let named: Vec<_> = samples.iter().map(|(n, b)| (n.as_str(), b.clone())).collect();
            archive(&path, &named);
            std::fs::read(&path).unwrap()
        };
        let (nine, both) = (write(&samples(0..9)), write(&samples(0..18)));
        assert_eq!(WebDataset::read(std::slice::from_ref(&path)).unwrap().len(), 18);
        let files = nine.len() - 1024;
        std::fs::write(&path, &both[..files]).unwrap();
        let message = WebDataset::read(std::slice::from_ref(&path)).unwrap_err().to_string();
        assert!(message.contains("mark of its end"), "{message}");
        // A link has no bytes of its own.
        let mut builder = tar::Builder::new(File::create(&path).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Link);
        header.set_size(0);
        builder.append_link(&mut header, "1.png", "0.png").unwrap();
        builder.into_inner().unwrap().flush().unwrap();
        let message = WebDataset::read(std::slice::from_ref(&path)).unwrap_err().to_string();
        assert!(message.contains("links"), "{message}");
        // Two archives one behind the other are all of both.
        std::fs::write(&path, [nine, write(&samples(9..18))].concat()).unwrap();
        assert_eq!(WebDataset::read(std::slice::from_ref(&path)).unwrap().len(), 18);
        archive(&path, &[("0.png", png(1)), ("1.cls", b"1".into())]);
        let message = WebDataset::read(&[path]).unwrap_err().to_string();
        assert!(message.contains("no sample"), "{message}");
        assert!(WebDataset::read(&[folder.path().join("none.tar")]).is_err());
    }
}
