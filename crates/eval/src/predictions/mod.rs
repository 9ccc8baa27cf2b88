//! Every prediction in a file, for other programs: CSV, JSON lines or parquet, by the ending of its name.
//!
//! | file | room for |
//! |---|---|
//! | `mod.rs` | what there is of an image, and whose file it goes into |
//! | `text.rs` | CSV and JSON lines |
//! | `parquet.rs` | parquet, with the feature of that name |
//!
//! Images are written as they come; parquet keeps some of them at a time. The file has its name once it is
//! whole.

#[cfg(feature = "parquet")]
mod parquet;
mod text;

use std::path::{Path, PathBuf};

use omma_base::files::Unfinished;

use crate::error::{EvalError, Result};

/// How predictions are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictionFormat {
    /// A header and a line per image.
    Csv,
    /// An object per line and image.
    JsonLines,
    /// Columns, as data frames read them.
    Parquet,
}

impl PredictionFormat {
    /// By the ending of a file's name; fails for one that this program was built without.
    pub fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        let why = match ending.as_str() {
            "csv" => return Ok(Self::Csv),
            "jsonl" => return Ok(Self::JsonLines),
            "parquet" if cfg!(feature = "parquet") => return Ok(Self::Parquet),
            "parquet" => {
                "this program was built without parquet; build it with `--features parquet`, or write \
                 .csv or .jsonl"
            }
            _ => "predictions are written as .csv, .jsonl or .parquet",
        };
        Err(EvalError::Record { path: path.to_owned(), why: why.to_owned() })
    }
}

/// What the columns are.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    pub(crate) classes: Vec<String>,
    /// Members whose probabilities are written beside their mean; one member is its mean.
    pub(crate) members: usize,
    /// Whether a temperature was fitted.
    pub(crate) scaled: bool,
}

impl Columns {
    /// Names of the probabilities: `probability_cat`, then `member1_cat`.
    fn probabilities(&self) -> impl Iterator<Item = String> {
        let of =
            move |prefix: String| self.classes.iter().map(move |class| format!("{prefix}_{class}"));
        let members = (1..=self.members).map(|member| format!("member{member}"));
        std::iter::once("probability".to_owned()).chain(members).flat_map(of)
    }
}

/// One image.
pub(crate) struct Line<'a> {
    /// Its path, or its place in the data.
    pub(crate) image: &'a str,
    pub(crate) label: usize,
    pub(crate) predicted: usize,
    pub(crate) confidence: f64,
    /// At the fitted temperature.
    pub(crate) scaled_confidence: Option<f64>,
    /// `[classes]`: the mean of the members'.
    pub(crate) mean: &'a [f64],
    /// `[M]` of `[classes]`
    pub(crate) members: &'a [Vec<f64>],
}

/// Where lines go.
trait Sink {
    fn add(&mut self, columns: &Columns, line: &Line) -> std::io::Result<()>;

    /// Writes what is left.
    fn finish(&mut self, columns: &Columns) -> std::io::Result<()>;
}

/// A file of predictions that grows.
pub(crate) struct Predictions {
    path: PathBuf,
    file: Unfinished,
    columns: Columns,
    sink: Box<dyn Sink>,
}

impl Predictions {
    pub(crate) fn create(path: &Path, columns: Columns) -> Result<Self> {
        let format = PredictionFormat::of(path)?;
        let file = Unfinished::create(path).map_err(EvalError::io(path))?;
        let sink: std::io::Result<Box<dyn Sink>> = match format {
            PredictionFormat::Csv => text::csv(file.path(), &columns),
            PredictionFormat::JsonLines => text::json_lines(file.path()),
            #[cfg(feature = "parquet")]
            PredictionFormat::Parquet => parquet::columns(file.path(), &columns),
            #[cfg(not(feature = "parquet"))]
            PredictionFormat::Parquet => unreachable!("an error above"),
        };
        let sink = sink.map_err(EvalError::io(path))?;
        Ok(Self { path: path.to_owned(), file, columns, sink })
    }

    pub(crate) fn add(&mut self, line: &Line) -> Result<()> {
        self.sink.add(&self.columns, line).map_err(EvalError::io(&self.path))
    }

    /// Gives the file its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.sink.finish(&self.columns).map_err(EvalError::io(&self.path))?;
        drop(self.sink);
        self.file.finish().map_err(EvalError::io(&self.path))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Three images of classes whose names need care, by two members.
    pub(crate) fn written(name: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let columns = Columns {
            classes: vec!["cat, \"small\"".to_owned(), "ñandú".to_owned()],
            members: 2,
            scaled: true,
        };
        let mut file = Predictions::create(&path, columns).unwrap();
        for index in 0..3 {
            let members = vec![vec![0.5, 0.5], vec![0.25, 0.75]];
            file.add(&Line {
                image: &format!("a, b/{index}.png"),
                label: index % 2,
                predicted: 1,
                confidence: 0.625,
                scaled_confidence: Some(0.5625),
                mean: &[0.375, 0.625],
                members: &members,
            })
            .unwrap();
        }
        assert!(!path.exists(), "it has its name once it is whole");
        file.finish().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        (folder, path)
    }

    #[test]
    fn the_ending_decides_and_what_is_missing_is_named() {
        let of = |name: &str| PredictionFormat::of(Path::new(name));
        assert_eq!(of("a.CSV").unwrap(), PredictionFormat::Csv);
        assert_eq!(of("a.b.jsonl").unwrap(), PredictionFormat::JsonLines);
        assert!(of("a.txt").unwrap_err().to_string().contains(".csv, .jsonl or .parquet"));
        match (cfg!(feature = "parquet"), of("a.parquet")) {
            (true, format) => assert_eq!(format.unwrap(), PredictionFormat::Parquet),
            (false, error) => {
                assert!(error.unwrap_err().to_string().contains("--features parquet"))
            }
        }
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let columns = Columns { classes: vec!["a".to_owned()], members: 0, scaled: false };
        drop(Predictions::create(&folder.path().join("x.csv"), columns.clone()).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let nowhere = Predictions::create(&folder.path().join("no/x.csv"), columns).err().unwrap();
        assert!(nowhere.to_string().contains("x.csv"), "{nowhere}");
    }
}
