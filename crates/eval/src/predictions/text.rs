//! CSV and JSON lines.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{Columns, Line, Sink};

/// A header, then lines; the columns of the probabilities have the classes' names.
pub(super) fn csv(path: &Path, columns: &Columns) -> io::Result<Box<dyn Sink>> {
    let mut writer = csv::Writer::from_writer(BufWriter::new(File::create(path)?));
    let scaled = columns.scaled.then_some("scaled_confidence");
    let plain = ["image", "label", "predicted", "confidence"].into_iter().chain(scaled);
    let header = plain.map(str::to_owned).chain(columns.probabilities());
    writer.write_record(header)?;
    Ok(Box::new(Csv(writer)))
}

struct Csv(csv::Writer<BufWriter<File>>);

/// As an `f32` has it: logits are no more exact.
fn number(value: f64) -> String {
    (value as f32).to_string()
}

impl Sink for Csv {
    fn add(&mut self, columns: &Columns, line: &Line) -> io::Result<()> {
        let class = |class: usize| columns.classes[class].clone();
        let plain = [
            line.image.to_owned(),
            class(line.label),
            class(line.predicted),
            number(line.confidence),
        ];
        let members = line.members.iter().take(columns.members).flatten();
        let numbers = line.scaled_confidence.iter().chain(line.mean).chain(members);
        self.0.write_record(plain.into_iter().chain(numbers.map(|value| number(*value))))?;
        Ok(())
    }

    fn finish(&mut self, _: &Columns) -> io::Result<()> {
        self.0.flush()
    }
}

/// Lines, each an object.
pub(super) fn json_lines(path: &Path) -> io::Result<Box<dyn Sink>> {
    Ok(Box::new(JsonLines(BufWriter::new(File::create(path)?))))
}

struct JsonLines(BufWriter<File>);

/// Probabilities by the names of the classes, in their order.
struct ByClass<'a>(&'a [String], &'a [f64]);

impl Serialize for ByClass<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (class, probability) in self.0.iter().zip(self.1) {
            map.serialize_entry(class, &(*probability as f32))?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Object<'a> {
    image: &'a str,
    label: &'a str,
    predicted: &'a str,
    confidence: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    scaled_confidence: Option<f32>,
    probabilities: ByClass<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<ByClass<'a>>,
}

impl Sink for JsonLines {
    fn add(&mut self, columns: &Columns, line: &Line) -> io::Result<()> {
        let classes = &columns.classes;
        let members = line.members.iter().take(columns.members);
        let object = Object {
            image: line.image,
            label: &classes[line.label],
            predicted: &classes[line.predicted],
            confidence: line.confidence as f32,
            scaled_confidence: line.scaled_confidence.map(|value| value as f32),
            probabilities: ByClass(classes, line.mean),
            members: members.map(|member| ByClass(classes, member)).collect(),
        };
        serde_json::to_writer(&mut self.0, &object)?;
        self.0.write_all(b"\n")
    }

    fn finish(&mut self, _: &Columns) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::written;

    #[test]
    fn a_table_is_read_back() {
        let (_folder, path) = written("x.csv");
        let mut reader = csv::Reader::from_path(path).unwrap();
        let header: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(header[..5], ["image", "label", "predicted", "confidence", "scaled_confidence"]);
        assert_eq!(header[5..7], ["probability_cat, \"small\"", "probability_ñandú"]);
        assert_eq!((header.len(), header[10].as_str()), (11, "member2_ñandú"));
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(
            (&rows[2][0], &rows[2][1], &rows[2][2]),
            ("a, b/2.png", "cat, \"small\"", "ñandú")
        );
        let numbers: Vec<f64> = rows[1].iter().skip(3).map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(numbers, [0.625, 0.5625, 0.375, 0.625, 0.5, 0.5, 0.25, 0.75]);
    }

    #[test]
    fn lines_are_read_back() {
        let (_folder, path) = written("x.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(
            (&lines[1]["image"], &lines[1]["label"]),
            (&"a, b/1.png".into(), &"ñandú".into())
        );
        assert_eq!(lines[0]["probabilities"]["ñandú"], 0.625);
        assert_eq!(lines[0]["members"][1]["cat, \"small\""], 0.25);
        assert_eq!(lines[0]["scaled_confidence"], 0.5625);
    }
}
