//! `key=value` on top of a configuration, with the nearest key for a wrong one.

use std::collections::BTreeSet;

use omma_base::{nearest, range::check_setting};
use omma_routing::{Allocation, Capacity, ROUTERS};
use serde_json::{Map, Value};

use super::{
    BatchEnsembleConfig, ContrastConfig, EncoderConfig, HeadConfig, ImageConfig, MimoConfig,
    ModelConfig, MoeConfig, TextConfig,
    names::{SHORT, full_name, in_short},
    ranges::RANGES,
    shorthand::{self, SHORTHANDS},
};
use crate::error::{ModelError, Result};

/// Applies settings such as `moe.experts=8` or `classes=10` in order; the last one wins, but a router's
/// name goes before everything else. A setting below `moe`, `batch_ensemble` or `mimo` makes a model that
/// has none of it have one with defaults; `moe=null`, or `none`, takes it away.
pub fn apply_settings<S: AsRef<str>>(config: &ModelConfig, settings: &[S]) -> Result<ModelConfig> {
    let parsed = settings.iter().map(|setting| parse(setting.as_ref()));
    let mut parsed = parsed.collect::<Result<Vec<_>>>()?;
    parsed.sort_by_key(|(key, value, _)| precedence(key, value));
    let mut config = config.clone();
    for (key, value, text) in parsed {
        config = apply_value(&config, key, value, text)?;
    }
    config.check()?;
    Ok(config)
}

/// A setting's key, its value, and how its user wrote that: as JSON, or else as text.
pub(crate) fn parse(setting: &str) -> Result<(&str, Value, &str)> {
    let (key, text) = setting
        .split_once('=')
        .ok_or_else(|| ModelError::SettingSyntax { text: setting.to_owned() })?;
    let (key, text) = (key.trim(), text.trim());
    let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    Ok((key, value, text))
}

/// Which of the settings that are given together go first: the name of a router (0), which replaces all
/// of it, then its members (1), then what they share (2).
pub fn precedence(key: &str, value: &Value) -> u8 {
    match full_name(key).as_str() {
        "encoder.moe.router" if value.is_string() => 0,
        "encoder.moe.members" => 1,
        _ => 2,
    }
}

/// Gives one setting a value that was read elsewhere; `text` is how its user wrote it. The result is
/// not checked as a whole yet.
pub fn apply_value(
    config: &ModelConfig,
    key: &str,
    value: Value,
    text: &str,
) -> Result<ModelConfig> {
    let fault = |why: String| ModelError::BadSetting {
        key: key.to_owned(),
        value: text.to_owned(),
        why: why.split(" at line").next().unwrap_or_default().to_owned(),
    };
    if let Some(inside) = key.strip_prefix("text.tower.") {
        return apply_to_tower(config, inside, value, text);
    }
    let mut full = full_name(key);
    // Where there is no null, as in TOML; to positions it is a kind.
    let nothing = value.is_null() || text == "none" && full != "image.position";
    let value = if nothing { Value::Null } else { value };
    if let Some(capacity) = full.strip_suffix("capacity.factor").filter(|_| nothing) {
        full = format!("{capacity}capacity"); // no limit at all
    }
    let mut config = config.clone();
    if let Some(inside) = full.strip_prefix("encoder.moe.") {
        let moe = config.encoder.moe.get_or_insert_with(MoeConfig::default);
        if let Some(name) = value.as_str().filter(|_| inside == "router") {
            moe.router = shorthand::renamed(&moe.router, name)?;
            return Ok(config);
        }
        if let Some(changed) = shorthand::apply(moe, inside, &value) {
            changed.map_err(fault)?;
            return Ok(config);
        }
    }
    // A whole table of experts as earlier versions wrote it.
    let value = match (full.as_str(), value) {
        ("encoder.moe", Value::Object(moe)) => super::earlier::upgraded_moe(moe).map_err(fault)?,
        (_, value) => value,
    };
    let mut tree = serde_json::to_value(&config).expect("a configuration can be written");
    fill_sections(&mut tree, &full);
    let place = find(&mut tree, &full).ok_or_else(|| unknown(&config, key))?;
    if !value.is_null() {
        check_setting(RANGES, &full, &value).map_err(in_short)?;
    }
    let given: Vec<String> =
        value.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
    *place = merged(place.take(), value);
    let read = |tree: Value| serde_json::from_value::<ModelConfig>(tree);
    match read(tree.clone()) {
        Ok(config) => {
            // A kind without settings takes any, and forgets them.
            let mut again = serde_json::to_value(&config).expect("a configuration can be written");
            let kept = find(&mut again, &full).and_then(|kept| kept.as_object().cloned());
            let lost = kept.and_then(|kept| given.iter().find(|key| !kept.contains_key(*key)));
            match lost {
                Some(lost) => Err(fault(format!("it has no {lost}"))),
                None => Ok(config),
            }
        }
        // A list of blocks, or a name that happens to be a number, is a string to its field.
        Err(error) => {
            *find(&mut tree, &full).expect("it was there before") = Value::String(text.to_owned());
            read(tree).map_err(|_| fault(error.to_string()))
        }
    }
}

/// A setting of the encoder of texts, by the name that it has in the encoder of images.
fn apply_to_tower(
    config: &ModelConfig,
    key: &str,
    value: Value,
    text: &str,
) -> Result<ModelConfig> {
    let mut texts = config.text.clone().unwrap_or_default();
    let encoder = texts.tower.take().unwrap_or_else(|| config.encoder.clone());
    if !full_name(key).starts_with("encoder.") {
        let names = SHORT.iter().filter(|(_, full)| full.starts_with("encoder."));
        let hint = nearest(key, names.map(|(short, _)| *short));
        return Err(ModelError::UnknownSetting { key: format!("text.tower.{key}"), hint });
    }
    let tower = apply_value(&ModelConfig { encoder, ..ModelConfig::default() }, key, value, text)?;
    texts.tower = Some(tower.encoder);
    Ok(ModelConfig { text: Some(texts), ..config.clone() })
}

/// A table over one of the same kind changes what it names; over anything else, it takes its place.
fn merged(old: Value, new: Value) -> Value {
    match (old, new) {
        (Value::Object(mut old), Value::Object(new))
            if new.contains_key("kind") && old.get("kind") == new.get("kind") =>
        {
            old.extend(new);
            Value::Object(old)
        }
        (_, new) => new,
    }
}

/// Parts that a configuration may do without appear, with their defaults, on the way to one of their
/// settings.
fn fill_sections(tree: &mut Value, key: &str) {
    fn value(part: impl serde::Serialize) -> Value {
        serde_json::to_value(part).expect("a configuration can be written")
    }
    let allocation = "encoder.moe.router.allocation";
    let sections = [
        ("encoder.moe".to_owned(), value(MoeConfig::default())),
        ("encoder.batch_ensemble".to_owned(), value(BatchEnsembleConfig::default())),
        ("mimo".to_owned(), value(MimoConfig::default())),
        ("text".to_owned(), value(TextConfig::default())),
        (format!("{allocation}.capacity"), value(Capacity::factor(1.0))),
        (format!("{allocation}.inference_capacity"), value(Capacity::factor(1.0))),
    ];
    let training = find(tree, &format!("{allocation}.capacity")).filter(|place| place.is_object());
    let training = training.map(|capacity| capacity.clone());
    for (section, mut default) in sections {
        // A limit at inference is rounded as that of training is.
        if let (true, Some(Value::Object(training))) =
            (section.ends_with("inference_capacity"), &training)
        {
            let rounded = training.iter().filter(|(key, _)| *key != "factor");
            let rounded = rounded.map(|(key, value)| (key.clone(), value.clone()));
            default.as_object_mut().into_iter().for_each(|default| default.extend(rounded.clone()));
        }
        if key.strip_prefix(&section).is_some_and(|inside| inside.starts_with('.'))
            && let Some(place) = find(tree, &section).filter(|place| place.is_null())
        {
            *place = default;
        }
    }
}

fn find<'a>(tree: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    key.split('.').try_fold(tree, |tree, part| tree.as_object_mut()?.get_mut(part))
}

/// A setting of another router is known, and not used here; any other is not known at all.
fn unknown(config: &ModelConfig, key: &str) -> ModelError {
    let known = known_keys();
    if known.contains(&full_name(key)) {
        let router = config.moe().map_or("no router", |moe| match moe.router.allocation {
            _ if full_name(key).contains(".pool.") => "the pool of experts that there is",
            _ if full_name(key).contains(".affinity.") => "the affinity that there is",
            Allocation::TokenChoice(_) => "tokens that choose",
            Allocation::ExpertChoice(_) => "experts that choose",
            Allocation::Soft(_) => "soft routing",
        });
        return ModelError::UnusedSetting { key: key.to_owned(), router };
    }
    let shorthands = SHORTHANDS.iter().map(|name| format!("moe.{name}"));
    let short: Vec<String> =
        SHORT.iter().map(|(short, _)| short.to_string()).chain(shorthands).collect();
    let names = short.iter().chain(&known).map(String::as_str);
    ModelError::UnknownSetting { key: key.to_owned(), hint: nearest(key, names) }
}

/// The full names of the settings of all models, whatever their router.
fn known_keys() -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for (_, make) in ROUTERS {
        let moe = Some(MoeConfig::new(make(2, 1)));
        let batch_ensemble = Some(BatchEnsembleConfig::default());
        let full = ModelConfig {
            image: ImageConfig::default(),
            encoder: EncoderConfig { moe, batch_ensemble, ..EncoderConfig::default() },
            mimo: Some(MimoConfig::default()),
            ..ModelConfig::default()
        };
        let contrast = HeadConfig::Contrast(ContrastConfig::default());
        let text = Some(TextConfig::default());
        for full in [full.clone(), ModelConfig { head: contrast, text, ..full }] {
            let mut tree = serde_json::to_value(full).expect("a configuration can be written");
            fill_sections(&mut tree, "encoder.moe.router.allocation.capacity.factor");
            fill_sections(&mut tree, "encoder.moe.router.allocation.inference_capacity.factor");
            collect(tree.as_object().expect("a configuration has fields"), "", &mut keys);
        }
    }
    keys.extend(
        ["members", "overlap", "subsets", "modalities", "experts"]
            .map(|setting| format!("encoder.moe.router.pool.{setting}")),
    );
    keys
}

fn collect(tree: &Map<String, Value>, prefix: &str, keys: &mut BTreeSet<String>) {
    for (key, value) in tree {
        let path = format!("{prefix}{key}");
        if let Some(inner) = value.as_object() {
            collect(inner, &format!("{path}."), keys);
        }
        keys.insert(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omma_routing::{Affinity, Grouping, Loss, LossTerm, Pool, Rounding, RouterConfig, Scope};

    use crate::config::{Placement, preset};

    #[test]
    fn settings_reach_their_fields_and_the_last_wins() {
        let base = preset("vmoe-s32").unwrap();
        let settings =
            ["moe.experts=8", "moe.k=1", "moe.experts=16", "classes=10", "moe.placement=tail-2"];
        let config = apply_settings(&base, &settings).unwrap();
        let moe = config.moe().unwrap();
        assert_eq!((moe.router.experts, moe.k(), config.classes()), (16, Some(1), 10));
        assert_eq!(moe.placement, Placement::Tail(2));
        let config = apply_settings(
            &base,
            &["moe.placement=1,3", "moe.scope=image", "moe.shared_expert=true"],
        );
        let moe = config.unwrap().encoder.moe.unwrap();
        assert_eq!(moe.placement, Placement::Blocks(vec![1, 3]));
        assert_eq!((moe.router.scope, moe.shared_expert), (Scope::Image { decided_by: 0 }, true));
        let one = apply_settings(&base, &["moe.placement=7", "resolution=[64, 96]"]).unwrap();
        assert_eq!(one.moe().unwrap().placement, Placement::Blocks(vec![7]));
        assert_eq!(one.image.resolution, omma_base::Resolution::new(64, 96));
    }

    #[test]
    fn a_section_appears_with_its_first_setting_and_goes_with_null() {
        let base = preset("vit-s32").unwrap();
        let config = apply_settings(&base, &["moe.experts=4"]).unwrap();
        assert_eq!(config.moe().unwrap().router.experts, 4);
        assert_eq!(apply_settings(&config, &["moe=null"]).unwrap(), base);
    }

    #[test]
    fn a_wrong_key_names_the_nearest_and_a_wrong_value_says_why() {
        let base = preset("vmoe-s32").unwrap();
        let message = |setting: &str| apply_settings(&base, &[setting]).unwrap_err().to_string();
        assert_eq!(
            message("moe.expert=8"),
            "there is no setting \"moe.expert\"; did you mean \"moe.experts\"?"
        );
        assert!(message("experts=8").contains("moe.experts"), "{}", message("experts=8"));
        assert!(message("moe.k=many").starts_with("moe.k cannot be many: "));
        assert!(message("moe.k").contains("write key=value"));
        assert!(message("moe.k=99").contains("99"));
        assert!(message("heads=7").contains("7 heads"));
    }

    fn router(settings: &[&str]) -> RouterConfig {
        let config = apply_settings(&preset("vmoe-tiny").unwrap(), settings).unwrap();
        config.encoder.moe.unwrap().router
    }

    #[test]
    fn a_routers_name_goes_first_and_is_its_constructor() {
        for (name, make) in ROUTERS {
            let named = format!("moe.router={name}");
            assert_eq!(router(&[&named]), make(8, 2));
        }
        let later = router(&["moe.capacity_ratio=2", "moe.router=sinkhorn-expert-choice"]);
        assert_eq!(later, RouterConfig::sinkhorn_expert_choice(8, 2.0));
        let message =
            apply_settings(&preset("vmoe-tiny").unwrap(), &["moe.router=sinkhorn-tokens"]);
        assert!(message.unwrap_err().to_string().contains("\"sinkhorn-token-choice\""));
    }

    #[test]
    fn every_choice_of_a_router_can_be_set() {
        let soft =
            router(&["moe.router=soft", "moe.slots=3", "moe.router.allocation.normalised=false"]);
        let Allocation::Soft(plain) = soft.allocation else { panic!("{soft:?}") };
        assert_eq!((plain.slots, plain.normalised), (3, false));
        let rich = router(&[
            "moe.order=sum-of-gates",
            "moe.router.allocation.capacity.rounding=round",
            "moe.inference_capacity_ratio=8",
            "moe.router.affinity={\"kind\": \"sinkhorn\", \"tolerance\": 0.001}",
            "moe.grouping=images-2",
            "moe.members=2",
            "moe.overlap=2",
            "moe.noise=0.5",
            "moe.z_loss=0.1",
            "moe.router.pruning.experts=[3]",
        ]);
        assert_eq!(rich.pool, Pool::Members { members: 2, overlap: 2 });
        assert_eq!((rich.grouping, rich.noise), (Grouping::Images(2), 0.5));
        assert!(matches!(rich.affinity, Affinity::Sinkhorn(solver) if solver.tolerance == 0.001));
        assert!(rich.losses.contains(&LossTerm::new(Loss::Z, 0.1)));
        // Rounded as in training.
        let inference = rich.token_choice().unwrap().inference_capacity.unwrap();
        assert_eq!((inference.factor, inference.rounding), (8.0, Rounding::Round));
        let limits = router(&["moe.inference_capacity_ratio=8", "moe.capacity_multiple=4"]);
        let choice = limits.token_choice().unwrap();
        assert_eq!(choice.capacity.unwrap().multiple_of, 4);
        assert_eq!(choice.inference_capacity.unwrap().multiple_of, 4);
        let dropless = router(&["moe.capacity_ratio=none", "moe.inference_capacity_ratio=null"]);
        assert_eq!(dropless.token_choice().unwrap().capacity, None);
        let tiled = &["moe.own_experts=false", "moe.members=3"];
        let tiled = apply_settings(&preset("vmoe-tiny").unwrap(), tiled).unwrap();
        assert_eq!((tiled.members(), &tiled.moe().unwrap().router.pool), (3, &Pool::All));
        let gates = router(&[
            "moe.router.pool={\"kind\": \"gate-per-modality\", \"modalities\": 2}",
            r#"moe.losses=[{"loss": {"global-entropy": {"threshold": 1.5}}, "weight": 0.04, "modality": 1}]"#,
        ]);
        assert_eq!(gates.pool, Pool::GatePerModality { modalities: 2 });
        let loss = Loss::GlobalEntropy { threshold: Some(1.5) };
        assert_eq!(gates.losses, [LossTerm::new(loss, 0.04).on_modality(1)]);
    }

    #[test]
    fn a_setting_that_the_router_does_not_use_is_an_error() {
        let base = preset("vmoe-tiny").unwrap();
        let message = |settings: &[&str]| apply_settings(&base, settings).unwrap_err().to_string();
        assert_eq!(
            message(&["moe.router=soft", "moe.k=1"]),
            "moe.k is not a setting of soft routing"
        );
        assert!(
            message(&["moe.router=softmax-expert-choice", "moe.order=shuffled"])
                .contains("experts that choose")
        );
        assert!(message(&["moe.slots=4"]).contains("tokens that choose"));
        assert!(message(&["moe.overlap=2"]).contains("pool"));
        assert!(
            message(&["moe.router.pool={\"kind\": \"all\", \"members\": 2}"])
                .contains("no members")
        );
        assert!(message(&["moe.members=2", "moe.router=soft"]).contains("soft routing"));
        assert!(message(&["moe.members=2", "moe.partition=2"]).contains("partition"));
        assert!(message(&["moe.own_experts=false"]).contains("moe.members"));
        assert!(message(&["moe.router=soft", "moe.noise=1"]).contains("soft routing"));
        assert!(
            message(&["moe.router=sinkhorn-expert-choice", "moe.load_loss=1"]).contains("loss")
        );
    }
}
