//! Checkpoints, ours and those of other projects, and configurations.

use std::{fs, path::Path};

use burn::tensor::Device;
use omma_fuzz::{Container, Target};
use omma_model::{
    ModelConfig, apply_settings, checkpoint,
    import::{self, Family},
    open_tensors, preset,
};

use crate::file;

/// Everything that `omma inspect` and `omma convert` do with a file; returns whether it is imported.
fn foreign(path: &Path) -> bool {
    let device = Device::flex();
    if let Ok(source) = open_tensors(path)
        && let Ok(family) = Family::of(source.as_ref())
        && let Ok(config) = family.config(source.as_ref(), None)
    {
        let _ = config.cost(config.image.resolution);
    }
    import::import::<&str>(path, &[], &device).is_ok()
}

#[test]
fn checkpoint() {
    let note = Container::Note { key: "omma", content: "config", checksum: "config_checksum" };
    let target = Target {
        name: "model.safetensors",
        seeds: vec![
            file("cli/tests/data/run-1/finished.safetensors"),
            file("cli/tests/data/run-1/odd-number/model.safetensors"),
        ],
        containers: &[note, note, note, Container::SafetensorsHeader],
        cases: 400,
    };
    target.run(|path| {
        let summary = checkpoint::summary(path);
        if let Ok(summary) = &summary {
            let _ = summary.config.cost(summary.config.image.resolution);
        }
        let model = checkpoint::load(path, &Device::flex());
        summary.is_ok() && model.is_ok()
    });
}

#[test]
fn configuration() {
    let seeds = ["vmoe-tiny", "e3-tiny", "softmoe-tiny", "vimoe-s14", "vit-tiny"];
    let seeds = seeds.map(|name| serde_json::to_vec(&preset(name).unwrap()).unwrap());
    let target = Target {
        name: "config.json",
        seeds: seeds
            .into_iter()
            .chain([file("cli/tests/data/run-1/odd-number/config.json")])
            .collect(),
        containers: &[],
        cases: 600,
    };
    target.run(|path| {
        let Ok(config) = serde_json::from_slice::<ModelConfig>(&fs::read(path).unwrap()) else {
            return false;
        };
        let right = config.check().is_ok();
        if right {
            config
                .cost(config.image.resolution)
                .expect("a configuration that is right can be counted");
            let text = serde_json::to_string(&config).unwrap();
            let again: ModelConfig = serde_json::from_str(&text).unwrap();
            assert_eq!(again, config, "what is written reads the same");
        }
        right
    });
}

#[test]
fn settings() {
    let settings = [
        "moe.experts=8",
        "moe.placement=1,3",
        "layer_scale=0.1",
        "moe=null",
        "mimo.members=2",
        "moe.router=soft",
        "moe.router.pool={\"kind\": \"members\", \"members\": 2}",
        "moe.losses=[{\"loss\": \"z\", \"weight\": 0.1}]",
        "resolution=[24, 32]",
    ];
    let target = Target {
        name: "settings",
        seeds: settings.map(|text| text.as_bytes().to_vec()).into(),
        containers: &[],
        cases: 600,
    };
    let base = preset("vmoe-tiny").unwrap();
    target.run(|path| {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let Ok(config) = apply_settings(&base, &[text]) else { return false };
        config.cost(config.image.resolution).expect("a configuration that is right can be counted");
        true
    });
}

#[test]
fn safetensors() {
    let names = ["dinov2.safetensors", "timm_registers.safetensors", "hf_vit/model.safetensors"];
    let all = names.into_iter().chain(["hf_dinov2/model.safetensors"]);
    let target = |names: &[&str], cases| Target {
        name: "x.safetensors",
        seeds: names.iter().map(|name| file(&format!("model/tests/data/{name}"))).collect(),
        containers: &[Container::SafetensorsHeader, Container::SafetensorsHeader],
        cases,
    };
    target(&all.collect::<Vec<_>>(), 250).run(foreign);
    // Its activation is refused.
    target(&["swiglu.safetensors"], 50).run(|path| {
        let _ = foreign(path);
    });
}

#[test]
fn npz() {
    let target = Target {
        name: "x.npz",
        seeds: ["google.npz", "big_vision.npz"]
            .map(|n| file(&format!("model/tests/data/{n}")))
            .into(),
        containers: &[
            Container::Zip(".npy"),
            Container::Zip("kernel.npy"),
            Container::Zip("bias.npy"),
        ],
        cases: 300,
    };
    target.run(foreign);
}

#[test]
fn pth() {
    let target = Target {
        name: "x.pth",
        seeds: ["timm.pth", "timm_half.pth"].map(|n| file(&format!("model/tests/data/{n}"))).into(),
        containers: &[
            Container::Zip("data.pkl"),
            Container::Zip("data.pkl"),
            Container::Zip("version"),
        ],
        cases: 300,
    };
    target.run(foreign);
}
