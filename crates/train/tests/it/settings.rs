//! Every setting with every odd value: taken and meant, or refused with its name.

use omma_data::augment::Policy;
use omma_train::Recipe;

/// All parts of a recipe and of its model, so that every key is there.
const FULL: &str = r#"
    name = "full"
    [optimiser]
    epsilon = 1e-8
    [model]
    preset = "vmoe-tiny"
    position_resolution = 32
    layer_scale = 0.1
    representation = 8
    mimo.members = 2
    moe.hidden = 8
    moe.inference_capacity_ratio = 8.0
"#;

const ODD: [&str; 24] = [
    "",
    "0",
    "-1",
    "1",
    "2",
    "0.5",
    "-0.0",
    "1e-320",
    "1e300",
    "-1e300",
    "1e999",
    "nan",
    "inf",
    "1000000000",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "1.0666666666666667",
    "true",
    "null",
    "[]",
    "{}",
    "../../x",
];

fn full(settings: &[&str]) -> omma_train::Result<Recipe> {
    Recipe::parse(FULL, "full.toml".as_ref(), settings)
}

#[test]
fn every_key_takes_or_refuses_every_odd_value() {
    let recipe = full(&[]).unwrap();
    let (mut taken, mut refused) = (0, 0);
    for key in recipe.settings().keys() {
        for value in ODD {
            match full(&[&format!("{key}={value}")]) {
                Ok(recipe) => {
                    taken += 1;
                    let again = Recipe::parse::<&str>(&recipe.to_toml(), "again".as_ref(), &[]);
                    assert_eq!(again.unwrap(), recipe, "{key}={value}");
                    // What is counted is counted right: nothing overflows to nothing.
                    let cost = recipe.model.cost(recipe.model.image.resolution).unwrap();
                    assert!(cost.forward_macs > 0 && cost.training_flops > 0, "{key}={value}");
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty(), "{key}={value}");
                }
            }
        }
    }
    assert!(taken > 200 && refused > 1000, "{taken} taken, {refused} refused");
}

#[test]
fn a_number_outside_its_range_names_its_key_and_both_ends() {
    for (setting, message) in [
        ("schedule.final_share=-1", "schedule.final_share cannot be -1: it is from 0 to 1"),
        ("augment.erasing=7", "augment.erasing cannot be 7: it is from 0 to 1"),
        ("model.moe.hidden=0", "model.moe.hidden cannot be 0: it is from 1 to 1048576"),
        ("model.representation=0", "model.representation cannot be 0: it is from 1 to 1048576"),
        ("model.depth=1000000000", "model.depth cannot be 1000000000: it is from 1 to 1024"),
        ("model.moe.experts=100000", "model.moe.experts cannot be 100000: it is from 1 to 65536"),
        ("data.workers=100000", "data.workers cannot be 100000: it is from 0 to 256"),
        ("train.ema=1", "train.ema cannot be 1: it is at least 0 and below 1"),
        (
            "augment.magnitude=15",
            "augment.magnitude cannot be 15: with augment.policy \"increasing\" it is at most 10",
        ),
        (
            "optimiser.learning_rate=0",
            "optimiser.learning_rate cannot be 0: it is above 0 and at most",
        ),
    ] {
        let found = full(&[setting]).unwrap_err().to_string();
        assert!(found.starts_with(message), "{found}");
    }
    let recipe = full(&["augment.magnitude=15", "augment.policy=big-vision"]).unwrap();
    assert_eq!((recipe.augment.magnitude, recipe.augment.policy), (15.0, Policy::BigVision));
    for name in ["../../x", "a/b", ".hidden", "x\u{1b}[2J", "a\\b"] {
        let found = full(&[&format!("name={name}")]).unwrap_err().to_string();
        assert!(found.starts_with("name cannot be"), "{found}");
    }
    let text = FULL.replace("layer_scale = 0.1", "layer_scale = nan");
    let found = Recipe::parse::<&str>(&text, "x.toml".as_ref(), &[]).unwrap_err().to_string();
    assert!(found.contains("model.layer_scale"), "{found}");
}

#[test]
fn what_cannot_fit_into_memory_is_refused_before_it_is_tried() {
    let settings = ["model.moe.experts=512", "model.moe.hidden=1000000", "model.width=1024"];
    let found = full(&settings).unwrap().check_memory().unwrap_err().to_string();
    assert!(found.contains("GiB"), "{found}");
    let settings = ["train.batch=999983", "model.resolution=4096"];
    let found = full(&settings).unwrap().check_memory().unwrap_err().to_string();
    assert!(found.contains("train.batch"), "{found}");
    full(&[]).unwrap().check_memory().unwrap();
    // Of a batch in parts, a few parts are there at a time.
    let settings = ["train.batch=1000000", "train.accumulation=100000"];
    full(&settings).unwrap().check_memory().unwrap();
}

#[test]
fn numbers_of_seventeen_digits_survive() {
    for tenths in 0..500 {
        let number = 1.0 + f64::from(tenths) / 30.0;
        let recipe = full(&[&format!("model.moe.capacity_ratio={number}")]).unwrap();
        assert_eq!(recipe.model.moe().unwrap().capacity_factor(), Some(number));
        let text = serde_json::to_string(&recipe.model).unwrap();
        let again: omma_model::ModelConfig = serde_json::from_str(&text).unwrap();
        assert_eq!(again, recipe.model);
    }
}
