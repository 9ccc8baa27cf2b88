//! Data sets and images.

use std::{path::Path, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use image::{DynamicImage, ImageFormat, RgbImage};
use omma_base::Resolution;
use omma_data::{
    Dataset, Picture, Shared, Split,
    formats::{
        Cifar, CifarKind, Columns, CorruptedSet, DataSpec, Idx, ImageTable, WebDataset, open,
    },
    text::{Tokenizer, TokenizerKind},
};
use omma_fuzz::{
    Container, Target,
    container::{gzip, zipped},
};

use crate::{beside, file};

fn photograph() -> DynamicImage {
    RgbImage::from_fn(13, 9, |x, y| image::Rgb([(x * 19) as u8, (y * 23) as u8, (x * y) as u8]))
        .into()
}

fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A JPEG with an EXIF note that turns it.
fn turned() -> Vec<u8> {
    let exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let jpeg = encoded(&photograph(), ImageFormat::Jpeg);
    let length = (exif.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, exif, &jpeg[2..]].concat()
}

#[test]
fn images() {
    let formats = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Bmp];
    let mut seeds: Vec<Vec<u8>> =
        formats.iter().map(|format| encoded(&photograph(), *format)).collect();
    seeds.push(encoded(&photograph().to_rgba16().into(), ImageFormat::Png));
    seeds.push(encoded(&photograph().to_luma8().into(), ImageFormat::Png));
    seeds.push(turned());
    let containers = [Container::PngChunks, Container::PngChunks];
    let target = Target { name: "x.png", seeds, containers: &containers, cases: 1500 };
    target.run(|path| {
        let Ok(picture) = Picture::open(path) else { return false };
        assert_eq!(picture.pixels.len(), picture.width * picture.height * 3);
        let _ = picture.centre_crop(Resolution::new(8, 11), 1.0);
        true
    });
}

/// Reads the first samples of a data set; returns whether there are any and all can be read.
fn look(data: &dyn Dataset) -> bool {
    let read = |index| {
        let _ = data.label(index);
        let Ok(sample) = data.get(index) else { return false };
        assert!(sample.label < data.classes().len().max(1));
        assert_eq!(sample.captions, data.captions(index).unwrap());
        true
    };
    let first = 0..data.len().min(4);
    !first.is_empty() && first.map(read).filter(|read| !read).count() == 0
}

fn idx(sizes: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
    bytes.extend(data);
    bytes
}

#[test]
fn idx_images() {
    let (images, labels) = (idx(&[3, 4, 5], &[7; 60]), idx(&[3], &[0, 1, 2]));
    let seeds = vec![images.clone(), gzip(&images)];
    let target = Target { name: "images", seeds, containers: &[Container::Gzip], cases: 1500 };
    target.run(|path| {
        let labels = beside(path, "labels", &labels);
        Idx::read(path, &labels).is_ok_and(|data| look(&data))
    });
}

#[test]
fn idx_labels() {
    let (images, labels) = (idx(&[3, 4, 5], &[7; 60]), idx(&[3], &[0, 1, 2]));
    let seeds = vec![labels.clone(), gzip(&labels)];
    let target = Target { name: "labels", seeds, containers: &[Container::Gzip], cases: 1500 };
    target.run(|path| {
        let images = beside(path, "images", &images);
        Idx::read(&images, path).is_ok_and(|data| look(&data))
    });
}

#[test]
fn cifar() {
    let records: Vec<u8> = (0..3 * 3073_usize).map(|i| (i % 251) as u8).collect();
    let seeds = vec![records.clone(), gzip(&records), vec![1; 3074 * 2]];
    let target = Target { name: "x.bin", seeds, containers: &[Container::Gzip], cases: 1000 };
    target.run(|path| {
        let read = |kind| Cifar::read(kind, &[path.to_owned()], Vec::new());
        let kinds = [read(CifarKind::Ten), read(CifarKind::Hundred), Cifar::file(path)];
        kinds.into_iter().flatten().filter(|data| look(data)).count() > 0
    });
}

fn npy(dtype: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], text.as_bytes(), values].concat()
}

/// Reads all severities of everything in the folder of a file; returns whether all can be read.
fn look_at_corruptions(path: &Path) -> bool {
    let classes: Vec<String> = (0..10).map(|class| class.to_string()).collect();
    let folder = path.parent().expect("a file is in a folder");
    let Ok(set) = CorruptedSet::open(folder, &classes) else { return false };
    let sets = set.names().iter().flat_map(|name| (1..=5).map(move |severity| (name, severity)));
    let read = sets.map(|(name, severity)| look(set.images(name, severity).unwrap().as_ref()));
    let read: Vec<bool> = read.collect();
    !read.is_empty() && read.iter().all(|read| *read)
}

#[test]
fn corrupted_images() {
    let images = npy("|u1", "(10, 2, 3, 3)", &[7; 180]);
    let seeds = vec![images.clone(), gzip(&images), npy("|u1", "(10, 1, 1, 3)", &[9; 30])];
    let containers = [Container::NpyHead, Container::NpyHead, Container::Gzip];
    let target = Target { name: "fog.npy", seeds, containers: &containers, cases: 1500 };
    let labels = npy("|u1", "(10,)", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    target.run(|path| {
        beside(path, "labels.npy", &labels);
        look_at_corruptions(path)
    });
}

#[test]
fn corrupted_labels() {
    let numbers: Vec<u8> = [3i64, 9].iter().flat_map(|label| label.to_le_bytes()).collect();
    let seeds = vec![npy("<i8", "(2,)", &numbers), npy("|u1", "(10,)", &[4; 10])];
    let containers = [Container::NpyHead];
    let target = Target { name: "labels.npy", seeds, containers: &containers, cases: 1500 };
    let images = npy("|u1", "(10, 2, 3, 3)", &[7; 180]);
    target.run(|path| {
        beside(path, "fog.npy", &images);
        look_at_corruptions(path)
    });
}

#[test]
fn csv() {
    let seeds = [
        "path,label\na.png,cat\nb.png,dog\n",
        "\u{feff}Label,extra,PATH,caption\r\ndog,1,\"a, b.png\",\"small, \"\"dark\"\"\"\r\n",
        "filename,class\na.png,0\nb.png,7\n",
        "x.csv,cat\nx.csv,dog\n",
        "photo,kind,2\nx.csv,3,a\n",
        "x.csv,0,a dog runs\nx.csv,1,\"a cat, asleep\"\n",
    ];
    fuzz_table("x.csv", &seeds, 1200);
}

#[test]
fn tsv() {
    fuzz_table("x.tsv", &["image\ttext\na.png\tone, two\n", "x.tsv\t2\tdog\n"], 300);
}

fn fuzz_table(name: &str, seeds: &[&str], cases: u32) {
    let seeds = seeds.iter().map(|text| text.as_bytes().to_vec()).collect();
    Target { name, seeds, containers: &[], cases }.run(|path| {
        let mut found: Vec<Shared> = Vec::new();
        found.extend(ImageTable::csv(path).ok().map(|data| Arc::new(data) as Shared));
        let columns: Columns = "image=1,label=2".parse().unwrap();
        let spec = DataSpec { columns: Some(columns), ..DataSpec::named(&path.to_string_lossy()) };
        found.extend([Split::Train, Split::Test].iter().flat_map(|split| open(&spec, *split)));
        // Their images are nowhere.
        for data in &found {
            let _ = look(data.as_ref());
        }
        !found.is_empty()
    });
}

#[test]
fn json_lines() {
    let seeds = [
        "{\"image\": \"a.png\", \"caption\": \"a dog\"}\n{\"image\": \"a.png\", \"caption\": \"a cat\"}\n",
        "{\"file_name\": \"a.png\", \"captions\": [\"one\", \"two\"], \"label\": 3}\n",
        "{\"path\": \"a.png\", \"text\": null, \"label\": \"dog\"}\n\n{\"path\": \"b.png\", \"label\": \"cat\"}",
    ];
    let seeds = seeds.map(|text| text.as_bytes().to_vec()).into();
    let target = Target { name: "x.jsonl", seeds, containers: &[], cases: 1500 };
    target.run(|path| ImageTable::json_lines(path).map(|data| look(&data)).is_ok());
}

#[test]
fn coco_captions() {
    let seeds = [
        r#"{"images": [{"id": 7, "file_name": "x.json"}], "annotations": [{"image_id": 7, "caption": "a dog"}]}"#,
        r#"{"info": {}, "annotations": [{"image_id": "a", "caption": "one"}, {"image_id": "a", "caption": "two"}],
            "images": [{"id": "a", "file_name": "x.json", "width": 3}, {"id": "b", "file_name": "b.png"}]}"#,
    ];
    let seeds = seeds.map(|text| text.as_bytes().to_vec()).into();
    let target = Target { name: "x.json", seeds, containers: &[], cases: 1500 };
    target.run(|path| ImageTable::coco(path).map(|data| look(&data)).is_ok());
}

#[test]
fn zip_archives() {
    let png = encoded(&photograph(), ImageFormat::Png);
    let seed = |names: &[&str]| {
        let members: Vec<_> = names.iter().map(|name| ((*name).to_owned(), png.clone())).collect();
        zipped(&members)
    };
    let seeds = vec![
        seed(&["cat/1.png", "dog/2.png", "top.png"]),
        seed(&["photos/train/cat/1.png", "photos/train/dog/2.png", "photos/val/cat/3.png"]),
        seed(&["a\\b\\1.png", "__MACOSX/._1.png", "a/c/deep/er/2.png"]),
    ];
    let containers = [Container::Zip(".png")];
    let target = Target { name: "x.zip", seeds, containers: &containers, cases: 1500 };
    target.run(|path| {
        let spec = DataSpec::named(&path.to_string_lossy());
        let read = |split| open(&spec, split).is_ok_and(|data| look(data.as_ref()));
        let splits = [Split::Train, Split::Test].map(read);
        splits == [true; 2]
    });
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn tar_shards() {
    let png = encoded(&photograph(), ImageFormat::Png);
    let long = format!("{}.png", "x".repeat(150));
    let seeds = vec![
        archive(&[("a/0.png", &png), ("a/0.cls", b"2"), ("1.png", &png), ("1.cls", b"0")]),
        archive(&[
            ("0.png", &png),
            ("0.txt", b"a drop"),
            ("0.json", br#"{"caption": ["a", "b"]}"#),
        ]),
        archive(&[(&long, &png), (&long.replace("png", "cls"), b"dog")]),
    ];
    let containers = [Container::TarHeader, Container::TarHeader];
    let target = Target { name: "x.tar", seeds, containers: &containers, cases: 1500 };
    target.run(|path| WebDataset::read(&[path.to_owned()]).is_ok_and(|data| look(&data)));
}

#[cfg(feature = "parquet")]
#[test]
fn parquet() {
    use omma_data::formats::Parquet;
    let seeds = ["plain", "snappy", "captions"];
    let seeds = seeds.map(|name| crate::file(&format!("fuzz/tests/data/{name}.parquet"))).into();
    let target = Target { name: "x.parquet", seeds, containers: &[], cases: 1500 };
    target.run(|path| Parquet::read(&[path.to_owned()]).is_ok_and(|data| look(&data)));
}

#[test]
fn tokenizers() {
    let mut seeds = vec![
        file("data/tests/data/clip-tokenizer.json"),
        file("data/tests/data/t5-tokenizer.json"),
    ];
    // A table of characters that makes `A` to `a`.
    let mut cells = [0_u32; 768];
    (cells[0], cells[256 ^ 0x41], cells[512]) =
        (256 << 10, (256 ^ 0x41 ^ 512) << 10 | 0x141, 1 << 31);
    let trie = cells.iter().flat_map(|cell| cell.to_le_bytes());
    let table: Vec<u8> = 3072_u32.to_le_bytes().into_iter().chain(trie).chain(*b"a\0").collect();
    let table = BASE64_STANDARD.encode(table);
    let table = format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{table}"}}"#);
    let t5 = String::from_utf8(seeds[1].clone()).unwrap();
    seeds.push(t5.replace(r#"{"type": "NFKC"}"#, &table).into_bytes());
    for kind in [TokenizerKind::Unigram, TokenizerKind::Bpe] {
        let captions = ["a red bird", "a blue bird, a red fish"].map(str::to_owned);
        let learned = Tokenizer::learn(captions.into_iter(), kind, 60).unwrap();
        seeds.push(learned.json().into_bytes());
    }
    let target = Target { name: "tokenizer.json", seeds, containers: &[], cases: 3000 };
    target.run(|path| {
        let Ok(tokenizer) = Tokenizer::read(path) else { return false };
        for text in ["", "A red dog", "☃ <pad> </s> a\tred\u{300}", &"ab ".repeat(3000)] {
            let encoded = tokenizer.encode(text, 7);
            assert_eq!(encoded.ids.len(), 7);
            assert!(encoded.ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary()));
            assert_eq!(tokenizer.words(&encoded.ids).len(), 7);
        }
        true
    });
}
