//! A user's own data, in the forms that it comes in.

use std::{
    fs,
    path::{Path, PathBuf},
};

use omma_data::Picture;
use omma_fuzz::container::{gzip, zipped};

use super::train;
use crate::support::{error, json, omma};

/// Thirty images of each of two classes.
fn photos(at: &Path) {
    for (class, colour) in [("cat", [200, 20, 20]), ("dog", [20, 20, 200])] {
        fs::create_dir_all(at.join(class)).unwrap();
        for number in 0..30 {
            let path = at.join(class).join(format!("{number:02}.png"));
            Picture::filled(12, 10, colour).save_png(&path).unwrap();
        }
    }
}

/// What training says on its way to the end.
fn said(folder: &Path, arguments: &[&str]) -> String {
    let mut command = train(folder, "vit", &["train.linear_baseline=false"]);
    let output = command.args(arguments).assert().success();
    String::from_utf8(output.get_output().stderr.clone()).unwrap()
}

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let mut command = train(folder, "vit", &[]);
    command.args(arguments);
    let message = error(command);
    assert!(!folder.join("runs").exists(), "nothing is written for a run that cannot start");
    message
}

/// A table of all photos, with `header` in front and a column that nobody needs.
fn table(folder: &Path, name: &str, header: &str) {
    let rows = ["cat", "dog"].into_iter().flat_map(|class| {
        (0..30).map(move |number| format!("photos/{class}/{number:02}.png\t{class}\n"))
    });
    fs::write(folder.join(name), header.to_owned() + &rows.collect::<String>()).unwrap();
}

#[test]
fn classes_and_images_are_counted_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    photos(&folder.join("photos"));
    let text = said(folder, &["--data", "photos", "--set", "data.validation=0.02"]);
    let line = "2 classes; 49 images to learn from, 5 held out to choose the best checkpoint, 6 for the test";
    assert!(text.contains(line), "a tenth of 54, though 0.02 was asked for: {text}");
    assert!(text.contains(" on 5 images"), "{text}");
    let text = said(folder, &["--data", "photos", "--set", "data.validation=0"]);
    assert!(text.contains("54 images to learn from, none held out, 6 for the test"), "{text}");
}

#[test]
fn an_archive_a_table_and_a_single_file_can_be_learned() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    photos(&folder.join("photos"));
    let counted = "2 classes; 49 images to learn from, 5 held out";

    let files = ["cat", "dog"]
        .into_iter()
        .flat_map(|class| (0..30).map(move |number| format!("photos/{class}/{number:02}.png")));
    let mut members: Vec<(String, Vec<u8>)> =
        files.map(|file| (file.clone(), fs::read(folder.join(&file)).unwrap())).collect();
    members.push(("__MACOSX/photos/cat/._00.png".to_owned(), b"x".to_vec()));
    fs::write(folder.join("photos.zip"), zipped(&members)).unwrap();
    assert!(said(folder, &["--data", "photos.zip"]).contains(counted));

    table(folder, "plain.tsv", "");
    let text = said(folder, &["--data", "plain.tsv"]);
    assert!(text.contains(counted), "{text}");
    assert!(text.contains("no header; column 1 for images, column 2 for labels"), "{text}");
    assert_eq!(text.matches("no header").count(), 1, "said once: {text}");

    let records = (0..60).flat_map(|index| [vec![index % 10], vec![index; 3072]].concat());
    fs::write(folder.join("x.bin.gz"), gzip(&records.collect::<Vec<u8>>())).unwrap();
    assert!(said(folder, &["--data", "x.bin.gz"]).contains("10 classes; 49 images to learn from"));
}

#[test]
fn a_run_remembers_which_columns_were_meant() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    photos(&folder.join("photos"));
    table(folder, "odd.tsv", "photo\tkind of thing\n");
    let message = refused(folder, &["--data", "odd.tsv"]);
    assert!(message.contains("1 \"photo\", 2 \"kind of thing\""), "{message}");
    let message = refused(folder, &["--data", "odd.tsv", "--columns", "image=foto,label=2"]);
    assert!(message.contains("\"foto\"; did you mean \"photo\"?"), "{message}");
    let message = refused(folder, &["--data", "odd.tsv", "--columns", "picture=photo"]);
    assert!(message.contains("data.columns") && message.contains("\"picture\""), "{message}");
    let message = refused(folder, &["--data", "photos", "--columns", "image=1,label=2"]);
    assert!(message.contains("photos is no table"), "{message}");

    let columns = "image=photo,label=kind of thing";
    let text = said(folder, &["--data", "odd.tsv", "--columns", columns]);
    assert!(text.contains("2 classes; 49 images"), "{text}");
    let run = folder.join("runs/vit-1");
    let recipe = fs::read_to_string(run.join("recipe.toml")).unwrap();
    assert!(recipe.contains(&format!("columns = \"{columns}\"")), "{recipe}");
    let found = json(omma(folder, &["eval", "runs/vit-1", "--json"]));
    assert_eq!((&found["samples"], &found["temperature"]["fitted_on"]), (&6.into(), &5.into()));
    // The same table under other columns is what the user says it is.
    let mut eval = omma(folder, &["eval", "runs/vit-1", "--data", "odd.tsv"]);
    eval.args(["--columns", "image=photo,label=kind"]);
    assert!(error(eval).contains("no column \"kind\"; did you mean \"kind of thing\"?"));
}

#[test]
fn a_folder_that_is_not_the_right_one_is_answered_with_the_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    photos(&folder.join("outer/mydata"));
    let inner: PathBuf = ["outer", "mydata"].iter().collect();
    let message = refused(folder, &["--data", "outer"]);
    assert!(message.contains("1 folder (mydata: 60 images)"), "{message}");
    assert!(message.contains("outer/mydata, which holds 2 folders (cat: 30 images"), "{message}");
    let message = refused(folder, &["--data", inner.join("cat").to_str().unwrap()]);
    assert!(message.contains("one class by itself; its parent is probably meant"), "{message}");
    assert!(message.contains("2 folders with images (cat, dog)"), "{message}");
    fs::create_dir(folder.join("empty")).unwrap();
    assert!(refused(folder, &["--data", "empty"]).contains("it is empty"));
    fs::remove_dir_all(folder.join("outer/mydata/dog")).unwrap();
    let message = refused(folder, &["--data", inner.to_str().unwrap()]);
    assert!(message.contains("all images are of one class, \"cat\""), "{message}");
    assert!(message.contains("1 folder (cat: 30 images)"), "{message}");
    fs::write(folder.join("t.csv"), "path,label,other\na,x,1\nb,x,2\nc,x,3\n").unwrap();
    let message = refused(folder, &["--data", "t.csv"]);
    assert!(
        message.contains("one class, \"x\"") && message.contains("--columns label="),
        "{message}"
    );
}
