//! The layers of a recipe: what it is based on, its own file, what the user sets.

use std::{collections::BTreeSet, path::Path};

use omma_base::files::read_regular;
use omma_model::{ModelConfig, full_name, precedence};
use serde_json::Value;

use super::{built_in, recipe_error};
use crate::error::{Result, TrainError};

/// A recipe has a few thousand bytes.
const LARGEST: u64 = 1 << 24;
/// Recipes that are based on each other.
const DEEPEST: usize = 16;

/// A key, its value, and how its user wrote it.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) text: String,
}

/// Settings that belong together, and the file that they are from.
pub(super) struct Layer {
    pub(super) settings: Vec<Setting>,
    /// Nothing where the user gave them with the command.
    pub(super) file: Option<String>,
}

impl Layer {
    /// The name of a router goes before its settings, and members before what they share. In a file, whose
    /// order means nothing, tables and lists go before what changes them.
    pub(super) fn new(mut settings: Vec<Setting>, file: Option<String>) -> Self {
        let is_table = |setting: &Setting| setting.value.is_object() || setting.value.is_array();
        settings.sort_by_key(|setting| match setting.precedence() {
            0 => 0,
            _ if file.is_some() && is_table(setting) => 1,
            later => 1 + later,
        });
        Self { settings, file }
    }
}

impl Setting {
    pub(super) fn new(key: &str, value: Value) -> Self {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Self { key: key.to_owned(), value, text }
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| TrainError::SettingSyntax { text: text.to_owned() })?;
        let (key, text) = (key.trim().to_owned(), value.trim().to_owned());
        let value = serde_json::from_str(&text).ok().or_else(|| in_toml(&text));
        let value = value.unwrap_or_else(|| Value::String(text.clone()));
        Ok(Self { key, value, text })
    }

    fn precedence(&self) -> u8 {
        let key = self.key.strip_prefix("model.");
        key.map_or(u8::MAX - 1, |key| precedence(key, &self.value))
    }
}

/// A list or a table as a recipe's file writes it.
fn in_toml(text: &str) -> Option<Value> {
    let is_nested = text.starts_with('[') || text.starts_with('{');
    let table: toml::Table = toml::from_str(&format!("x = {text}")).ok().filter(|_| is_nested)?;
    serde_json::to_value(table.get("x")?).ok()
}

pub(super) fn read_text(path: &Path) -> Result<String> {
    let text = read_regular(path, LARGEST).map_err(TrainError::io(path))?;
    String::from_utf8(text).map_err(|_| TrainError::RecipeSyntax {
        path: path.to_owned(),
        why: "it is not text in UTF-8".to_owned(),
    })
}

pub(super) fn table(text: &str, path: &Path) -> Result<toml::Table> {
    let table: toml::Table = toml::from_str(text).map_err(|error| TrainError::RecipeSyntax {
        path: path.to_owned(),
        why: error.to_string().trim_end().to_owned(),
    })?;
    // JSON, which settings go through, would make nothing of these.
    match not_finite(&toml::Value::Table(table.clone()), "") {
        Some(key) => Err(recipe_error(format!("{}: {key} is not a finite number", path.display()))),
        None => Ok(table),
    }
}

/// A recipe's own settings, below them those of the recipe that it is based on, and so on. A base is a
/// recipe that comes with the program, or a file beside this one; its name and purpose are not taken over.
pub(super) fn layers(text: &str, path: &Path) -> Result<Vec<Layer>> {
    let mut layers: Vec<Layer> = Vec::new();
    let (mut text, mut path) = (text.to_owned(), path.to_owned());
    for depth in 0..DEEPEST {
        let mut table = table(&text, &path)?;
        let base = table.remove("base");
        if depth > 0 {
            table.remove("name");
            table.remove("about");
        }
        let mut settings = Vec::new();
        flatten(&serde_json::to_value(&table).unwrap_or_default(), "", &mut settings);
        layers.push(Layer::new(settings, Some(path.display().to_string())));
        let fault = |why: String| TrainError::RecipeSyntax { path: path.clone(), why };
        match base {
            None => {
                layers.reverse();
                return Ok(layers);
            }
            Some(toml::Value::String(base)) if base.ends_with(".toml") => {
                path = path.parent().unwrap_or(Path::new("")).join(&base);
                text = read_text(&path)?;
            }
            Some(toml::Value::String(base)) => {
                text = built_in(&base).map_err(|error| fault(error.to_string()))?.to_owned();
                path = format!("recipe {base}").into();
            }
            Some(other) => {
                return Err(fault(format!(
                    "base is the name or the file of a recipe, not {other}"
                )));
            }
        }
    }
    let why = format!("it is based on more than {DEEPEST} others, or on itself");
    Err(TrainError::RecipeSyntax { path, why })
}

/// Settings that saved recipes of earlier versions do not have.
const LATER: [&str; 3] = ["image.projection", "encoder.attention", "encoder.norm"];

/// Whether every setting of a model is there, as in the recipe that is saved with a run.
pub(super) fn is_whole(settings: &[Setting]) -> bool {
    let full = |key: &str| key.strip_prefix("model.").map(full_name);
    let named: BTreeSet<String> =
        settings.iter().filter_map(|setting| full(&setting.key)).collect();
    let tree = serde_json::to_value(ModelConfig::default()).expect("it can be written");
    let mut keys = Vec::new();
    flatten(&tree, "model.", &mut keys);
    // What a model may do without is left out of files.
    let mut keys = keys.iter().filter(|setting| !setting.value.is_null());
    keys.all(|setting| {
        let key = full(&setting.key).unwrap_or_default();
        let inside = format!("{key}.");
        LATER.contains(&key.as_str())
            || named.iter().any(|name| *name == key || name.starts_with(&inside))
    })
}

/// Tables become dotted keys; lists stay values, and so do tables of a model that say what kind of thing
/// they describe, which are nothing without that.
fn flatten(value: &Value, prefix: &str, all: &mut Vec<Setting>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let key = format!("{prefix}{key}");
        let of_model = key.starts_with("model.");
        let is_kind = of_model && value.get("kind").is_some();
        match value.is_object() && !is_kind {
            true => flatten(value, &format!("{key}."), all),
            false => all.push(Setting::new(&key, value.clone())),
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
