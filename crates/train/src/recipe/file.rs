//! From the text of a recipe and settings on top of it to a [`Recipe`].

use std::{collections::BTreeMap, path::Path};

use omma_base::{files::read_regular, nearest, range::check_setting};
use omma_model::{ModelConfig, apply_value, checkpoint, preset};
use serde_json::{Map, Value};

use super::{RANGES, Recipe, of_model, out_of_range, recipe_error};
use crate::error::{Result, TrainError};

/// A key, its value, and how its user wrote it.
struct Setting {
    key: String,
    value: Value,
    text: String,
}

/// A recipe has a few thousand bytes.
const LARGEST: u64 = 1 << 24;

impl Recipe {
    /// Reads a recipe's file.
    pub fn read<S: AsRef<str>>(path: &Path, settings: &[S]) -> Result<Self> {
        let text = read_regular(path, LARGEST).map_err(TrainError::io(path))?;
        let text = String::from_utf8(text).map_err(|_| TrainError::RecipeSyntax {
            path: path.to_owned(),
            why: "it is not text in UTF-8".to_owned(),
        })?;
        let mut recipe = Self::parse(&text, path, settings)?;
        if recipe.name.is_empty() {
            recipe.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            recipe.check()?;
        }
        Ok(recipe)
    }

    /// Reads a recipe's text, which came from `path`. `model.preset` names what the rest of `[model]`
    /// changes; with `init` that is the checkpoint's model; with neither, the default.
    pub fn parse<S: AsRef<str>>(text: &str, path: &Path, settings: &[S]) -> Result<Self> {
        let table: toml::Table =
            toml::from_str(text).map_err(|error| TrainError::RecipeSyntax {
                path: path.to_owned(),
                why: error.to_string().trim_end().to_owned(),
            })?;
        let mut all = Vec::new();
        flatten(&serde_json::to_value(&table).unwrap_or_default(), "", &mut all);
        // JSON, which settings go through, would make nothing of these.
        if let Some(key) = not_finite(&toml::Value::Table(table), "") {
            return Err(recipe_error(format!("{}: {key} is not a finite number", path.display())));
        }
        let own = all.len();
        for setting in settings {
            all.push(Setting::parse(setting.as_ref())?);
        }
        let last = |key: &str| all.iter().rev().find(|setting| setting.key == key);
        let model = match (last("init"), last("model.preset")) {
            (_, Some(name)) => preset(&name.text)?,
            // A saved recipe does not need the checkpoint that its run began with any more.
            _ if is_whole(&all) => ModelConfig::default(),
            (Some(init), None) => checkpoint::summary(init.text.as_ref())?.config,
            (None, None) => {
                return Err(recipe_error(format!(
                    "{} has no model of its own: start from a checkpoint with --init, or name a preset \
                     with --set model.preset=vmoe-s32",
                    path.display()
                )));
            }
        };
        // What is wrong in the file is said with its name.
        let in_file = |error: TrainError| TrainError::RecipeSyntax {
            path: path.to_owned(),
            why: error.to_string(),
        };
        let mut recipe = Self { model, ..Self::default() };
        let settings = all.iter().enumerate().filter(|(_, setting)| setting.key != "model.preset");
        for (place, setting) in settings {
            let next = recipe.with(setting);
            recipe = if place < own { next.map_err(in_file)? } else { next? };
        }
        let checked = recipe.check();
        if own == all.len() {
            checked.map_err(in_file)?
        } else {
            checked?
        }
        Ok(recipe)
    }

    /// The whole recipe as TOML; reading it gives the same recipe.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe can be written")
    }

    fn with(mut self, setting: &Setting) -> Result<Self> {
        let Setting { key, value, text } = setting;
        if let Some(key) = key.strip_prefix("model.") {
            self.model = apply_value(&self.model, key, value.clone(), text).map_err(of_model)?;
            return Ok(self);
        }
        let mut tree = serde_json::to_value(&self).expect("a recipe can be written");
        let place = key
            .split('.')
            .try_fold(&mut tree, |tree, part| tree.as_object_mut()?.get_mut(part))
            .filter(|place| !place.is_object());
        let Some(place) = place else { return Err(self.unknown(key)) };
        if !value.is_null() {
            check_setting(RANGES, key, value).map_err(out_of_range)?;
        }
        *place = value.clone();
        let model = self.model;
        let read = |tree: Value| serde_json::from_value::<Self>(tree);
        let recipe = read(tree.clone()).or_else(|error| {
            // A name that happens to be a number is a string to its field.
            let place = key.split('.').try_fold(&mut tree, |tree, part| tree.get_mut(part));
            *place.expect("it was there before") = Value::String(text.clone());
            read(tree).map_err(|_| TrainError::BadSetting {
                key: key.clone(),
                value: text.clone(),
                why: error.to_string(),
            })
        })?;
        Ok(Self { model, ..recipe })
    }

    fn unknown(&self, key: &str) -> TrainError {
        let settings = self.settings();
        let known = settings.keys().map(String::as_str).chain(["model.preset"]);
        TrainError::UnknownSetting { key: key.to_owned(), hint: nearest(key, known) }
    }

    /// Every setting by its key.
    pub fn settings(&self) -> BTreeMap<String, Value> {
        let tree = serde_json::to_value(self).expect("a recipe can be written");
        let mut all = BTreeMap::new();
        collect(tree.as_object().expect("a recipe has fields"), "", &mut all);
        all
    }
}

impl Setting {
    fn parse(text: &str) -> Result<Self> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| TrainError::SettingSyntax { text: text.to_owned() })?;
        let (key, text) = (key.trim().to_owned(), value.trim().to_owned());
        let value = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.clone()));
        Ok(Self { key, value, text })
    }
}

/// Whether every setting of a model is there, as in the recipe that is saved with a run.
fn is_whole(settings: &[Setting]) -> bool {
    let tree = serde_json::to_value(ModelConfig::default()).expect("it can be written");
    let mut keys = BTreeMap::new();
    collect(tree.as_object().expect("a configuration has fields"), "model.", &mut keys);
    // What a model may do without is left out of files.
    let mut keys = keys.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key);
    keys.all(|key| settings.iter().any(|setting| setting.key == *key))
}

/// Tables become dotted keys; normalisation and other lists stay values.
fn flatten(value: &Value, prefix: &str, all: &mut Vec<Setting>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let key = format!("{prefix}{key}");
        if value.is_object() {
            flatten(value, &format!("{key}."), all);
            continue;
        }
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        all.push(Setting { key, value: value.clone(), text });
    }
}

fn collect(tree: &Map<String, Value>, prefix: &str, all: &mut BTreeMap<String, Value>) {
    for (key, value) in tree {
        let path = format!("{prefix}{key}");
        match value.as_object() {
            Some(inner) => collect(inner, &format!("{path}."), all),
            None => _ = all.insert(path, value.clone()),
        }
    }
}

/// The key of a number that is infinite or none.
fn not_finite(value: &toml::Value, key: &str) -> Option<String> {
    match value {
        toml::Value::Float(number) if !number.is_finite() => Some(key.to_owned()),
        toml::Value::Array(items) => items.iter().find_map(|item| not_finite(item, key)),
        toml::Value::Table(fields) => fields.iter().find_map(|(name, value)| {
            let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
            not_finite(value, &key)
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        name = "mine"
        seed = 3
        [data]
        name = "world"
        [optimiser]
        learning_rate = 0.00123456789012345678
        [model]
        preset = "vmoe-tiny"
        moe.experts = 4
        moe.dropout = 0.1
    "#;

    fn parse(settings: &[&str]) -> Result<Recipe> {
        Recipe::parse(TEXT, "mine.toml".as_ref(), settings)
    }

    #[test]
    fn settings_go_on_top_and_the_last_wins() {
        let recipe = parse(&["train.steps=5", "model.moe.k=1", "seed=8", "seed=9"]).unwrap();
        let moe = recipe.model.moe.as_ref().unwrap();
        assert_eq!((recipe.train.steps, recipe.seed, moe.k, moe.experts), (5, 9, 1, 4));
        let dense = parse(&["model.preset=vit-tiny", "model.moe=null"]).unwrap();
        assert!(dense.model.moe.is_none());
    }

    #[test]
    fn what_is_written_reads_the_same_to_the_bit() {
        for settings in [&["train.ema=0.999"][..], &["model.moe=null"], &["mixing.mixup=0.3"]] {
            let recipe = parse(settings).unwrap();
            let again = Recipe::parse::<&str>(&recipe.to_toml(), "saved".as_ref(), &[]).unwrap();
            assert_eq!(again, recipe);
        }
    }

    #[test]
    fn a_wrong_setting_says_what_is_near_and_why() {
        let message = |setting: &str| parse(&[setting]).unwrap_err().to_string();
        assert!(message("train.step=5").contains("\"train.steps\""), "{}", message("train.step=5"));
        assert!(message("model.moe.expert=5").contains("\"model.moe.experts\""));
        assert!(message("optimizer.learning_rate=1").contains("optimiser.learning_rate"));
        assert!(message("train.steps=many").starts_with("train.steps cannot be many"));
        assert!(message("train").contains("key=value"));
        assert!(message("train=3").contains("there is no setting"));
        assert!(message("train.accumulation=3").contains("equal parts"));
        assert!(message("train.shards=3").contains("equal parts"));
        assert!(message("schedule.kind=cosin").contains("cosine"));
        for text in ["[data", "sed = 1", "train.batch = -1", "train.ema = 2.0", "name = \"a/b\""] {
            let text = format!("model.preset = \"vmoe-tiny\"\n{text}");
            let error = Recipe::parse::<&str>(&text, "x.toml".as_ref(), &[]).unwrap_err();
            assert!(error.to_string().starts_with("x.toml: "), "{error}");
        }
    }
}
