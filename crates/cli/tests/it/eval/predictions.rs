//! `omma eval --predictions`: every prediction in a file.

use std::{fs, path::Path};

use serde_json::Value;

use super::{EXPERTS, error, json, number, omma, text, trained};

/// Label, predicted class, and probabilities by class.
type Judged = (String, String, Vec<(String, f64)>);

/// Mean NLL and error.
fn scores(rows: &[Judged]) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for (label, predicted, probabilities) in rows {
        let own = probabilities.iter().find(|(class, _)| class == label).unwrap().1;
        let best = probabilities.iter().map(|(_, p)| *p).fold(0.0, f64::max);
        assert_eq!(probabilities.iter().find(|(class, _)| class == predicted).unwrap().1, best);
        sums.0 -= own.ln();
        sums.1 += f64::from(u8::from(label != predicted));
    }
    (sums.0 / rows.len() as f64, sums.1 / rows.len() as f64)
}

fn csv_rows(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn predictions_are_those_that_were_judged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "e3", "vmoe", &[EXPERTS, &["model.moe.members=2"]].concat());
    let eval = |file: &str, more: &[&str]| {
        let all = [&["eval", text(&run), "--json", "--predictions", file], more].concat();
        json(omma(folder, &all))
    };
    let found = eval("x.csv", &["--limit", "20"]);
    let rows = csv_rows(&folder.join("x.csv"));
    let header = &rows[0];
    assert_eq!(header[..5], ["image", "label", "predicted", "confidence", "scaled_confidence"]);
    assert_eq!(header.len(), 5 + 10 + 2 * 10);
    // Twenty of fifty images, evenly spread, by their places in the data.
    assert_eq!((rows.len(), rows[3][0].as_str()), (21, "5"));
    let part = |row: &[String], prefix: &str| -> Vec<(String, f64)> {
        let named = header.iter().zip(row).filter(|(name, _)| name.starts_with(prefix));
        named.map(|(name, cell)| (name[prefix.len()..].to_owned(), cell.parse().unwrap())).collect()
    };
    let judged: Vec<Judged> = rows[1..]
        .iter()
        .map(|row| (row[1].clone(), row[2].clone(), part(row, "probability_")))
        .collect();
    let (nll, error) = scores(&judged);
    assert!((nll - number(&found["nll"])).abs() < 1e-5, "{nll} {}", found["nll"]);
    assert!((error - number(&found["error"])).abs() < 1e-9);
    for row in &rows[1..] {
        let [mean, one, two] =
            ["probability_", "member1_", "member2_"].map(|prefix| part(row, prefix));
        for ((mean, one), two) in mean.iter().zip(&one).zip(&two) {
            assert!((mean.1 - (one.1 + two.1) / 2.0).abs() < 1e-6);
        }
    }

    let lines = eval("x.jsonl", &["--no-temperature"]);
    let text = fs::read_to_string(folder.join("x.jsonl")).unwrap();
    let objects: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((objects.len(), &objects[0]["scaled_confidence"]), (50, &Value::Null));
    let judged: Vec<Judged> = objects
        .iter()
        .map(|one| {
            let probabilities = one["probabilities"].as_object().unwrap();
            let pairs = probabilities.iter().map(|(class, p)| (class.clone(), number(p)));
            let word = |key: &str| one[key].as_str().unwrap().to_owned();
            (word("label"), word("predicted"), pairs.collect())
        })
        .collect();
    assert!((scores(&judged).0 - number(&lines["nll"])).abs() < 1e-5);
    assert_eq!(objects[7]["members"].as_array().unwrap().len(), 2);
}

#[test]
fn files_are_called_by_their_paths_and_a_wrong_ending_is_said_first() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "v", "vit", &[]);
    let classes: Vec<String> =
        serde_json::from_slice(&fs::read(run.join("classes.json")).unwrap()).unwrap();
    let mut sorted = classes;
    sorted.sort();
    for class in &sorted {
        let images = folder.join("photos/test").join(class);
        fs::create_dir_all(&images).unwrap();
        omma_data::Picture::filled(16, 16, [9; 3]).save_png(&images.join("one.png")).unwrap();
    }
    let eval = |file: &str| {
        let data = ["eval", text(&run), "--data", "photos", "--class-subset", "--predictions"];
        omma(folder, &[&data[..], &[file]].concat())
    };
    let output = eval("x.csv").assert().success().get_output().stdout.clone();
    assert!(String::from_utf8(output).unwrap().contains("predictions: x.csv"));
    let rows = csv_rows(&folder.join("x.csv"));
    assert_eq!((rows.len(), rows[0].len()), (11, 4 + 10), "one member is the mean");
    for (row, class) in rows[1..].iter().zip(&sorted) {
        assert!(Path::new(&row[0]).ends_with(format!("photos/test/{class}/one.png")), "{row:?}");
        assert!(Path::new(&row[0]).is_file() && row[1] == *class);
    }
    let message = error(eval("x.xlsx"));
    assert!(message.contains("x.xlsx") && message.contains(".csv, .jsonl or .parquet"));
    if !cfg!(feature = "parquet") {
        let message = error(eval("x.parquet"));
        assert!(message.contains("--features parquet"), "{message}");
    }
    assert!(error(eval("no/where.csv")).contains("where.csv"));
    assert!(!folder.join("x.parquet").exists() && !folder.join("no").exists());
}
