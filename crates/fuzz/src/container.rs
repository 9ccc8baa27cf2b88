//! Formats that are taken apart before a change and put together after it, so that the change is not
//! refused for a wrong checksum before the parser has seen it.

use std::io::{Cursor, Read, Write};

use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

/// A way to take a file apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// gzip: what is packed.
    Gzip,
    /// zip: the largest member whose name ends like this.
    Zip(&'static str),
    /// safetensors: the header, as JSON.
    SafetensorsHeader,
    /// safetensors: a note in its header, whose own content is JSON with a checksum beside it.
    Note {
        /// The key of the note.
        key: &'static str,
        /// The field whose text has a checksum.
        content: &'static str,
        /// The field with the checksum.
        checksum: &'static str,
    },
    /// npy: the dictionary at its beginning, in version 1.
    NpyHead,
    /// PNG: the data of all chunks between the signature and the end, with their checksums.
    PngChunks,
    /// tar: the header of the first file.
    TarHeader,
}

impl Container {
    /// The file with its inside changed. What cannot be taken apart is changed as it is.
    pub fn changed(self, bytes: &[u8], change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
        match self {
            Self::Gzip => match gunzip(bytes) {
                Some(inside) => gzip(&change(inside)),
                None => change(bytes.to_vec()),
            },
            Self::Zip(ending) => {
                zip_changed(bytes, ending, change).unwrap_or_else(|| bytes.to_vec())
            }
            Self::SafetensorsHeader => match header(bytes) {
                Some((text, data)) => with_header(&change(text.to_vec()), data),
                None => change(bytes.to_vec()),
            },
            Self::NpyHead => match npy_head(bytes) {
                Some((first, text, data)) => {
                    let text = change(text.to_vec());
                    let text = &text[..text.len().min(u16::MAX.into())];
                    [first, &(text.len() as u16).to_le_bytes(), text, data].concat()
                }
                None => change(bytes.to_vec()),
            },
            Self::Note { key, content, checksum } => {
                note_changed(bytes, key, content, checksum, change)
                    .unwrap_or_else(|| bytes.to_vec())
            }
            Self::PngChunks => png_changed(bytes, change).unwrap_or_else(|| bytes.to_vec()),
            Self::TarHeader => tar_changed(bytes, change),
        }
    }
}

fn gunzip(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut inside = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut inside).ok()?;
    Some(inside)
}

/// Packs bytes.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).and_then(|()| packed.finish()).unwrap_or_default()
}

fn zip_changed(
    bytes: &[u8],
    ending: &str,
    change: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> Option<Vec<u8>> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).ok()?;
    let mut members = Vec::new();
    for place in 0..archive.len() {
        let mut member = archive.by_index(place).ok()?;
        let mut inside = Vec::new();
        member.read_to_end(&mut inside).ok()?;
        members.push((member.name().ok()?.into_owned(), inside));
    }
    let chosen = members.iter_mut().filter(|(name, _)| name.ends_with(ending));
    let (_, inside) = chosen.max_by_key(|(_, inside)| inside.len())?;
    *inside = change(std::mem::take(inside));
    Some(zipped(&members))
}

/// An archive of members that are not packed.
pub fn zipped(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, inside) in members {
        let written = writer.start_file(name.as_str(), stored).is_ok();
        let _ = written && writer.write_all(inside).is_ok();
    }
    writer.finish().map(Cursor::into_inner).unwrap_or_default()
}

fn header(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let size = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    bytes[8..].split_at_checked(usize::try_from(size).ok()?)
}

fn with_header(text: &[u8], data: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text, data].concat()
}

/// The magic word with its version, the dictionary, and the values.
fn npy_head(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let first = bytes.get(..8).filter(|first| first.starts_with(b"\x93NUMPY\x01"))?;
    let size = u16::from_le_bytes(bytes.get(8..10)?.try_into().ok()?);
    let (text, data) = bytes[10..].split_at_checked(size.into())?;
    Some((first, text, data))
}

fn note_changed(
    bytes: &[u8],
    key: &str,
    content: &str,
    checksum: &str,
    change: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> Option<Vec<u8>> {
    let (text, data) = header(bytes)?;
    let mut header: serde_json::Value = serde_json::from_slice(text).ok()?;
    let place = header.get_mut("__metadata__")?.get_mut(key)?;
    let mut note: serde_json::Value = serde_json::from_str(place.as_str()?).ok()?;
    let inside = change(serde_json::to_vec(note.get(content)?).ok()?);
    note[checksum] = format!("{:08x}", crc32fast::hash(&inside)).into();
    // The text is put in as it is, whether it is JSON or not any more.
    note[content] = "@".into();
    let text = note.to_string().replace("\"@\"", &String::from_utf8_lossy(&inside));
    *place = text.into();
    Some(with_header(&serde_json::to_vec(&header).ok()?, data))
}

const SIGNATURE: usize = 8;

fn png_changed(bytes: &[u8], change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Option<Vec<u8>> {
    let mut chunks: Vec<(&[u8], Vec<u8>)> = Vec::new();
    let mut rest = bytes.get(SIGNATURE..)?;
    while let Some((head, body)) = rest.split_at_checked(8) {
        let length = u32::from_be_bytes(head[..4].try_into().ok()?) as usize;
        let (data, after) = body.split_at_checked(length)?;
        chunks.push((&head[4..], data.to_vec()));
        rest = after.get(4..)?;
    }
    // One stream of all data, so that a change may fall into any chunk.
    let lengths: Vec<usize> = chunks.iter().map(|(_, data)| data.len()).collect();
    let mut all = change(chunks.iter().flat_map(|(_, data)| data.clone()).collect());
    let mut file = bytes[..SIGNATURE].to_vec();
    for ((kind, _), length) in chunks.iter().zip(lengths) {
        let data: Vec<u8> = all.drain(..length.min(all.len())).collect();
        let body = [kind, data.as_slice()].concat();
        file.extend((data.len() as u32).to_be_bytes());
        file.extend(&body);
        file.extend(crc32fast::hash(&body).to_be_bytes());
    }
    Some(file)
}

const BLOCK: usize = 512;
const CHECKSUM: std::ops::Range<usize> = 148..156;

fn tar_changed(bytes: &[u8], change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let (head, rest) = bytes.split_at(BLOCK.min(bytes.len()));
    let mut head = change(head.to_vec());
    head.resize(BLOCK, 0);
    head[CHECKSUM].fill(b' ');
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    [head.as_slice(), rest].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target is worth nothing if its changes are refused for a wrong checksum.
    #[test]
    fn what_is_put_together_again_is_right_but_for_the_change() {
        let packed = gzip(b"abc");
        assert_eq!(gunzip(&Container::Gzip.changed(&packed, |_| b"xyz".to_vec())).unwrap(), b"xyz");

        let archive = zipped(&[("a.npy".to_owned(), b"abc".to_vec()), ("b".to_owned(), vec![1])]);
        let changed =
            Container::Zip(".npy").changed(&archive, |part| [part, b"d".to_vec()].concat());
        let mut archive = ZipArchive::new(Cursor::new(changed)).unwrap();
        let mut inside = Vec::new();
        archive.by_name("a.npy").unwrap().read_to_end(&mut inside).unwrap();
        assert_eq!((inside, archive.len()), (b"abcd".to_vec(), 2));

        let array = b"\x93NUMPY\x01\0\x02\0{}values";
        let changed = Container::NpyHead.changed(array, |_| b"{'a'}".to_vec());
        assert_eq!(changed, b"\x93NUMPY\x01\0\x05\0{'a'}values");

        let inner = r#"{"n":1.5}"#;
        let sum = |text: &str| format!("{:08x}", crc32fast::hash(text.as_bytes()));
        let note = format!(r#"{{"content":{inner},"sum":"{}"}}"#, sum(inner));
        let text = serde_json::json!({"__metadata__": {"x": note}, "t": 1}).to_string();
        let file = with_header(text.as_bytes(), b"data");
        let container = Container::Note { key: "x", content: "content", checksum: "sum" };
        let changed = container.changed(&file, |_| br#"{"n":2}"#.to_vec());
        let (text, data) = header(&changed).unwrap();
        let text: serde_json::Value = serde_json::from_slice(text).unwrap();
        let note = text["__metadata__"]["x"].as_str().unwrap().to_owned();
        assert!(
            note.contains(r#""content":{"n":2}"#) && note.contains(&sum(r#"{"n":2}"#)),
            "{note}"
        );
        assert_eq!(data, b"data");

        let mut chunk = b"IHDRabcd".to_vec();
        let mut png = [&[0; SIGNATURE][..], &4u32.to_be_bytes(), &chunk].concat();
        png.extend(crc32fast::hash(&chunk).to_be_bytes());
        let changed = Container::PngChunks.changed(&png, |_| b"wxyz".to_vec());
        chunk = b"IHDRwxyz".to_vec();
        assert!(changed.ends_with(&crc32fast::hash(&chunk).to_be_bytes()));
        assert_eq!(changed.len(), png.len());

        let changed = Container::TarHeader.changed(&[b'a'; 1024], |head| head);
        let sum: u32 = 504 * u32::from(b'a') + 8 * u32::from(b' ');
        assert_eq!(&changed[CHECKSUM], format!("{sum:06o}\0 ").as_bytes());
        assert_eq!(changed.len(), 1024);
    }
}
