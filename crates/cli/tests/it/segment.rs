//! Segmentation as a user types it: training on masks, judging, masks of predictions.

use std::{
    fs,
    path::{Path, PathBuf},
};

use assert_cmd::Command;
use omma_base::Resolution;
use omma_data::{Picture, formats::write_mask};
use serde_json::Value;

use crate::support::{error, json, omma, train_small};

/// Scenes that seconds are enough for.
const SCENES: &[&str] = &[
    "model.patch=4",
    "model.moe.experts=4",
    "data.train_samples=200",
    "data.test_samples=20",
    "train.steps=8",
    "train.batch=8",
    "train.linear_baseline=true",
];

fn train(folder: &Path, more: &[&str]) -> Command {
    train_small(folder, "segment", &[SCENES, more].concat())
}

/// Streets: a grey road below a blue sky, 24 × 18 pixels, with a strip of nothing in between.
fn streets(root: &Path, list: bool) {
    for (split, count) in [("train", 12), ("test", 4)] {
        let [images, masks] = ["", "annot"].map(|end| root.join(format!("{split}{end}")));
        for folder in [&images, &masks] {
            fs::create_dir_all(folder).unwrap();
        }
        for number in 0..count {
            let (width, height, horizon) = (24, 18, 6 + number % 6);
            let class = |y: usize| match y {
                y if y < horizon => 0,
                y if y == horizon => 2,
                _ => 1,
            };
            let rows = || (0..height).flat_map(|y| (0..width).map(move |_| y));
            let pixels =
                rows().flat_map(|y| [[60, 120, 250], [90; 3], [90; 3]][class(y)]).collect();
            let image = images.join(format!("{number}.jpg"));
            Picture { width, height, pixels }.save_png(&image).unwrap();
            let mask: Vec<u8> = rows().map(|y| class(y) as u8).collect();
            let size = Resolution::new(height, width);
            write_mask(&masks.join(format!("{number}.png")), &mask, size, |class| [class; 3])
                .unwrap();
        }
    }
    if list {
        fs::write(root.join("classes.txt"), "0 sky\n1 road\n2 void\n").unwrap();
    }
}

#[test]
fn a_run_leaves_a_model_that_labels_pixels() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(folder, &[]).assert().success();
    let run = folder.join("runs/segment-1");
    let result: Value =
        serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap();
    assert!(result["test_mean_iou"].as_f64().unwrap() > 0.0, "{result}");
    assert!(result["linear_baseline_mean_iou"].is_number(), "{result}");
    let classes: Vec<String> =
        serde_json::from_slice(&fs::read(run.join("classes.json")).unwrap()).unwrap();
    assert_eq!((classes.len(), classes[0].as_str()), (11, "background"));
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("experts of block") && page.contains("disagreement"));

    let found = json(omma(folder, &["eval", "runs/segment-1", "--json"]));
    let pixels = &found["segmentation"];
    assert_eq!(pixels["samples"], 20);
    assert_eq!(pixels["pixels"], 20 * 16 * 16);
    assert_eq!(pixels["mean_iou"], result["test_mean_iou"], "training tests as eval does");
    assert_eq!(pixels["iou"].as_array().unwrap().len(), 11);
    let shown = omma(folder, &["eval", "runs/segment-1"]).assert().success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    assert!(shown.contains("mean IoU") && shown.contains("background"), "{shown}");
    omma(folder, &["train", "--resume", "runs/segment-1", "--set", "train.steps=10"])
        .assert()
        .success();
}

#[test]
fn streets_of_another_shape_are_learned_and_masks_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = folder.join("streets");
    streets(&data, true);
    let name = "data.name=streets";
    train(folder, &[name, "train.steps=60", "model.patch=2", "data.validation=0.2"])
        .assert()
        .success();
    let found = json(omma(folder, &["eval", "runs/segment-1", "--json"]));
    assert_eq!(found["classes"], serde_json::json!(["sky", "road"]), "void is no class");
    let pixels = &found["segmentation"];
    assert_eq!((&pixels["pixels"], &pixels["ignored"]), (&(4 * 24 * 17).into(), &(4 * 24).into()));
    assert!(pixels["mean_iou"].as_f64().unwrap() > 0.7, "{}", pixels["mean_iou"]);
    let whole = json(omma(folder, &["eval", "runs/segment-1", "--windows", "whole", "--json"]));
    assert_ne!(whole["segmentation"]["nll"], pixels["nll"], "positions are interpolated");

    let lines =
        omma(folder, &["predict", "runs/segment-1", "streets/test", "--json"]).assert().success();
    let lines = String::from_utf8(lines.get_output().stdout.clone()).unwrap();
    assert_eq!(lines.lines().count(), 4);
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let mask = folder.join(first["mask"].as_str().unwrap());
    let shares: f64 =
        first["top"].as_array().unwrap().iter().map(|one| one["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9);
    for file in [mask, PathBuf::from(folder).join(first["overlay"].as_str().unwrap())] {
        let picture = Picture::open(&file).unwrap();
        assert_eq!((picture.width, picture.height), (24, 18), "as large as the image");
    }
    let again = error(omma(folder, &["predict", "runs/segment-1", "streets/test"]));
    assert!(again.contains("masks is not empty") && again.contains("--masks"), "{again}");
    let text =
        omma(folder, &["predict", "runs/segment-1", "streets/test/0.jpg", "--masks", "other"])
            .assert()
            .success();
    let text = String::from_utf8(text.get_output().stdout.clone()).unwrap();
    assert!(text.contains("other/0.png") && text.contains('%'), "{text}");
}

#[test]
fn a_frozen_trunk_keeps_what_it_makes_of_images_with_their_masks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    streets(&folder.join("streets"), false);
    omma(folder, &["init", "vit-tiny", "small"])
        .args(
            ["resolution=16", "patch=4", "width=16", "depth=2", "heads=2", "mlp=32"]
                .iter()
                .flat_map(|s| ["--set", s]),
        )
        .assert()
        .success();
    let frozen = |cache: &str, draws: &str| {
        let mut command = train(
            folder,
            &[
                "data.name=streets",
                "model.moe=none",
                "train.freeze=all-but-1",
                "data.validation=0.2",
                cache,
                draws,
            ],
        );
        command.env("OMMA_CACHE", folder.join("cache")).args(["--init", "small"]);
        command.assert().success();
    };
    frozen("data.cache=true", "data.cache_augmentations=0");
    frozen("data.cache=true", "data.cache_augmentations=2");
    frozen("data.cache=false", "augment.flip=false");
    let scores = |run: u32| {
        let path = folder.join(format!("runs/segment-{run}/result.json"));
        let result: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        result["test_nll"].as_f64().unwrap()
    };
    // Without augmentation, images and masks are the same whether they are kept or not.
    assert!((scores(1) - scores(3)).abs() < 1e-4, "{} and {}", scores(1), scores(3));
}

#[test]
fn what_does_not_fit_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for class in ["cat", "dog"] {
        fs::create_dir_all(folder.join("photos").join(class)).unwrap();
        for number in 0..10 {
            let file = folder.join(format!("photos/{class}/{number}.png"));
            Picture::filled(16, 16, [9; 3]).save_png(&file).unwrap();
        }
    }
    let message = error(train(folder, &["data.name=photos"]));
    assert!(message.contains("have no masks") && message.contains("trainannot"), "{message}");
    let message = error(train(folder, &["train.label_smoothing=0.1"]));
    assert!(message.contains("label_smoothing"), "{message}");
    let message = error(train(folder, &["mixing.mixup=0.2"]));
    assert!(message.contains("mix"), "{message}");
    streets(&folder.join("streets"), true);
    let message = error(omma(folder, &["train", "vit", "--data", "streets"]));
    assert!(message.contains("segmentation"), "{message}");

    train(folder, &["data.name=streets", "data.validation=0.2"]).assert().success();
    let judged = |arguments: &[&str]| {
        error(omma(folder, &[&["eval", "runs/segment-1"], arguments].concat()))
    };
    assert!(judged(&["--data", "photos"]).contains("has no masks"));
    assert!(judged(&["--shift"]).contains("labels pixels"));
    assert!(judged(&["--data", "world"]).contains("classes"));
    fs::write(folder.join("streets/testannot/0.png"), "no mask").unwrap();
    let shown = omma(folder, &["eval", "runs/segment-1"]).assert().success();
    let noted = String::from_utf8(shown.get_output().stderr.clone()).unwrap();
    assert!(noted.contains("testannot/0.png"), "{noted}");
}
