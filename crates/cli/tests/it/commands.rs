//! The commands as a user types them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::program;

fn omma(arguments: &[&str]) -> std::process::Output {
    program().args(arguments).output().unwrap()
}

/// Standard output of a command that must succeed.
fn run(arguments: &[&str]) -> String {
    let output = omma(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The message of a command that must fail: one line, exit code 1, no backtrace. Quiet, for progress where
/// it takes long.
fn fail(arguments: &[&str]) -> String {
    let output = omma(&[arguments, &["--quiet"]].concat());
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    assert!(message.starts_with("omma: ") && message.trim_end().lines().count() == 1, "{message}");
    message
}

fn data(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data");
    folder.join(name).to_string_lossy().into_owned()
}

fn at(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_string_lossy().into_owned()
}

#[test]
fn cost_counts_presets_and_checkpoints() {
    let text = run(&["cost", "e3-b32", "--set", "moe.k=2", "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    let near = |key: &str, expected: f64| {
        let found = json[key].as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 0.015, "{key} is {found}");
    };
    near("training_flops", 131.06e9); // paper 000 Table 20
    near("params_total", 381e6);
    assert!(json["params_active"].as_u64() < json["params_total"].as_u64());
    assert!(json["forward_macs"].as_u64().unwrap() > 0);
    let layers = json["layers"].as_array().unwrap();
    let sum: u64 = layers.iter().map(|layer| layer["params"].as_u64().unwrap()).sum();
    assert_eq!(json["params_total"].as_u64(), Some(sum));

    let small = run(&["cost", "vit-b16", "--resolution", "224", "--classes", "10"]);
    assert!(small.contains("224 px, 197 tokens"), "{small}");
}

#[test]
fn wrong_words_get_the_nearest_right_ones() {
    assert!(fail(&["cost", "vmoe-b23"]).contains("did you mean \"vmoe-b32\"?"));
    assert!(fail(&["cost", "vmoe-b32", "--set", "moe.expets=8"]).contains("\"moe.experts\""));
    assert!(fail(&["cost", "vmoe-b32", "--set", "moe.placement=first-2"]).contains("last-2"));
    assert!(fail(&["cost", "vit-b16", "--resolution", "8"]).contains("8 pixels"));
    assert!(
        fail(&["inspect", "no/such/folder"]).contains("does not exist; name the folder of a run")
    );
    let beside = data("tim.pth");
    assert!(fail(&["inspect", &beside]).contains("did you mean \"timm.pth\"?"));
}

#[test]
fn a_timm_model_becomes_a_mixture_and_an_ensemble() {
    let folder = tempfile::tempdir().unwrap();
    let [dense, sparse, e3, be, mimo] =
        ["dense", "sparse", "e3", "be", "mimo"].map(|name| at(&folder, name));
    let source = data("timm.pth");
    let text = run(&["convert", &source, &dense, "--set", "heads=3", "--check"]);
    assert!(text.contains("timm ViT") && text.contains("blocks.1.attn.qkv.weight"), "{text}");
    assert!(text.contains("largest difference to the definition"), "{text}");

    let message = fail(&["convert", &source, &dense, "--set", "heads=3"]);
    assert!(message.contains("--force"), "{message}");
    run(&["convert", &source, &dense, "--set", "heads=3", "--force", "--quiet"]);

    let settings = ["--set", "moe.experts=4", "--set", "moe.k=1", "--set", "moe.placement=1"];
    let text = run(&[&["upcycle", &dense, &sparse], &settings[..]].concat());
    let difference = text.split("step 0: ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(difference.parse::<f32>().unwrap() < 1e-5, "{text}");

    run(&["adapt", &sparse, &e3, "--to", "e3"]);
    run(&["adapt", &dense, &be, "--to", "be", "--set", "batch_ensemble.placement=last-1"]);
    run(&["adapt", &sparse, &mimo, "--to", "mimo", "--set", "mimo.members=3"]);
    assert!(fail(&["adapt", &dense, &at(&folder, "x"), "--to", "e3"]).contains("omma upcycle"));
    // Every setting of the experts counts, and the order of the experts is the user's choice.
    let variants: [(&str, &[&str], Value); 4] = [
        (
            "overlap",
            &["moe.overlap=2"],
            serde_json::json!({"kind": "members", "members": 2, "overlap": 2}),
        ),
        ("parts", &["moe.partition=2"], serde_json::json!({"kind": "partition", "subsets": 2})),
        ("tiling", &["moe.own_experts=false"], serde_json::json!({"kind": "all"})),
        (
            "four",
            &["moe.members=4"],
            serde_json::json!({"kind": "members", "members": 4, "overlap": 0}),
        ),
    ];
    for (name, settings, pool) in variants {
        let output = at(&folder, name);
        let mut arguments = vec!["adapt", &sparse, &output, "--to", "e3", "--permute"];
        settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
        run(&arguments);
        let json: Value = serde_json::from_str(&run(&["inspect", &output, "--json"])).unwrap();
        assert_eq!(json["config"]["encoder"]["moe"]["router"]["pool"], pool, "{name}");
    }
    let refused = ["adapt", &dense, &at(&folder, "x"), "--to", "be", "--permute"];
    assert!(fail(&refused).contains("--permute is about experts"));
    assert!(
        fail(&["adapt", &e3, &at(&folder, "x"), "--to", "e3", "--permute"]).contains("cut already")
    );
    assert!(fail(&["upcycle", &dense, &at(&folder, "x")]).contains("moe.experts=8"));

    let json: Value = serde_json::from_str(&run(&["inspect", &e3, "--json"])).unwrap();
    assert_eq!(json["config"]["encoder"]["moe"]["router"]["pool"]["members"], 2);
    assert!(run(&["inspect", &e3]).contains("an ensemble: 2 predictions per image"));
    let text = run(&["inspect", &sparse, "--tensors"]);
    assert!(text.contains("experts: 4 in blocks 1 (1)"), "{text}");
    assert!(text.contains("blocks.1.feed_forward.experts.up"), "{text}");
    assert!(run(&["cost", &mimo]).contains("3 members"));
    assert!(run(&["inspect", &data("google.npz")]).contains("Google ViT checkpoint"));
}

#[test]
fn damaged_checkpoints_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let good = at(&folder, "good");
    run(&["convert", &data("hf_vit"), &good, "--quiet"]);
    let file = PathBuf::from(&good).join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let out = at(&folder, "out");
    std::fs::write(&file, &bytes[..bytes.len() - 10]).unwrap();
    assert!(fail(&["adapt", &good, &out, "--to", "mimo"]).contains("cut off"));
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    std::fs::write(&file, flipped).unwrap();
    assert!(fail(&["adapt", &good, &out, "--to", "mimo"]).contains("does not have its checksum"));
    assert!(!Path::new(&out).exists(), "nothing is written half");
}

#[test]
fn every_command_explains_itself_with_an_example() {
    let help = run(&["--help"]);
    let commands = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    // Names are indented by two spaces, and what goes on in another line by more.
    let name = |line: &str| -> Option<String> {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then(|| name.to_owned())
    };
    let commands: Vec<String> = commands.lines().filter_map(name).collect();
    assert!(commands.len() > 25, "{commands:?}");
    for command in &commands {
        let text = run(&[command, "--help"]);
        let (_, examples) = text.split_once("Example").unwrap_or_else(|| panic!("{text}"));
        assert!(examples.contains(&format!("  omma {command}")), "{text}");
    }
}

#[test]
fn plan_says_what_a_step_of_many_ranks_takes() {
    let speed = ["--flops", "50T", "--bandwidth", "25GB/s", "--memory-bandwidth", "1TB/s"];
    let all = [&["plan", "vmoe", "--set", "train.batch=1024", "--ranks", "8,64,1024"], &speed[..]];
    let text = run(&all.concat());
    assert!(text.contains("images/s") && text.contains("beyond"), "{text}");
    let json = run(&[&all.concat()[..], &["--json"]].concat());
    let plan: Value = serde_json::from_str(&json).unwrap();
    let layouts = plan["layouts"].as_array().unwrap();
    assert_eq!(layouts.len(), 3);
    let efficiency = |n: usize| layouts[n]["efficiency"].as_f64().unwrap();
    assert!(efficiency(0) > efficiency(1) && efficiency(1) > efficiency(2));
    let odd = [&["plan", "vmoe", "--ranks", "7"], &speed[..]].concat();
    assert!(fail(&odd).contains("cannot be spread evenly over 7 ranks"));
}

#[test]
fn plan_says_what_would_make_too_much_fit() {
    let asked = ["plan", "imagenet-scratch", "--set", "train.batch=64", "--ranks", "8"];
    let speed = ["--flops", "1T", "--bandwidth", "1GB/s"];
    let plan = |memory: f64, more: &[&str]| {
        let memory = memory.to_string();
        run(&[&asked, &speed[..], &["--memory", &memory], more].concat())
    };
    let layouts = |memory| serde_json::from_str::<Value>(&plan(memory, &["--json"])).unwrap();
    let roomy = layouts(1e15);
    assert!(roomy["lighter"].is_null());
    let held = roomy["layouts"][0]["memory"].as_f64().unwrap();
    let room = held - 1.0;
    let lighter = &layouts(room)["lighter"];
    assert_eq!(lighter["settings"], serde_json::json!(["train.spread_optimiser=true"]));
    assert!(lighter["layout"]["memory"].as_f64().unwrap() <= room);
    let text = plan(room, &[]);
    assert!(
        text.contains("too much")
            && text.contains("with train.spread_optimiser=true, 8 ranks hold"),
        "{text}"
    );
    assert!(plan(1e6, &[]).contains("no layout of 8 ranks fits"));
}

#[cfg(not(feature = "mpi"))]
#[test]
fn several_processes_without_mpi_do_not_all_train_the_same() {
    let output = program().arg("train").env("OMPI_COMM_WORLD_SIZE", "4").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("one of 4") && message.contains("--features mpi"), "{message}");
    assert_eq!(output.status.code(), Some(1));
}
