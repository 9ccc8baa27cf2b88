//! Small checkpoints that timm, transformers and NumPy wrote (`tests/interop/run --small`), against what
//! their own projects say of the same images.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::Seed;
use omma_model::{
    checkpoint,
    import::{Family, import, largest_difference, tensor_file},
    open_tensors,
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

const CHECKPOINTS: &[(&str, Family, &[&str])] = &[
    ("timm.pth", Family::Timm, &["heads=3"]),
    ("timm_half.pth", Family::Timm, &["heads=3"]),
    ("timm_registers.safetensors", Family::Timm, &["heads=3"]),
    ("dinov2.safetensors", Family::Dinov2, &["heads=3"]),
    ("hf_vit", Family::HfVit, &[]),
    ("hf_dinov2", Family::HfDinov2, &[]),
    ("google.npz", Family::GoogleVit, &[]),
    ("big_vision.npz", Family::GoogleVit, &[]),
];

#[test]
fn checkpoints_of_other_projects_say_here_what_they_say_there() {
    let mut answers = open_tensors(&data("answers.safetensors")).unwrap();
    let shape = answers.tensors()["images"].shape.clone();
    let images = TensorData::new(answers.read("images").unwrap(), shape.as_slice());
    let images = Tensor::<4>::from_data(images, &Device::flex());
    for (name, family, settings) in CHECKPOINTS {
        let imported = import(&data(name), settings, &Device::flex())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(imported.family, *family, "{name}");
        let logits = imported.model.predict(images.clone(), Seed::new(0)).unwrap().logits;
        let found: Vec<f32> = logits.try_into_vec_as().unwrap();
        let expected = answers.read(name).unwrap();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-4, "{name}: {found}, expected {expected}");
        }

        // The definition that `--check` uses agrees too, and what was written can be read.
        let mut source = open_tensors(&tensor_file(&data(name)).unwrap()).unwrap();
        let difference =
            largest_difference(source.as_mut(), &imported, Seed::new(1), &Device::flex()).unwrap();
        assert!(difference.is_some_and(|difference| difference < 1e-4), "{name}: {difference:?}");
        let folder = tempfile::tempdir().unwrap();
        checkpoint::save(&imported.model, folder.path()).unwrap();
        let again = checkpoint::load(folder.path(), &Device::flex()).unwrap();
        let again: Vec<f32> =
            again.predict(images.clone(), Seed::new(0)).unwrap().logits.try_into_vec_as().unwrap();
        assert_eq!(again, found, "{name}");
    }
}

/// Name, shape and values.
type Array = (String, Vec<usize>, Vec<f32>);

fn write(file: &Path, arrays: &[Array]) {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let bytes: Vec<Vec<u8>> = arrays.iter().map(|(.., values)| bytes(values)).collect();
    let views = arrays.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        let dtype = safetensors::Dtype::F32;
        let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap();
        (name.clone(), view)
    });
    safetensors::tensor::serialize_to_file(views, None, file).unwrap();
}

/// Every family with a grid of positions that is 3 × 6 patches, which no count of positions can tell: it
/// is what its project says, once a setting says what the grid is.
#[test]
fn rectangles_of_every_family_follow_their_definition() {
    for (name, family, settings) in CHECKPOINTS {
        let mut source = open_tensors(&tensor_file(&data(name)).unwrap()).unwrap();
        let names: Vec<String> = source.tensors().keys().cloned().collect();
        let square = import(&data(name), settings, &Device::flex()).unwrap().model;
        let image = square.config().image.clone();
        let (rows, columns) = image.position_grid();
        let arrays = names.iter().map(|name| {
            let (mut shape, mut values) =
                (source.tensors()[name].shape.clone(), source.read(name).unwrap());
            if name.contains("pos_embed") || name.contains("position_embeddings") {
                let others = shape[1] - rows * columns;
                shape[1] = others + 3 * 6;
                let fresh = (0..shape[1] * shape[2]).map(|place| (place as f32 * 0.7).sin());
                values = fresh.collect();
            }
            (name.clone(), shape, values)
        });
        let arrays: Vec<Array> = arrays.collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        write(&file, &arrays);
        let beside = data(name).join("config.json");
        if beside.exists() {
            std::fs::copy(beside, folder.path().join("config.json")).unwrap();
        }
        let message = import(&file, settings, &Device::flex()).unwrap_err().to_string();
        assert!(message.contains("omma convert --set resolution="), "{name}: {message}");
        let size = format!("resolution=[{}, {}]", 3 * image.patch, 6 * image.patch);
        let settings: Vec<&str> = settings.iter().copied().chain([size.as_str()]).collect();
        let imported = import(&file, &settings, &Device::flex()).unwrap();
        assert_eq!(imported.family, *family, "{name}");
        assert_eq!(imported.model.config().image.position_grid(), (3, 6), "{name}");
        let mut source = open_tensors(&file).unwrap();
        let difference =
            largest_difference(source.as_mut(), &imported, Seed::new(1), &Device::flex()).unwrap();
        assert!(difference.is_some_and(|difference| difference < 1e-4), "{name}: {difference:?}");
    }
}

#[test]
fn nothing_is_left_over_silently() {
    let imported = import(&data("dinov2.safetensors"), &["heads=3"], &Device::flex()).unwrap();
    let mask = imported.mapping.iter().find(|mapped| mapped.tensors == ["mask_token"]).unwrap();
    assert_eq!((&mask.parameter, mask.how.as_str()), (&None, "only masked pre-training uses it"));

    // A block that the configuration does not have is not forgotten.
    let error = import(&data("timm.pth"), &["heads=3", "depth=1"], &Device::flex()).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("blocks.1.attn.qkv.weight") && message.contains("no place"),
        "{message}"
    );
}

#[test]
fn what_cannot_be_read_says_why() {
    let message = |path: &Path| {
        let none: [&str; 0] = [];
        import(path, &none, &Device::flex()).unwrap_err().to_string()
    };
    assert!(message(&data("swiglu.safetensors")).contains("SwiGLU"));
    assert!(message(&data("answers.safetensors")).contains("no family that is known here"));
    assert!(message(&data("nowhere.pth")).contains("nowhere.pth"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.pth");
    std::fs::write(&file, b"PK\x03\x04 not really").unwrap();
    assert!(message(&file).contains("not a checkpoint"), "{}", message(&file));
    std::fs::write(&file, b"text").unwrap();
    assert!(message(&file).contains("first bytes"), "{}", message(&file));
    assert!(message(folder.path()).contains("none of model.safetensors"));
}

/// vmoe's checkpoints, with Flax's paths joined by `/`: the golden models' parameters as a file.
#[test]
fn vmoe_checkpoints_follow_their_definition() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    for (case, settings, members) in [
        ("vit_moe_token", &["moe.k=2"][..], 1),
        ("vit_moe_map", &["moe.k=1"], 1),
        ("vit_moe_sincos2d_gap", &["resolution=16"], 1),
        ("e3_model", &[], 2),
    ] {
        let mut source = open_tensors(&golden.join(format!("{case}.safetensors"))).unwrap();
        let names: Vec<String> =
            source.tensors().keys().filter(|name| name.starts_with("param/")).cloned().collect();
        let arrays: Vec<Array> = names
            .iter()
            .map(|name| {
                let path = name["param/".len()..].replace('.', "/");
                (path, source.tensors()[name].shape.clone(), source.read(name).unwrap())
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vmoe.safetensors");
        write(&file, &arrays);

        let imported = import(&file, settings, &Device::flex()).unwrap();
        assert_eq!(imported.family, Family::Vmoe);
        assert_eq!(imported.model.config().members(), members, "{case}");
        let mut source = open_tensors(&file).unwrap();
        let difference =
            largest_difference(source.as_mut(), &imported, Seed::new(1), &Device::flex()).unwrap();
        assert!(difference.is_some_and(|difference| difference < 1e-4), "{case}: {difference:?}");
    }
}
