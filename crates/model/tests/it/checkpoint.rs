//! Checkpoints: what is written is read, what is damaged says so, and nothing a user had is lost.

use std::{fs, path::Path};

use burn::tensor::Device;
use omma_base::Seed;
use omma_model::{
    Mode, ModelError, VisionTransformer, apply_settings,
    checkpoint::{CONFIG, WEIGHTS, load, save, summary},
    open_tensors, parameter_values, preset,
};

fn model(settings: &[&str]) -> VisionTransformer {
    let small = ["width=32", "mlp=48", "depth=4", "heads=2", "resolution=16", "moe.experts=4"];
    let settings: Vec<&str> = small.iter().chain(settings).copied().collect();
    let config = apply_settings(&preset("vmoe-tiny").unwrap(), &settings).unwrap();
    config.init(Seed::new(7), &Device::flex()).unwrap()
}

fn read(folder: &Path) -> Result<VisionTransformer, ModelError> {
    load(folder, &Device::flex())
}

#[test]
fn saving_loading_and_saving_again_gives_the_same_bytes() {
    let systems: &[&[&str]] = &[
        &[],
        &["moe.members=2", "moe.k=1"],
        &["moe.router=soft", "moe.slots=3", "pooling=map", "class_token=false"],
        &["moe.shared_expert=true", "moe.scope=image", "layer_scale=0.1", "registers=2"],
        &["moe=null", "batch_ensemble.members=3", "qk_norm=true", "representation=8"],
        &["mimo.members=2"],
    ];
    for settings in systems {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        let original = model(settings);
        save(&original, &first).unwrap();
        let loaded = read(&first).unwrap();
        assert_eq!(loaded.config(), original.config());
        for (a, b) in parameter_values(&original).iter().zip(parameter_values(&loaded)) {
            assert_eq!(a.parameter, b.parameter);
            assert_eq!(a.read(), b.read());
        }
        save(&loaded, &second).unwrap();
        for name in [WEIGHTS, CONFIG] {
            let [a, b] = [&first, &second].map(|folder| fs::read(folder.join(name)).unwrap());
            assert!(a == b, "{name} with {settings:?}");
        }
    }
}

#[test]
fn checkpoint_has_format_two_and_a_newer_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    save(&model(&[]), folder.path()).unwrap();
    let file = folder.path().join(WEIGHTS);
    let mut bytes = fs::read(&file).unwrap();
    // The note is JSON within the JSON of the header.
    let mark = br#"{\"format\":2,"#;
    let place = bytes.windows(mark.len()).position(|part| part == mark).unwrap();
    bytes[place + mark.len() - 2] = b'3';
    fs::write(&file, bytes).unwrap();
    let error = read(folder.path()).err().unwrap();
    assert!(matches!(error, ModelError::NotACheckpoint { .. }), "{error}");
    assert!(error.to_string().contains("format 3"), "{error}");
}

#[test]
fn a_truncated_file_says_how_much_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    save(&model(&[]), folder.path()).unwrap();
    let file = folder.path().join(WEIGHTS);
    let bytes = fs::read(&file).unwrap();
    for keep in [0, 5, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&file, &bytes[..keep]).unwrap();
        let error = read(folder.path()).unwrap_err();
        assert!(matches!(error, ModelError::Truncated { .. }), "{keep} bytes: {error}");
        assert!(error.to_string().contains("cut off"), "{error}");
    }
    fs::write(&file, [bytes.as_slice(), b"more"].concat()).unwrap();
    assert!(matches!(read(folder.path()).unwrap_err(), ModelError::NotACheckpoint { .. }));
}

#[test]
fn a_flipped_byte_names_its_tensor() {
    let folder = tempfile::tempdir().unwrap();
    save(&model(&[]), folder.path()).unwrap();
    let file = folder.path().join(WEIGHTS);
    let bytes = fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for place in [header, header + 1000, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        fs::write(&file, &damaged).unwrap();
        let error = read(folder.path()).unwrap_err();
        assert!(
            matches!(&error, ModelError::Checksum { tensor, .. } if !tensor.is_empty()),
            "{error}"
        );
    }
    // Anywhere in the header, whatever it hits, there is an error and no panic.
    for place in (8..header).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 4;
        fs::write(&file, &damaged).unwrap();
        assert!(read(folder.path()).is_err(), "byte {place}");
    }
}

/// Writes a file like ours in which one tensor is another.
fn rewrite(file: &Path, change: impl Fn(&str, &mut Vec<usize>) -> bool) {
    let bytes = fs::read(file).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let data = &bytes[8 + header..];
    let mut views = Vec::new();
    for (name, info) in metadata.tensors() {
        let mut shape = info.shape.clone();
        if change(&name, &mut shape) {
            let values = &data[info.data_offsets.0..info.data_offsets.1];
            let size = 4 * shape.iter().product::<usize>();
            let values: Vec<u8> = values.iter().copied().cycle().take(size).collect();
            views.push((name.clone(), shape, values));
        }
    }
    let views = views.iter().map(|(name, shape, values)| {
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), values);
        (name.clone(), view.unwrap())
    });
    let note = metadata.metadata().clone();
    safetensors::tensor::serialize_to_file(views, note, file).unwrap();
}

#[test]
fn a_wrong_shape_and_a_missing_tensor_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(WEIGHTS);
    save(&model(&[]), folder.path()).unwrap();
    rewrite(&file, |name, shape| {
        if name == "head.weight" {
            shape[1] += 1;
        }
        true
    });
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("tensor \"head.weight\" should be [32, 10] and is [32, 11]"),
        "{error}"
    );

    save(&model(&[]), folder.path()).unwrap();
    rewrite(&file, |name, _| name != "norm.beta");
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("lacks tensor \"norm.beta\""), "{error}");
}

#[test]
fn files_of_others_are_no_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(WEIGHTS);
    for bytes in [&b"this is text, and more of it"[..], &[0; 64], &[255; 64]] {
        fs::write(&file, bytes).unwrap();
        assert!(read(folder.path()).is_err());
        assert!(summary(folder.path()).is_err());
    }
    assert!(matches!(read(&folder.path().join("nowhere")).unwrap_err(), ModelError::Io { .. }));
}

#[test]
fn what_a_checkpoint_is_can_be_told_without_its_values() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(&["moe.k=1"]);
    save(&model, folder.path()).unwrap();
    let summary = summary(folder.path()).unwrap();
    assert_eq!(summary.config, *model.config());
    assert_eq!(summary.tensors["blocks.1.feed_forward.experts.up"].shape, [4, 32, 48]);
}

/// These names are the contract with every file that was ever written.
#[test]
fn names_of_parameters_do_not_change() {
    let settings =
        ["moe.shared_expert=true", "depth=2", "moe.placement=1", "layer_scale=0.1", "registers=1"];
    let names: Vec<String> =
        omma_model::parameters(&model(&settings)).into_iter().map(|p| p.name).collect();
    let expected = "embed.weight embed.bias embed.class_token embed.registers embed.position \
        blocks.0.norm1.gamma blocks.0.norm1.beta blocks.0.attention.qkv blocks.0.attention.qkv_bias \
        blocks.0.attention.out blocks.0.attention.out_bias blocks.0.scale1 blocks.0.norm2.gamma \
        blocks.0.norm2.beta blocks.0.feed_forward.up blocks.0.feed_forward.up_bias \
        blocks.0.feed_forward.down blocks.0.feed_forward.down_bias blocks.0.scale2 \
        blocks.1.norm1.gamma blocks.1.norm1.beta blocks.1.attention.qkv blocks.1.attention.qkv_bias \
        blocks.1.attention.out blocks.1.attention.out_bias blocks.1.scale1 blocks.1.norm2.gamma \
        blocks.1.norm2.beta blocks.1.feed_forward.router.weight blocks.1.feed_forward.experts.up \
        blocks.1.feed_forward.experts.up_bias blocks.1.feed_forward.experts.down \
        blocks.1.feed_forward.experts.down_bias blocks.1.feed_forward.shared.up \
        blocks.1.feed_forward.shared.up_bias blocks.1.feed_forward.shared.down \
        blocks.1.feed_forward.shared.down_bias blocks.1.scale2 norm.gamma norm.beta head.weight \
        head.bias";
    assert_eq!(names.join(" "), expected.split_whitespace().collect::<Vec<_>>().join(" "));
}

#[test]
fn tensor_without_parameter_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(WEIGHTS);
    save(&model(&[]), folder.path()).unwrap();
    let bytes = fs::read(&file).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut views = tensors.tensors();
    views.push(("blocks.9.other".to_owned(), tensors.tensor("norm.gamma").unwrap()));
    safetensors::tensor::serialize_to_file(views, metadata.metadata().clone(), &file).unwrap();
    let error = read(folder.path()).unwrap_err();
    let expected = matches!(
        &error,
        ModelError::UnusedTensors { tensors, .. } if *tensors == ["blocks.9.other"]
    );
    assert!(expected && error.is_damage(), "{error}");
}

#[test]
fn tensor_of_integers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.safetensors");
    let numbers = [1_u8; 16];
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::I64, vec![2], &numbers).unwrap();
    safetensors::tensor::serialize_to_file([("steps", view)], None, &file).unwrap();
    let error = open_tensors(&file).unwrap().read("steps").unwrap_err();
    let expected = matches!(
        &error,
        ModelError::TensorType { tensor, dtype, .. } if tensor == "steps" && dtype == "I64"
    );
    assert!(expected && error.is_damage(), "{error}");
}

#[test]
fn model_beyond_memory_is_refused() {
    let settings = ["width=65536", "mlp=262144", "heads=64", "depth=200"];
    let config = apply_settings(&preset("vit-tiny").unwrap(), &settings).unwrap();
    let error = config.check_memory().unwrap_err();
    let ModelError::Memory { parameters, needed, available } = error else { panic!("{error}") };
    // Every block has 12 matrices of the width squared.
    assert!(parameters > 200 * 12 * (1 << 32) && needed > available);
    assert!((needed - parameters as f64 * 4.0 / f64::from(1 << 30)).abs() < 1.0, "{needed}");
}

#[test]
fn tokens_beyond_the_vocabulary_are_refused() {
    let small = ["resolution=16", "patch=8", "width=16", "depth=2", "heads=2", "mlp=32"];
    let text = ["moe.experts=4", "embedding=12", "text.vocabulary=40", "text.length=4"];
    let config = apply_settings(&preset("limoe-tiny").unwrap(), &[&small[..], &text].concat());
    let device = Device::flex();
    let model = config.unwrap().init(Seed::new(0), &device).unwrap();
    let embed = |last| {
        let ids = omma_model::text_tensor(vec![1, 2, 3, last], 4, &device);
        model.embed_texts(ids, &Mode::Inference).map(|found| found.embeddings.dims())
    };
    assert_eq!(embed(39).unwrap(), [1, 12]);
    for unknown in [40, -1] {
        let error = embed(unknown).unwrap_err();
        let expected = matches!(
            error,
            ModelError::UnknownToken { token, vocabulary: 40 } if token == unknown
        );
        assert!(expected, "{error}");
    }
}
