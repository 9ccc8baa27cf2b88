//! `omma predict` as a user types it: where images come from, and how answers are written; and images of
//! another size than a model is made for.

use std::{fs, path::Path};

use omma_data::Picture;
use omma_testing::SMALL_EXPERTS;
use serde_json::Value;

use crate::support::{error, omma, stdout, trained_at};

fn trained(folder: &Path, settings: &[&str]) {
    trained_at(folder, "run", "vmoe", &[SMALL_EXPERTS, settings].concat());
}

/// Two pictures and a file that is none.
fn pictures(folder: &Path) {
    fs::create_dir_all(folder.join("pictures")).unwrap();
    for (name, colour) in [("red, dark.png", [120, 10, 10]), ("blue.png", [10, 10, 200])] {
        let path = folder.join("pictures").join(name);
        Picture::filled(40, 30, colour).save_png(&path).unwrap();
    }
    fs::write(folder.join("pictures/broken.jpg"), "not a picture").unwrap();
}

fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn answers_are_text_csv_or_json_lines_and_all_say_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    trained(folder, &["model.moe.members=2"]);
    pictures(folder);
    let all = ["predict", "run", "pictures", "--top", "2"];
    let with = |more: &[&str]| omma(folder, &[&all[..], more].concat());
    let answers = objects(&stdout(with(&["--json"])));
    assert_eq!(answers.len(), 2);
    let mut command = with(&["--format", "csv"]);
    let output = command.assert().success().get_output().clone();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("broken.jpg") && notes.contains("1 of 3 files"), "{notes}");
    let mut table = csv_rows(&String::from_utf8(output.stdout).unwrap());
    let header = table.remove(0);
    assert_eq!(
        header.join(","),
        "image,class_1,probability_1,spread_1,class_2,probability_2,spread_2,entropy,mutual_information"
    );
    for (row, answer) in table.iter().zip(&answers) {
        assert_eq!(row[0], answer["image"].as_str().unwrap());
        for (place, guess) in answer["top"].as_array().unwrap().iter().enumerate() {
            assert_eq!(row[1 + 3 * place], guess["class"].as_str().unwrap());
            close(&row[2 + 3 * place], &guess["probability"]);
            close(&row[3 + 3 * place], &guess["spread"]);
        }
        close(&row[7], &answer["entropy"]);
        close(&row[8], &answer["mutual_information"]);
    }
    // A file says by its name what it is, and standard output has nothing.
    assert_eq!(stdout(with(&["-o", "answers.csv"])), "");
    assert_eq!(csv_rows(&fs::read_to_string(folder.join("answers.csv")).unwrap()).len(), 3);
    stdout(with(&["-o", "answers.jsonl"]));
    let saved = fs::read_to_string(folder.join("answers.jsonl")).unwrap();
    assert_eq!(objects(&saved), answers);
    stdout(with(&["-o", "answers.txt"]));
    let text = fs::read_to_string(folder.join("answers.txt")).unwrap();
    assert!(text.starts_with("pictures/blue.png: ") && text.contains(" ± "), "{text}");
    // Where nothing can be read, nothing is written.
    let broken =
        error(omma(folder, &["predict", "run", "pictures/broken.jpg", "-o", "none.csv", "-q"]));
    assert!(broken.contains("none of 1 files") && broken.contains("broken.jpg"), "{broken}");
    assert!(!folder.join("none.csv").exists());
}

/// RFC 4180, as far as these files go.
fn csv_rows(text: &str) -> Vec<Vec<String>> {
    let row = |line: &str| {
        let mut cells = vec![String::new()];
        let mut quoted = false;
        for symbol in line.chars() {
            match symbol {
                '"' => quoted = !quoted,
                ',' if !quoted => cells.push(String::new()),
                symbol => cells.last_mut().unwrap().push(symbol),
            }
        }
        cells
    };
    text.lines().map(row).collect()
}

fn close(cell: &str, number: &Value) {
    let (cell, number) = (cell.parse::<f64>().unwrap(), number.as_f64().unwrap());
    assert!((cell - number).abs() < 1e-6, "{cell} {number}");
}

#[test]
fn images_come_from_standard_input_and_from_tables_too() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    trained(folder, &[]);
    pictures(folder);
    let usual = objects(&stdout(omma(folder, &["predict", "run", "pictures", "--json"])));
    let (blue, red) = (&usual[0], &usual[1]);

    let listed = "pictures/red, dark.png\npictures/nowhere.png\r\npictures/blue.png\n";
    let mut command = omma(folder, &["predict", "run", "-", "--json"]);
    command.write_stdin(listed);
    let answers = objects(&stdout(command));
    assert_eq!((answers.len(), &answers[0], &answers[1]), (2, red, blue));

    let mut command = omma(folder, &["predict", "run", "-", "--json"]);
    command.write_stdin(fs::read(folder.join("pictures/blue.png")).unwrap());
    let answer = &objects(&stdout(command))[0];
    assert_eq!((&answer["image"], &answer["top"]), (&"-".into(), &blue["top"]));

    // Paths are relative to the table, and other columns come along.
    let table = "id,file,entropy\n7,blue.png,low\n8,gone.png,\n9,\"red, dark.png\",high\n";
    fs::write(folder.join("pictures/table.csv"), table).unwrap();
    let table = ["predict", "run", "pictures/table.csv", "--top", "1"];
    let rows = csv_rows(&stdout(omma(folder, &[&table[..], &["--format", "csv"]].concat())));
    assert_eq!(rows[0][4..], ["entropy", "mutual_information", "id", "input_entropy"]);
    assert_eq!(
        (rows.len(), &rows[1][0], &rows[2][0]),
        (3, &"blue.png".into(), &"red, dark.png".into())
    );
    assert_eq!(
        (&rows[1][6..], &rows[2][6..]),
        (&["7", "low"].map(str::to_owned)[..], &["9", "high"].map(str::to_owned)[..])
    );
    let lines = objects(&stdout(omma(folder, &[&table[..], &["--json"]].concat())));
    assert_eq!(lines[1]["columns"], serde_json::json!({"id": "9", "entropy": "high"}));
    assert_eq!(lines[1]["top"][0], red["top"][0]);

    fs::write(folder.join("odd.tsv"), "what\tid\npictures/blue.png\t1\n").unwrap();
    let odd = error(omma(folder, &["predict", "run", "odd.tsv"]));
    assert!(odd.contains("--image-column"), "{odd}");
    let named = omma(folder, &["predict", "run", "odd.tsv", "--image-column", "what", "--json"]);
    assert_eq!(objects(&stdout(named))[0]["top"], blue["top"]);
}

#[test]
fn at_another_resolution_a_model_says_what_it_says_once_converted_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    trained(folder, &["model.moe.members=2"]);
    pictures(folder);
    stdout(omma(folder, &["convert", "run", "wide", "--resolution", "24x40"]));
    let answers = |arguments: &[&str]| {
        let more = ["pictures", "--json"];
        objects(&stdout(omma(folder, &[&["predict"], arguments, &more[..]].concat())))
    };
    let asked = answers(&["run", "--resolution", "24x40"]);
    assert_eq!(asked, answers(&["run", "--set", "resolution=[24, 40]"]));
    let converted = answers(&["wide"]);
    for (asked, converted) in asked.iter().zip(&converted) {
        // A checkpoint has no names, and everything else.
        assert_eq!(asked["entropy"], converted["entropy"]);
    }
    assert_ne!(asked[0]["entropy"], answers(&["run"])[0]["entropy"]);

    let judged = |arguments: &[&str]| -> Value {
        let more = ["--json", "--no-temperature"];
        let mut command = omma(folder, &[&["eval"], arguments, &more[..]].concat());
        serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
    };
    let own = judged(&["run"]);
    let asked = judged(&["run", "--resolution", "24"]);
    assert_ne!(asked["nll"], own["nll"]);
    assert!(asked["cost"]["forward_macs"].as_u64() > own["cost"]["forward_macs"].as_u64());
    assert_eq!(asked["label"], "vmoe with resolution=24");
    stdout(omma(folder, &["convert", "run", "large", "--resolution", "24"]));
    stdout(omma(folder, &["convert", "large", "small", "--resolution", "16"]));
    // The run as a checkpoint, which does not know how much of the world it has seen.
    stdout(omma(folder, &["convert", "run", "plain", "--resolution", "16"]));
    let nll = |subject: &[&str]| {
        judged(&[subject, &["--data", "world", "--limit", "40"]].concat())["nll"].clone()
    };
    assert_eq!(nll(&["plain", "--resolution", "24"]), nll(&["large"]));
    assert_eq!(nll(&["plain"]), nll(&["small"]), "there and back");
    assert_ne!(nll(&["plain"]), nll(&["large"]));

    let shots = |subject: &[&str]| -> Value {
        let more = ["--data", "world", "--shots", "2", "--seeds", "1", "--limit", "40", "--json"];
        let text = stdout(omma(folder, &[&["fewshot"], subject, &more[..]].concat()));
        serde_json::from_str::<Value>(&text).unwrap()["results"].clone()
    };
    assert_eq!(shots(&["plain", "--resolution", "24"]), shots(&["large"]));
    let refused = error(omma(folder, &["eval", "run", "--resolution", "7"]));
    assert!(refused.contains("no patch of 8"), "{refused}");
    let idle = error(omma(folder, &["convert", "run", "same"]));
    assert!(idle.contains("--resolution"), "{idle}");
}
