//! Parity of the optimisers with optax, five steps on given gradients.

use omma_golden::{Case, Kind, check_cases};
use omma_train::optimiser::{Group, Optimiser, OptimiserConfig, OptimiserKind, clip_global_norm};

const NAMES: [&str; 4] = ["w1", "w2", "e", "b"];

#[test]
fn optimisers_agree_with_their_references() {
    check_cases(|kind| kind == Kind::Optimiser, |_, case| check(case));
}

fn check(case: &Case) {
    let number = |key: &str| case.config(key).as_f64();
    let optional = |key: &str| case.json()["config"].get(key).and_then(serde_json::Value::as_f64);
    let kind = match case.name() {
        "optimizer_adamw" => OptimiserKind::AdamW,
        "optimizer_sgd_momentum_clip" => OptimiserKind::Sgd,
        "optimizer_adafactor" => OptimiserKind::Adafactor,
        "optimizer_big_vision_adafactor" => OptimiserKind::BigVisionAdafactor,
        "optimizer_lamb" => OptimiserKind::Lamb,
        other => panic!("nothing answers for {other}"),
    };
    let config = OptimiserConfig {
        kind,
        learning_rate: number("learning_rate").unwrap(),
        weight_decay: optional("weight_decay").unwrap_or(0.0),
        clip_norm: optional("clip_global_norm").unwrap_or(0.0),
        beta1: optional("b1").or(optional("momentum")).unwrap_or(0.9),
        beta2: optional("b2").unwrap_or(0.999),
        epsilon: optional("eps"),
        factor_from: optional("min_dim_size_to_factor").unwrap_or(4.0) as usize,
        ..OptimiserConfig::default()
    };
    let all = Group { decays: true, rate: 1.0 };
    let parameters = NAMES.map(|name| (name, case.shape(&format!("param/{name}")), all));
    let mut optimiser = Optimiser::with_groups(config, parameters);
    let mut values = NAMES.map(|name| case.floats(&format!("param/{name}")).to_vec());
    for step in 1..=case.size("steps") {
        let given = |name| case.floats(&format!("input/grad{step}.{name}")).to_vec();
        let mut gradients = NAMES.map(given);
        let norm = clip_global_norm(&mut gradients, config.clip_norm);
        if kind == OptimiserKind::Sgd {
            let expected = case.config("gradient_global_norms")[step - 1].as_f64().unwrap();
            assert!((norm - expected).abs() < 1e-4 * expected);
        }
        optimiser.step(config.learning_rate, &mut values, &gradients);
        for (name, values) in NAMES.iter().zip(&values) {
            case.expect_values(&format!("output/step{step}.{name}"), values);
        }
    }
}
