//! `omma embed` and `omma search` as a user types them, with models that were never trained: what is the same is
//! found all the same.

use std::{
    fs,
    path::{Path, PathBuf},
};

use omma_base::files::{NpyHead, tensors::floats_of};
use omma_data::{
    Picture,
    text::{Tokenizer, TokenizerKind},
};
use omma_testing::model_settings;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{error, json, omma, output, set};

/// A mixture that compares images with texts.
const PAIRS: &[&str] = &["moe.hidden=16", "moe.experts=4", "embedding=8", "text.vocabulary=100"];

/// A fresh contrastive model with its tokenizer.
fn model(folder: &Path, name: &str, seed: &str) {
    let mut command = omma(folder, &["init", "limoe-tiny", name, "--seed", seed]);
    command.args(set(&model_settings(PAIRS)));
    command.assert().success();
    let captions = ["a red bird", "a blue fish and a green tree"].map(str::to_owned);
    let tokenizer = Tokenizer::learn(captions.into_iter(), TokenizerKind::Unigram, 100).unwrap();
    fs::write(folder.join(name).join("tokenizer.json"), tokenizer.json()).unwrap();
}

/// Photos of one colour each, and one that is broken.
fn photos(folder: &Path) {
    fs::create_dir_all(folder.join("photos/more")).unwrap();
    let colours =
        [("red.png", [220, 10, 10]), ("green.png", [10, 200, 30]), ("more/blue.png", [5, 20, 240])];
    for (name, colour) in colours {
        Picture::filled(40, 30, colour).save_png(&folder.join("photos").join(name)).unwrap();
    }
    fs::write(folder.join("photos/broken.jpg"), "not a picture").unwrap();
}

fn indices(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder.join("photos/.omma-search")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn names(found: &Value) -> Vec<&str> {
    let results = found["results"].as_array().unwrap();
    results.iter().map(|one| one["image"].as_str().unwrap()).collect()
}

#[test]
fn a_photo_is_most_like_itself_and_only_what_changed_is_looked_at_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    model(folder, "m", "1");
    photos(folder);
    let search =
        || omma(folder, &["search", "m", "photos", "--image", "photos/green.png", "--json"]);
    let first = json(search());
    assert_eq!(names(&first)[0], "photos/green.png");
    assert!((first["results"][0]["score"].as_f64().unwrap() - 1.0).abs() < 1e-4);
    let counts = |found: &Value| {
        ["photos", "embedded", "removed", "unreadable"].map(|key| found[key].as_u64().unwrap())
    };
    assert_eq!(counts(&first), [3, 4, 0, 1]);
    let again = json(search());
    assert_eq!((counts(&again), &again["results"]), ([3, 0, 0, 1], &first["results"]));

    Picture::filled(41, 30, [250, 250, 0]).save_png(&folder.join("photos/red.png")).unwrap();
    Picture::filled(40, 30, [0, 0, 0]).save_png(&folder.join("photos/black.png")).unwrap();
    Picture::filled(40, 30, [9, 9, 9]).save_png(&folder.join("photos/broken.jpg")).unwrap();
    fs::remove_file(folder.join("photos/more/blue.png")).unwrap();
    let changed = json(search());
    assert_eq!(counts(&changed), [4, 3, 1, 0]);
    assert!(!names(&changed).contains(&"photos/more/blue.png"));
    // What was kept and what is made anew are the same.
    let fresh = json({
        let mut command = search();
        command.arg("--no-index");
        command
    });
    assert_eq!(names(&fresh), names(&changed));
    assert_eq!(counts(&fresh), [4, 4, 0, 0]);
    assert_eq!(indices(folder).len(), 1);
}

#[test]
fn words_find_photos_in_the_terminal_and_on_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    model(folder, "m", "1");
    photos(folder);
    let query = ["search", "m", "a red bird", "photos", "--top", "2"];
    let (text, notes) = output(omma(folder, &[&query[..], &["--page", "found.html"]].concat()));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].contains("photos/") && lines[0].contains('━'), "{text}");
    assert_eq!(lines[2], "wrote found.html");
    assert!(notes.contains("broken.jpg") && notes.contains("1 of 4 files"), "{notes}");
    let page = fs::read_to_string(folder.join("found.html")).unwrap();
    assert_eq!(page.matches("<img").count(), 2);
    assert!(page.contains("a red bird"));
    let found = json(omma(folder, &[&query[..], &["--json"]].concat()));
    assert_eq!(found["query"], "a red bird");
    let shown: Vec<&str> = lines[..2].iter().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(names(&found), shown);
    // Words that no vocabulary has are said to be unknown.
    let (_, notes) = output(omma(folder, &["search", "m", "☃☃☃", "photos"]));
    assert!(notes.contains("1 token unknown"), "{notes}");
}

#[test]
fn every_model_has_an_index_of_its_own_and_a_damaged_one_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    photos(folder);
    let search = |model: &str| omma(folder, &["search", model, "red", "photos", "--json"]);
    for (name, seed) in [("a", "1"), ("b", "2")] {
        model(folder, name, seed);
        output(search(name));
    }
    let kept = indices(folder);
    assert_eq!(kept.len(), 2);
    let before = json(search("a"));
    assert_eq!(before["embedded"], 0);
    for path in kept {
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let (after, notes) = output(search("a"));
    let after: Value = serde_json::from_str(&after).unwrap();
    assert!(notes.contains("damaged") && notes.contains("made again"), "{notes}");
    assert_eq!((after["embedded"].as_u64(), &after["results"]), (Some(4), &before["results"]));
    assert_eq!(json(search("a"))["embedded"], 0);
}

#[test]
fn where_nothing_can_be_kept_it_goes_on_without() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    model(folder, "m", "1");
    photos(folder);
    fs::write(folder.join("photos/.omma-search"), "in the way").unwrap();
    for _ in 0..2 {
        let (found, notes) = output(omma(folder, &["search", "m", "red", "photos", "--json"]));
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["embedded"], 4);
        assert!(notes.contains("nothing is kept"), "{notes}");
    }
}

#[test]
fn rows_are_the_same_in_every_format_and_of_length_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    model(folder, "m", "1");
    photos(folder);
    fs::write(folder.join("texts.txt"), "a red bird\n\na tree\n").unwrap();
    let inputs = [
        "photos/red.png",
        "photos/more",
        "--texts",
        "a red bird",
        "fish",
        "--texts-file",
        "texts.txt",
    ];
    let embed = |more: &[&str]| omma(folder, &[&["embed", "m"], &inputs[..], more].concat());
    let all = json(embed(&["--json"]));
    assert_eq!(all["shape"], serde_json::json!([7, 8]));
    let expected = [
        "photos/red.png",
        "photos/more/blue.png",
        "a red bird",
        "fish",
        "a red bird",
        "",
        "a tree",
    ];
    assert_eq!(all["names"], serde_json::json!(expected));
    let rows: Vec<Vec<f32>> = serde_json::from_value(all["embeddings"].clone()).unwrap();
    for row in &rows {
        let length: f32 = row.iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
    }
    let close = |found: &[f32]| {
        let wanted = rows.concat();
        found.len() == wanted.len() && found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-5)
    };
    let same: Vec<f32> = rows[2].iter().zip(&rows[4]).map(|(a, b)| (a - b).abs()).collect();
    assert!(same.iter().all(|gap| *gap < 1e-5), "the same text is the same row");

    let (said, _) = output(embed(&["-o", "x.npy"]));
    assert_eq!(said, "wrote x.npy (7 rows of 8)\n");
    let bytes = fs::read(folder.join("x.npy")).unwrap();
    let head = NpyHead::read(&bytes[..]).unwrap();
    assert_eq!((head.dtype.as_str(), &head.shape[..]), ("<f4", &[7, 8][..]));
    assert!(close(&floats_of(&bytes[head.length as usize..])));

    let written = json(embed(&["-o", "x.safetensors", "--json"]));
    assert_eq!((&written["output"], written.get("embeddings")), (&"x.safetensors".into(), None));
    let bytes = fs::read(folder.join("x.safetensors")).unwrap();
    let (_, head) = SafeTensors::read_metadata(&bytes).unwrap();
    let names: Value = serde_json::from_str(&head.metadata().as_ref().unwrap()["names"]).unwrap();
    assert_eq!(names, all["names"]);
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert!(close(&floats_of(tensors.tensor("embeddings").unwrap().data())));
}

#[test]
fn files_that_cannot_be_read_stop_it_or_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    model(folder, "m", "1");
    photos(folder);
    let embed = |more: &[&str]| omma(folder, &[&["embed", "m", "photos"], more].concat());
    let message = error(embed(&["-o", "x.npy"]));
    assert!(message.contains("broken.jpg") && message.contains("--skip"), "{message}");
    assert!(!folder.join("x.npy").exists());
    assert_eq!(json(embed(&["--skip", "--json"]))["shape"], serde_json::json!([3, 8]));
    assert!(error(embed(&["-o", "x.csv"])).contains(".npy or .safetensors"));
    assert!(error(omma(folder, &["embed", "m", "--json"])).contains("--texts"));
}

#[test]
fn what_cannot_be_searched_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    model(folder, "m", "1");
    photos(folder);
    fs::create_dir(folder.join("empty")).unwrap();
    let search = |model: &str, query: &str, photos: &str| {
        error(omma(folder, &["search", model, query, photos]))
    };
    assert!(search("m", "red", "empty").contains("no image"));
    assert!(search("m", "red", "nowhere").contains("not a folder"));
    assert!(error(omma(folder, &["search", "m", "photos"])).contains("what to look for"));
    let both = ["search", "m", "red", "photos", "--image", "photos/red.png"];
    assert!(error(omma(folder, &both)).contains("not for both"));

    output(omma(folder, &["init", "vmoe-tiny", "classifier"]));
    assert!(search("classifier", "red", "photos").contains("reads no text"));

    let tokenizer = folder.join("m/tokenizer.json");
    let captions =
        ('a'..='z').chain('α'..='ω').map(|c| format!("{c} {c}{c} {c}{c}{c} {c}x {c}y {c}z"));
    let large = Tokenizer::learn(captions, TokenizerKind::Bpe, 300).unwrap();
    fs::write(&tokenizer, large.json()).unwrap();
    let message = search("m", "red", "photos");
    assert!(message.contains("vectors for 100"), "{message}");
    fs::write(&tokenizer, "{}").unwrap();
    assert!(search("m", "red", "photos").contains("tokenizer.json"));
    fs::remove_file(&tokenizer).unwrap();
    assert!(search("m", "red", "photos").contains("has no tokenizer"));
    // A photo is found without one.
    output(omma(folder, &["search", "m", "photos", "--image", "photos/red.png"]));
}
