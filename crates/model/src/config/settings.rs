//! `key=value` on top of a configuration, with the nearest key for a wrong one.

use omma_base::{nearest, range::check_setting};
use serde_json::{Map, Value};

use super::{BatchEnsembleConfig, MimoConfig, ModelConfig, MoeConfig, ranges::RANGES};
use crate::error::{ModelError, Result};

/// Applies settings such as `moe.experts=8` or `classes=10` in order; the last one wins. A setting
/// below `moe`, `batch_ensemble` or `mimo` makes a model that has none of it have one with defaults,
/// and `moe=null` takes it away.
pub fn apply_settings<S: AsRef<str>>(config: &ModelConfig, settings: &[S]) -> Result<ModelConfig> {
    let mut config = config.clone();
    for setting in settings {
        config = apply(&config, setting.as_ref())?;
    }
    config.check()?;
    Ok(config)
}

fn apply(config: &ModelConfig, setting: &str) -> Result<ModelConfig> {
    let (key, value) = setting
        .split_once('=')
        .ok_or_else(|| ModelError::SettingSyntax { text: setting.to_owned() })?;
    let (key, value) = (key.trim(), value.trim());
    let parsed = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    apply_value(config, key, parsed, value)
}

/// Gives one setting a value that was read elsewhere; `text` is how its user wrote it. The result is
/// not checked as a whole yet.
pub fn apply_value(
    config: &ModelConfig,
    key: &str,
    value: Value,
    text: &str,
) -> Result<ModelConfig> {
    let mut config = config.clone();
    match key.split_once('.').map(|(section, _)| section) {
        Some("moe") => _ = config.moe.get_or_insert_with(MoeConfig::default),
        Some("batch_ensemble") => {
            _ = config.batch_ensemble.get_or_insert_with(BatchEnsembleConfig::default);
        }
        Some("mimo") => _ = config.mimo.get_or_insert_with(MimoConfig::default),
        _ => {}
    }
    let mut tree = serde_json::to_value(&config).expect("a configuration can be written");
    let place = find(&mut tree, key).ok_or_else(|| unknown(&config, key))?;
    if !value.is_null() {
        check_setting(RANGES, key, &value)?;
    }
    *place = value;
    let fault = |why: String| ModelError::BadSetting {
        key: key.to_owned(),
        value: text.to_owned(),
        why: why.split(" at line").next().unwrap_or_default().to_owned(),
    };
    match serde_json::from_value(tree.clone()) {
        Ok(config) => Ok(config),
        // A list of blocks, or a name that happens to be a number, is a string to its field.
        Err(error) => {
            *find(&mut tree, key).expect("it was there before") = Value::String(text.to_owned());
            serde_json::from_value(tree).map_err(|_| fault(error.to_string()))
        }
    }
}

fn find<'a>(tree: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    key.split('.').try_fold(tree, |tree, part| tree.as_object_mut()?.get_mut(part))
}

fn unknown(config: &ModelConfig, key: &str) -> ModelError {
    let full = ModelConfig {
        moe: Some(MoeConfig::default()),
        batch_ensemble: Some(BatchEnsembleConfig::default()),
        mimo: Some(MimoConfig::default()),
        ..config.clone()
    };
    let tree = serde_json::to_value(full).expect("a configuration can be written");
    let mut keys = Vec::new();
    collect(tree.as_object().expect("a configuration has fields"), "", &mut keys);
    ModelError::UnknownSetting {
        key: key.to_owned(),
        hint: nearest(key, keys.iter().map(String::as_str)),
    }
}

fn collect(tree: &Map<String, Value>, prefix: &str, keys: &mut Vec<String>) {
    for (key, value) in tree {
        let path = format!("{prefix}{key}");
        if let Some(inner) = value.as_object() {
            collect(inner, &format!("{path}."), keys);
        }
        keys.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MoeScope, Placement, preset};

    #[test]
    fn settings_reach_their_fields_and_the_last_wins() {
        let base = preset("vmoe-s32").unwrap();
        let settings =
            ["moe.experts=8", "moe.k=1", "moe.experts=16", "classes=10", "moe.placement=tail-2"];
        let config = apply_settings(&base, &settings).unwrap();
        let moe = config.moe.unwrap();
        assert_eq!((moe.experts, moe.k, config.classes), (16, 1, 10));
        assert_eq!(moe.placement, Placement::Tail(2));
        let config = apply_settings(
            &base,
            &["moe.placement=1,3", "moe.scope=image", "moe.shared_expert=true"],
        );
        let moe = config.unwrap().moe.unwrap();
        assert_eq!(moe.placement, Placement::Blocks(vec![1, 3]));
        assert_eq!((moe.scope, moe.shared_expert), (MoeScope::Image, true));
        assert_eq!(
            apply_settings(&base, &["moe.placement=7"]).unwrap().moe.unwrap().placement,
            Placement::Blocks(vec![7])
        );
    }

    #[test]
    fn a_section_appears_with_its_first_setting_and_goes_with_null() {
        let base = preset("vit-s32").unwrap();
        let config = apply_settings(&base, &["moe.experts=4"]).unwrap();
        assert_eq!(config.moe.as_ref().unwrap().experts, 4);
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
}
