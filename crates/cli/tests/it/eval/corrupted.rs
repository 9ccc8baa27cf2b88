//! `omma eval --shift-data`: corrupted images that others have published.

use std::{fs, path::Path};

use omma_base::{Resolution, Seed};
use omma_data::{
    Dataset, Split,
    corrupt::{Corruption, SEVERITIES},
    world::{Variant, World},
};

use super::{EXPERTS, error, evaluated, json, omma, text, trained};

/// Test images of the run below.
const IMAGES: usize = 12;

/// An array of NumPy.
fn array(shape: &str, bytes: &[u8]) -> Vec<u8> {
    let head = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let length = (head.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], head.as_bytes(), bytes].concat()
}

/// The world's test images under our own corruptions, in the layout of CIFAR-10-C.
fn publish(folder: &Path) {
    let world = World::new(0, Resolution::square(16), IMAGES, Split::Test, Variant::Usual);
    let samples: Vec<_> = (0..IMAGES).map(|index| world.get(index).unwrap()).collect();
    let seed = Seed::new(3).named("shift");
    fs::create_dir(folder).unwrap();
    for corruption in Corruption::ALL {
        let mut pixels = Vec::new();
        for severity in 1..=SEVERITIES {
            for (index, sample) in samples.iter().enumerate() {
                let seed = seed.numbered(index as u64);
                pixels.extend(corruption.apply(&sample.picture, severity, seed).pixels);
            }
        }
        let shape = format!("{}, 16, 16, 3", SEVERITIES * IMAGES);
        let file = folder.join(format!("{}.npy", corruption.name()));
        fs::write(file, array(&shape, &pixels)).unwrap();
    }
    let labels: Vec<u8> = samples.iter().map(|sample| sample.label as u8).collect();
    fs::write(folder.join("labels.npy"), array(&format!("{IMAGES},"), &labels)).unwrap();
}

#[test]
fn published_images_are_judged_as_those_that_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let settings = [EXPERTS, &["model.moe.members=2", "data.test_samples=12"]].concat();
    let run = trained(folder, "e3", "vmoe", &settings);
    let eval = |more: &[&str]| omma(folder, &[&["eval", text(&run), "--json"], more].concat());
    let made = json(eval(&["--shift", "--shift-seed", "3"]))["shift"].clone();
    assert_eq!(made["origin"]["made"]["seed"], 3);

    let set = folder.join("World-C");
    publish(&set);
    fs::copy(set.join("contrast.npy"), set.join("speckle_noise.npy")).unwrap();
    let found = json(eval(&["--shift-data", "World-C/"]))["shift"].clone();
    assert_eq!(found["origin"]["published"]["folder"], "World-C");
    assert_eq!(found["samples"], IMAGES);
    for name in Corruption::ALL.map(Corruption::name).into_iter().chain(["mean"]) {
        assert!(made[name]["diversity"]["kl"].is_number() && made[name]["nll"].is_number());
        assert_eq!(found[name], made[name], "{name}");
    }
    assert_eq!(found["extra"]["speckle_noise"], made["contrast"]);
    assert!(made["extra"].is_null());
    let judged = evaluated(&run, "world-shift-data-World-C-");
    let page = fs::read_to_string(judged.join("eval.html")).unwrap();
    assert!(page.contains("15 corruptions in five severities, as published in World-C"), "{page}");
    assert!(page.contains("speckle noise (not in the mean)"));
    let some = json(eval(&["--shift-data", "World-C", "--shift-samples", "5"]));
    assert_eq!(some["shift"]["samples"], 5);

    // What is there is judged; what is not there is said.
    for corruption in Corruption::ALL.into_iter().filter(|one| *one != Corruption::Fog) {
        fs::remove_file(set.join(format!("{}.npy", corruption.name()))).unwrap();
    }
    let output = eval(&["--shift-data", "World-C"]).assert().success().get_output().clone();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("1 of the 15 corruptions"), "{notes}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["shift"]["mean"], &found["shift"]["fog"]), (&made["fog"], &made["fog"]));

    fs::remove_dir_all(run.join("evals")).unwrap();
    fs::remove_file(set.join("fog.npy")).unwrap();
    let message = error(eval(&["--shift-data", "World-C"]));
    assert!(message.contains("World-C has none of the fifteen"), "{message}");
    let message = error(eval(&["--shift-data", "nowhere"]));
    assert!(message.contains("nowhere"), "{message}");
    let message = error(eval(&["--shift-data", "World-C", "--shift"]));
    assert!(
        message.contains("--shift-data") && message.contains("cannot be used with"),
        "{message}"
    );
    assert!(!run.join("evals").exists());
}
