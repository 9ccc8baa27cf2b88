//! Parquet files of images, as data sets are published on Hugging Face.
//!
//! | file | what it answers |
//! |---|---|
//! | `table.rs` | which column is what? the small columns |
//! | `images.rs` | how does an image come from disk? pages |
//! | `split.rs` | which files are for training, which for testing? |

mod images;
mod split;
mod table;

pub(super) use split::open_split;

use std::path::PathBuf;

use self::{
    images::Images,
    table::{Labels, Table},
};
use super::classes::{LARGEST_NUMBER, classes, places};
use crate::{
    dataset::{Dataset, Sample},
    error::Result,
    picture::Picture,
};

/// Images in the rows of parquet files, one file after the other.
///
/// Labels and captions are in memory. Images stay on disk: some 64 MiB of the pages that were used last
/// are kept, as they are in the files and not decoded, whatever the size of the data set. A page is read
/// as a whole, so that images in their order cost least, and images in any order less with small pages.
#[derive(Debug)]
pub struct Parquet {
    classes: Vec<String>,
    labels: Vec<usize>,
    /// One list per image, or none at all.
    captions: Vec<Vec<String>>,
    images: Images,
}

impl Parquet {
    /// Reads all of the files but their images.
    pub fn read(files: &[PathBuf]) -> Result<Self> {
        Self::read_as(files, None)
    }

    /// Reads the files of a split whose classes another split has named.
    fn read_as(files: &[PathBuf], known: Option<&[String]>) -> Result<Self> {
        let tables = open(files)?;
        let images = Images::find(&tables)?;
        let found = tables.iter().map(Table::labels).collect::<Result<Vec<_>>>()?;
        let classes = match known.map(<[String]>::to_vec).or_else(|| noted(&tables)) {
            Some(classes) => classes,
            None => spoken_of(&tables, &found)?,
        };
        let (mut labels, mut captions) = (Vec::new(), Vec::new());
        for (table, found) in tables.iter().zip(found) {
            labels.extend(place(table, found, &classes)?);
            captions.extend(table.captions()?);
        }
        if captions.iter().all(Vec::is_empty) {
            captions = Vec::new();
        }
        Ok(Self { classes, labels, captions, images })
    }

    /// The classes of a split, without its images.
    fn class_names(files: &[PathBuf]) -> Result<Vec<String>> {
        let tables = open(files)?;
        match noted(&tables) {
            Some(classes) => Ok(classes),
            None => {
                let found = tables.iter().map(Table::labels).collect::<Result<Vec<_>>>()?;
                spoken_of(&tables, &found)
            }
        }
    }

    /// Whether the labels are kept secret, as those of a competition's test images are: all below 0.
    fn is_withheld(files: &[PathBuf]) -> Result<bool> {
        for table in open(files)? {
            match table.labels()? {
                Labels::Numbers(numbers) if numbers.iter().all(|number| *number < 0) => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}

fn open(files: &[PathBuf]) -> Result<Vec<Table>> {
    files.iter().map(|file| Table::open(file)).collect()
}

/// The classes that a note in the files names.
fn noted(tables: &[Table]) -> Option<Vec<String>> {
    tables.iter().find_map(Table::class_names)
}

/// The classes that the labels of all files speak of.
fn spoken_of(tables: &[Table], labels: &[Labels]) -> Result<Vec<String>> {
    let (mut words, mut numbers) = (Vec::new(), 0);
    for (table, labels) in tables.iter().zip(labels) {
        match labels {
            Labels::Absent(_) => {}
            Labels::Words(found) => words.extend(found.iter().map(String::as_str)),
            Labels::Numbers(found) => {
                let largest = found.iter().copied().max().unwrap_or(0);
                if largest > LARGEST_NUMBER as i64 {
                    let why = format!("label {largest} is no number of a class");
                    return Err(table.fault(why));
                }
                numbers = numbers.max(largest.max(0) as usize + 1);
            }
        }
    }
    match (words.is_empty(), numbers) {
        (true, _) => Ok((0..numbers).map(|number| number.to_string()).collect()),
        (false, 0) => Ok(classes(words.into_iter())),
        (false, _) => {
            Err(tables[0].fault("its labels are numbers, those of other files words".to_owned()))
        }
    }
}

/// Places of a file's labels among the classes.
fn place(table: &Table, labels: Labels, classes: &[String]) -> Result<Vec<usize>> {
    match labels {
        Labels::Absent(rows) if classes.is_empty() => Ok(vec![0; rows]),
        Labels::Absent(_) => {
            Err(table.fault("it has no labels, and other files or training images have".to_owned()))
        }
        Labels::Numbers(numbers) => {
            let place = |(row, number): (usize, &i64)| {
                let place = usize::try_from(*number).ok().filter(|place| *place < classes.len());
                place.ok_or_else(|| {
                    let (row, classes) = (row + 1, classes.len());
                    table.fault(format!(
                        "row {row} has label {number}, but there are {classes} classes"
                    ))
                })
            };
            numbers.iter().enumerate().map(place).collect()
        }
        Labels::Words(words) => {
            let places = places(classes);
            let place = |word: &String| {
                let place = places.get(word.as_str()).copied();
                place.ok_or_else(|| {
                    table.fault(format!("the training images have no class {word:?}"))
                })
            };
            words.iter().map(place).collect()
        }
    }
}

impl Dataset for Parquet {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn label(&self, index: usize) -> usize {
        self.labels[index]
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (bytes, name) = self.images.get(index)?;
        let picture = Picture::decode(bytes.data(), &name)?;
        let captions = self.captions(index)?;
        Ok(Sample { captions, ..Sample::new(picture, self.labels[index]) })
    }

    fn captions(&self, index: usize) -> Result<Vec<String>> {
        Ok(self.captions.get(index).cloned().unwrap_or_default())
    }

    fn has_captions(&self) -> bool {
        !self.captions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, path::Path, sync::Arc};

    use parquet::{
        basic::{Compression, GzipLevel, ZstdLevel},
        data_type::{
            BoolType, ByteArray, ByteArrayType, DataType, FloatType, Int32Type, Int64Type,
        },
        file::{
            metadata::KeyValue,
            properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion},
            writer::{SerializedFileWriter, SerializedRowGroupWriter},
        },
        schema::parser::parse_message_type,
    };
    use rayon::prelude::*;

    use super::*;

    const PUBLISHED: &str = "message m {
        optional group image { optional binary bytes; optional binary path (STRING); }
        optional int64 label; }";

    /// The bytes of a PNG file of one colour.
    fn png(shade: u8) -> ByteArray {
        let file = tempfile::NamedTempFile::new().unwrap();
        Picture::filled(3, 2, [shade; 3]).save_png(file.path()).unwrap();
        std::fs::read(file.path()).unwrap().into()
    }

    /// Writes a table, a row group at a time.
    fn table(
        path: &Path,
        schema: &str,
        properties: WriterPropertiesBuilder,
        groups: usize,
        mut write: impl FnMut(usize, &mut SerializedRowGroupWriter<'_, File>),
    ) {
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let file = File::create(path).unwrap();
        let mut writer =
            SerializedFileWriter::new(file, schema, Arc::new(properties.build())).unwrap();
        for group in 0..groups {
            let mut row_group = writer.next_row_group().unwrap();
            write(group, &mut row_group);
            row_group.close().unwrap();
        }
        writer.close().unwrap();
    }

    /// Writes the next column; `level` is the depth at which a value is present.
    fn column<T: DataType>(
        group: &mut SerializedRowGroupWriter<'_, File>,
        values: &[Option<T::T>],
        level: i16,
    ) {
        let levels: Vec<i16> =
            values.iter().map(|value| if value.is_some() { level } else { 0 }).collect();
        let values: Vec<T::T> = values.iter().flatten().cloned().collect();
        let mut column = group.next_column().unwrap().unwrap();
        let levels = (level > 0).then_some(&levels[..]);
        column.typed::<T>().write_batch(&values, levels, None).unwrap();
        column.close().unwrap();
    }

    /// With Hugging Face's note, if there are names.
    fn noted(names: &[&str]) -> WriterPropertiesBuilder {
        let feature = serde_json::json!({"names": names, "_type": "ClassLabel"});
        let note = serde_json::json!({"info": {"features": {"label": feature}}}).to_string();
        let note = (!names.is_empty()).then(|| KeyValue::new("huggingface".to_owned(), note));
        WriterProperties::builder().set_key_value_metadata(Some(note.into_iter().collect()))
    }

    /// A file as it is published: image `i` has shade `i`, and two rows are a row group.
    pub(super) fn published(path: &Path, labels: &[i64], names: &[&str]) {
        let groups: Vec<&[i64]> = labels.chunks(2).collect();
        table(path, PUBLISHED, noted(names), groups.len(), |number, group| {
            let labels = groups[number];
            let shades = (0..labels.len()).map(|i| Some(png((2 * number + i) as u8)));
            column::<ByteArrayType>(group, &shades.collect::<Vec<_>>(), 2);
            column::<ByteArrayType>(group, &vec![None; labels.len()], 2);
            let labels: Vec<_> = labels.iter().copied().map(Some).collect();
            column::<Int64Type>(group, &labels, 1);
        });
    }

    fn read(path: &Path) -> Result<Parquet> {
        Parquet::read(&[path.to_owned()])
    }

    #[test]
    fn published_files_are_one_data_set_with_names() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a.parquet", "b.parquet"].map(|name| folder.path().join(name));
        published(&files[0], &[2, 0, 1], &["cat", "dog", "owl", "yak"]);
        published(&files[1], &[3], &[]);
        let data = Parquet::read(&files).unwrap();
        assert_eq!(data.classes(), ["cat", "dog", "owl", "yak"]);
        let samples: Vec<_> = (0..data.len()).map(|index| data.get(index).unwrap()).collect();
        let found: Vec<_> = samples.iter().map(|s| (s.label, s.picture.pixels[0])).collect();
        assert_eq!(found, [(2, 0), (0, 1), (1, 2), (3, 0)]);
        assert_eq!(samples[0].picture, Picture::filled(3, 2, [0; 3]));
        assert!(samples[0].captions.is_empty() && !data.has_captions());
        assert_eq!(read(&files[1]).unwrap().classes(), ["0", "1", "2", "3"]);
        assert_eq!(Parquet::class_names(&files).unwrap().len(), 4);
    }

    #[test]
    fn any_thread_reads_any_row_of_any_layout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let images: Vec<Option<ByteArray>> = (0..60).map(|i| Some(png(i))).collect();
        let packings = [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::ZSTD(ZstdLevel::default()),
            Compression::GZIP(GzipLevel::default()),
        ];
        let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
        for (version, packing) in versions.into_iter().flat_map(|v| packings.map(|p| (v, p))) {
            for (dictionary, page) in [(false, 1), (false, 1 << 20), (true, 500), (true, 1 << 20)] {
                let properties = WriterProperties::builder()
                    .set_writer_version(version)
                    .set_compression(packing)
                    .set_dictionary_enabled(dictionary)
                    .set_dictionary_page_size_limit(page)
                    .set_data_page_size_limit(page)
                    .set_write_batch_size(4);
                let schema = "message m { required binary img; required int32 label; }";
                table(&path, schema, properties, 2, |number, group| {
                    column::<ByteArrayType>(group, &images[30 * number..][..30], 0);
                    column::<Int32Type>(group, &[Some(number as i32); 30], 0);
                });
                let data = read(&path).unwrap();
                assert_eq!(data.images.len(), 60);
                (0..600).into_par_iter().for_each(|i| {
                    let index = i * 37 % 60;
                    let sample = data.get(index).unwrap();
                    assert_eq!(sample.picture.pixels[0], index as u8);
                    assert_eq!(sample.label, index / 30);
                });
            }
        }
    }

    #[test]
    fn pages_in_memory_are_few() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let schema = "message m { required binary image; required boolean label; }";
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_data_page_size_limit(1)
            .set_write_batch_size(1);
        table(&path, schema, properties, 1, |_, group| {
            column::<ByteArrayType>(group, &vec![Some(png(1)); 200], 0);
            column::<BoolType>(group, &[Some(true); 200], 0);
        });
        let data = read(&path).unwrap();
        (0..200).for_each(|index| assert_eq!(data.get(index).unwrap().label, 1));
        assert_eq!(data.images.in_memory(), 64);
    }

    #[test]
    fn words_captions_and_rows_without_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let schema = "message m { required int32 id; optional binary text (STRING);
            optional binary path (STRING);
            optional group photo { optional binary path (STRING); optional binary bytes; }
            required binary Label (STRING); required binary thumbnail; }";
        let text = |text: &str| Some(ByteArray::from(text));
        table(&path, schema, WriterProperties::builder(), 1, |_, group| {
            column::<Int32Type>(group, &[Some(7); 3], 0);
            column::<ByteArrayType>(group, &[text("a dog, asleep"), None, text("")], 1);
            column::<ByteArrayType>(group, &[None, None, None], 1);
            column::<ByteArrayType>(group, &[text("x"), text("y"), None], 2);
            column::<ByteArrayType>(group, &[Some(png(5)), None, text("broken")], 2);
            column::<ByteArrayType>(group, &["dog", "cat", "dog"].map(text), 0);
            column::<ByteArrayType>(group, &["t"; 3].map(text), 0);
        });
        let data = read(&path).unwrap();
        assert_eq!(data.classes(), ["cat", "dog"]);
        let sample = data.get(0).unwrap();
        assert_eq!((sample.label, sample.captions), (1, vec!["a dog, asleep".to_owned()]));
        assert_eq!(sample.picture.pixels[0], 5);
        for index in [1, 2] {
            let message = data.get(index).unwrap_err().to_string();
            assert!(message.contains(&format!("a.parquet/row {}", index + 1)), "{message}");
        }
        let known = ["dog".to_owned()];
        let message = Parquet::read_as(&[path], Some(&known)).unwrap_err().to_string();
        assert!(message.contains("no class \"cat\""), "{message}");
    }

    #[test]
    fn captions_alone_are_of_no_class() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let schema = "message m { required binary image; required binary caption (STRING); }";
        table(&path, schema, WriterProperties::builder(), 1, |_, group| {
            column::<ByteArrayType>(group, &[Some(png(1))], 0);
            column::<ByteArrayType>(group, &[Some(ByteArray::from("one"))], 0);
        });
        let data = read(&path).unwrap();
        let sample = data.get(0).unwrap();
        assert_eq!((sample.label, sample.captions), (0, vec!["one".to_owned()]));
        assert!(data.has_captions() && data.classes().is_empty());
    }

    #[test]
    fn an_image_may_have_a_list_of_captions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let schema = "message m { required binary image;
            optional group captions (LIST) { repeated group list { optional binary element (STRING); } } }";
        table(&path, schema, WriterProperties::builder(), 2, |number, group| {
            column::<ByteArrayType>(group, &[1, 2, 3, 4].map(|shade| Some(png(shade))), 0);
            let text = |text: &str| ByteArray::from(format!("{text} {number}").as_str());
            let mut writer = group.next_column().unwrap().unwrap();
            // Two texts; an empty list; a null and a text; no list.
            writer
                .typed::<ByteArrayType>()
                .write_batch(
                    &["one", "two", "three"].map(text),
                    Some(&[3, 3, 1, 2, 3, 0]),
                    Some(&[0, 1, 0, 0, 1, 0]),
                )
                .unwrap();
            writer.close().unwrap();
        });
        let data = read(&path).unwrap();
        let found: Vec<_> = (0..data.len()).map(|i| data.captions(i).unwrap()).collect();
        let none: Vec<&str> = Vec::new();
        assert_eq!(found[..4], [vec!["one 0", "two 0"], none.clone(), vec!["three 0"], none]);
        assert_eq!(data.get(6).unwrap().captions, ["three 1"]);
        assert!(data.has_captions() && data.classes().is_empty());
    }

    #[test]
    fn tables_that_cannot_be_used_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let fault = |why: &str| {
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains("a.parquet") && message.contains(why), "{message}");
        };
        let plain = WriterProperties::builder;
        table(&path, "message m { required int64 label; }", plain(), 0, |_, _| {});
        fault("column of images");
        let schema = "message m { required binary image (STRING); required int64 label; }";
        table(&path, schema, plain(), 0, |_, _| {});
        fault("column of images");
        let schema = "message m { required binary image; required float label; }";
        table(&path, schema, plain(), 1, |_, group| {
            column::<ByteArrayType>(group, &[Some(png(1))], 0);
            column::<FloatType>(group, &[Some(1.0)], 0);
        });
        fault("column of labels");
        table(&path, PUBLISHED, plain(), 0, |_, _| {});
        fault("no rows");
        let schema = "message m { required binary image; optional int64 label; }";
        table(&path, schema, plain(), 1, |_, group| {
            column::<ByteArrayType>(group, &[Some(png(1)), Some(png(2))], 0);
            column::<Int64Type>(group, &[Some(1), None], 1);
        });
        fault("row 2 has no label");
        published(&path, &[0, 1, 2], &["a", "b"]);
        fault("row 3 has label 2, but there are 2 classes");
        published(&path, &[0, -1], &[]);
        fault("row 2 has label -1");
        published(&path, &[0, 1 << 40], &[]);
        fault("is no number of a class");
        assert!(read(&folder.path().join("none.parquet")).is_err());
        assert!(read(folder.path()).is_err());
    }

    #[test]
    fn damaged_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        published(&path, &[0, 1, 1, 0], &["a", "b"]);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains("a.parquet"), "{length}: {message}");
        }
        std::fs::write(&path, b"PAR1 and what is no parquet, PAR1").unwrap();
        assert!(read(&path).is_err());
        // Some changes do not show; none may end the program.
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << (place % 8);
            std::fs::write(&path, bytes).unwrap();
            if let Ok(data) = read(&path) {
                (0..data.len()).for_each(|index| drop(data.get(index)));
            }
        }
    }
}
