//! Parquet: the same columns as CSV, some rows at a time.

use std::{fs::File, io, path::Path, sync::Arc};

use parquet::{
    basic::{Compression, ConvertedType, Repetition, Type as PhysicalType, ZstdLevel},
    data_type::{ByteArray, ByteArrayType, FloatType},
    errors::ParquetError,
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::types::Type,
};

use super::{Columns, Line, Sink};

/// Numbers that a group of rows has at most; a group is kept in memory until it is written.
const GROUP: usize = 1 << 22;

/// Rows that are not written yet.
struct Table {
    writer: SerializedFileWriter<File>,
    words: [Vec<ByteArray>; 3],
    numbers: Vec<Vec<f32>>,
    most: usize,
}

pub(super) fn columns(path: &Path, columns: &Columns) -> io::Result<Box<dyn Sink>> {
    let field = |name: &str, kind: PhysicalType, converted: ConvertedType| {
        let builder = Type::primitive_type_builder(name, kind);
        let field = builder.with_repetition(Repetition::REQUIRED).with_converted_type(converted);
        field.build().map(Arc::new)
    };
    let scaled = columns.scaled.then_some("scaled_confidence");
    let numbers: Vec<String> = std::iter::once("confidence")
        .chain(scaled)
        .map(str::to_owned)
        .chain(columns.probabilities())
        .collect();
    let words = ["image", "label", "predicted"].into_iter();
    let words = words.map(|name| field(name, PhysicalType::BYTE_ARRAY, ConvertedType::UTF8));
    let floats = numbers.iter().map(|name| field(name, PhysicalType::FLOAT, ConvertedType::NONE));
    let fields = words.chain(floats).collect::<Result<Vec<_>, _>>().map_err(other)?;
    let schema =
        Type::group_type_builder("predictions").with_fields(fields).build().map_err(other)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let writer =
        SerializedFileWriter::new(File::create(path)?, Arc::new(schema), Arc::new(properties));
    Ok(Box::new(Table {
        writer: writer.map_err(other)?,
        words: Default::default(),
        most: (GROUP / numbers.len()).max(16),
        numbers: vec![Vec::new(); numbers.len()],
    }))
}

fn other(error: ParquetError) -> io::Error {
    io::Error::other(error)
}

impl Table {
    /// Writes the rows as one group.
    fn write(&mut self) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        let (mut words, mut numbers) = (self.words.iter_mut(), self.numbers.iter_mut());
        while let Some(mut column) = group.next_column()? {
            if let Some(values) = words.next() {
                column.typed::<ByteArrayType>().write_batch(values, None, None)?;
                values.clear();
            } else if let Some(values) = numbers.next() {
                column.typed::<FloatType>().write_batch(values, None, None)?;
                values.clear();
            }
            column.close()?;
        }
        group.close()?;
        Ok(())
    }
}

impl Sink for Table {
    fn add(&mut self, columns: &Columns, line: &Line) -> io::Result<()> {
        let class = |class: usize| columns.classes[class].as_str();
        let words = [line.image, class(line.label), class(line.predicted)];
        for (column, word) in self.words.iter_mut().zip(words) {
            column.push(ByteArray::from(word));
        }
        let members = line.members.iter().take(columns.members).flatten();
        let first = [line.confidence];
        let numbers = first.iter().chain(&line.scaled_confidence).chain(line.mean).chain(members);
        for (column, value) in self.numbers.iter_mut().zip(numbers) {
            column.push(*value as f32);
        }
        match self.words[0].len() >= self.most {
            true => self.write().map_err(other),
            false => Ok(()),
        }
    }

    fn finish(&mut self, _: &Columns) -> io::Result<()> {
        if !self.words[0].is_empty() {
            self.write().map_err(other)?;
        }
        self.writer.finish().map(drop).map_err(other)
    }
}

#[cfg(test)]
mod tests {
    use parquet::{
        file::reader::{FileReader, SerializedFileReader},
        record::RowAccessor,
    };

    use super::{super::tests::written, *};

    #[test]
    fn columns_of_parquet_are_read_back() {
        let (_folder, path) = written("x.parquet");
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        let schema = reader.metadata().file_metadata().schema_descr();
        let names: Vec<&str> = schema.columns().iter().map(|column| column.name()).collect();
        assert_eq!(names[..5], ["image", "label", "predicted", "confidence", "scaled_confidence"]);
        assert_eq!((names.len(), names[10]), (11, "member2_ñandú"));
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1].get_string(0).unwrap(), "a, b/1.png");
        assert_eq!(rows[1].get_string(1).unwrap(), "ñandú");
        let numbers: Vec<f32> = (3..11).map(|place| rows[2].get_float(place).unwrap()).collect();
        assert_eq!(numbers, [0.625, 0.5625, 0.375, 0.625, 0.5, 0.5, 0.25, 0.75]);
    }

    #[test]
    fn groups_of_parquet_end_where_they_are_full() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        let classes: Vec<String> = (0..100_000).map(|class| class.to_string()).collect();
        let own = Columns { classes, members: 0, scaled: false };
        let mut sink = columns(&path, &own).unwrap();
        let mean = vec![1e-5; 100_000];
        for index in 0..42 {
            let line = Line {
                image: &index.to_string(),
                label: 0,
                predicted: 1,
                confidence: 1e-5,
                scaled_confidence: None,
                mean: &mean,
                members: &[],
            };
            sink.add(&own, &line).unwrap();
        }
        sink.finish(&own).unwrap();
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        let groups: Vec<i64> =
            reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(groups, [41, 1]);
    }
}
