//! From the text of a recipe and settings on top of it to a [`Recipe`]: layer by layer, and the last wins.

use std::{collections::BTreeMap, path::Path};

use omma_base::{nearest, range::check_setting};
use omma_model::{ModelConfig, apply_value, checkpoint, preset};
use serde_json::{Map, Value};

use super::{
    RANGES, Recipe, Request, built_in,
    layers::{Layer, Setting, is_whole, layers, read_text, table},
    length::Length,
    of_model, out_of_range, recipe_error,
};
use crate::error::{Result, TrainError};

impl Recipe {
    /// A recipe by its name, or by the path of its file, with what the user asks for on top.
    pub fn find(name: &str, request: &Request) -> Result<Self> {
        Ok(Self::find_with_notes(name, request)?.0)
    }

    /// The same, and in sentences what a user who gave it may not expect of it.
    pub fn find_with_notes(name: &str, request: &Request) -> Result<(Self, Vec<String>)> {
        match name.ends_with(".toml") {
            true => Self::read_with_notes(name.as_ref(), request),
            false => Self::build(built_in(name)?, format!("recipe {name}").as_ref(), request, None),
        }
    }

    /// Reads a recipe's file.
    pub fn read(path: &Path, request: &Request) -> Result<Self> {
        Ok(Self::read_with_notes(path, request)?.0)
    }

    fn read_with_notes(path: &Path, request: &Request) -> Result<(Self, Vec<String>)> {
        let (mut recipe, notes) = Self::build(&read_text(path)?, path, request, None)?;
        if recipe.name.is_empty() {
            recipe.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            recipe.check()?;
        }
        Ok((recipe, notes))
    }

    /// Reads a recipe's text, which came from `path`, with settings on top.
    pub fn parse<S: AsRef<str>>(text: &str, path: &Path, settings: &[S]) -> Result<Self> {
        Ok(Self::build(text, path, &Request::of(settings), None)?.0)
    }

    /// The same of a run that is to begin from a model of this kind, which does not exist yet.
    pub fn parse_from<S: AsRef<str>>(
        text: &str,
        path: &Path,
        settings: &[S],
        model: ModelConfig,
    ) -> Result<Self> {
        Ok(Self::build(text, path, &Request::of(settings), Some(model))?.0)
    }

    /// `model.preset` names what the rest of `[model]` changes; with `init` that is the checkpoint's model.
    ///
    /// - `from`: the model of such a checkpoint that does not exist yet
    fn build(
        text: &str,
        path: &Path,
        request: &Request,
        from: Option<ModelConfig>,
    ) -> Result<(Self, Vec<String>)> {
        let mut layers = layers(text, path)?;
        // A saved recipe says everything, in this version's words or in those of an earlier one, and does
        // not need the checkpoint that its run began with any more.
        let saved = match layers.as_slice() {
            [only] if is_whole(&only.settings) => Some(Self::parse_saved(text, path)?),
            _ => None,
        };
        if saved.is_some() {
            layers.clear();
        }
        layers.push(Layer::new(request.settings()?, None));
        let (mut recipe, mut length) = match saved {
            Some(recipe) => {
                let length = Length::saved(&recipe.train, &path.display().to_string());
                (recipe, length)
            }
            None => {
                let model = starting_model(&layers, path, from)?;
                (Self { model, ..Self::default() }, Length::default())
            }
        };
        for layer in &layers {
            // What is wrong in a file is said with its name.
            let placed = |error: TrainError| match &layer.file {
                Some(file) => {
                    TrainError::RecipeSyntax { path: file.into(), why: error.to_string() }
                }
                None => error,
            };
            for setting in &layer.settings {
                recipe = recipe.with(setting).map_err(placed)?;
                length.follow(setting, layer, &mut recipe.train);
            }
            Length::check(layer).map_err(placed)?;
        }
        match layers.last().is_some_and(|layer| layer.settings.is_empty()) {
            true => recipe.check().map_err(|error| TrainError::RecipeSyntax {
                path: path.to_owned(),
                why: error.to_string(),
            })?,
            false => recipe.check()?,
        }
        Ok((recipe, length.notes))
    }

    /// Reads the recipe that was saved with a run, which has every value in it.
    pub fn read_saved(path: &Path) -> Result<Self> {
        Self::parse_saved(&read_text(path)?, path)
    }

    /// The same from its text.
    pub(crate) fn parse_saved(text: &str, path: &Path) -> Result<Self> {
        let fault = |why: String| TrainError::RecipeSyntax { path: path.to_owned(), why };
        let table = table(text, path)?;
        let tree = serde_json::to_value(&table).map_err(|error| fault(error.to_string()))?;
        let recipe: Self =
            serde_json::from_value(tree).map_err(|error| fault(error.to_string()))?;
        recipe.check().map_err(|error| fault(error.to_string()))?;
        Ok(recipe)
    }

    /// The whole recipe as TOML; reading it gives the same recipe.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe can be written")
    }

    pub(super) fn with(mut self, setting: &Setting) -> Result<Self> {
        let Setting { key, value, text } = setting;
        if key == "model.preset" {
            return Ok(self); // it is what the rest goes on top of
        }
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

/// The model that settings go on top of: a preset, or that of the checkpoint to start from.
fn starting_model(layers: &[Layer], path: &Path, from: Option<ModelConfig>) -> Result<ModelConfig> {
    let all = layers.iter().rev().flat_map(|layer| layer.settings.iter().rev());
    let last = |key: &str| all.clone().find(|setting| setting.key == key).cloned();
    match (last("init"), last("model.preset"), from) {
        (_, Some(name), _) => Ok(preset(&name.text)?),
        (_, None, Some(model)) => Ok(model),
        (Some(init), None, None) => Ok(checkpoint::summary(init.text.as_ref())?.config),
        (None, None, None) => Err(recipe_error(format!(
            "{} has no model of its own: start from a checkpoint with --init, or name a preset with --set \
             model.preset=vmoe-s32",
            path.display()
        ))),
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

#[cfg(test)]
mod tests {
    use omma_data::HoldingOut;

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
        let moe = recipe.model.moe().unwrap();
        let found = (recipe.train.steps, recipe.seed, moe.k(), moe.router.experts);
        assert_eq!(found, (5, 9, Some(1), 4));
        let z = parse(&["model.moe.losses=[{ loss = \"z\", weight = 0.5 }]"]).unwrap();
        assert_eq!(z, parse(&[r#"model.moe.losses=[{"loss": "z", "weight": 0.5}]"#]).unwrap());
        let soft = parse(&["model.moe.slots=2", "model.moe.router=soft"]).unwrap();
        assert_eq!(soft.model.moe().unwrap().slots(), Some(2), "a router's name goes first");
        let dense = parse(&["model.preset=vit-tiny", "model.moe=null"]).unwrap();
        assert!(dense.model.moe().is_none());
    }

    #[test]
    fn what_is_written_reads_the_same_to_the_bit() {
        for settings in [
            &["train.ema=0.999"][..],
            &["model.moe=null"],
            &["mixing.mixup=0.3"],
            &["model.moe.router=soft", "model.resolution=[24, 32]"],
            &["model.moe.members=2", "model.moe.z_loss=0.1"],
        ] {
            let recipe = parse(settings).unwrap();
            let text = recipe.to_toml();
            let again = Recipe::parse::<&str>(&text, "saved".as_ref(), &[]).unwrap();
            assert_eq!(again, recipe);
            assert_eq!(Recipe::parse_saved(&text, "saved".as_ref()).unwrap(), recipe);
        }
        // What was taken away stays away.
        let dropless = parse(&["model.moe.capacity_ratio=none"]).unwrap();
        assert_eq!(dropless.model.moe().unwrap().capacity_factor(), None);
        let again = Recipe::parse::<&str>(&dropless.to_toml(), "saved".as_ref(), &[]).unwrap();
        assert_eq!(again, dropless);
    }

    #[test]
    fn a_model_that_does_not_exist_yet_is_what_settings_go_on_top_of() {
        let text = "name = 'finer'\nmodel.moe.k = 1\nmodel.resolution = 48";
        let path: &Path = "finer.toml".as_ref();
        let from = parse(&["model.moe.experts=6"]).unwrap().model;
        let recipe = Recipe::parse_from(text, path, &["model.moe.members=2"], from).unwrap();
        let moe = recipe.model.moe().unwrap();
        assert_eq!((moe.k(), moe.router.experts, recipe.model.members()), (Some(1), 6, 2));
        assert_eq!(recipe.init, None);
        let message = Recipe::parse::<&str>(text, path, &[]).unwrap_err().to_string();
        assert!(message.contains("--init"), "{message}");
    }

    /// The recipes of runs of earlier versions are recipes still, with settings on top.
    #[test]
    fn a_saved_recipe_of_any_version_can_be_trained_again() {
        for run in ["run-1", "run-2"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data").join(run);
            let path = folder.join("unfinished/recipe.toml");
            let saved = Recipe::read_saved(&path).unwrap();
            assert_eq!(Recipe::read(&path, &Request::default()).unwrap(), saved);
            let other =
                Recipe::read(&path, &Request::of(&["model.moe.noise=2", "seed=5"])).unwrap();
            assert_eq!((other.seed, other.model.moe().unwrap().router.noise), (5, 2.0));
        }
    }

    #[test]
    fn the_order_of_keys_in_a_file_means_nothing() {
        let read = |text: &str| {
            let text = format!("model.preset = 'vmoe-tiny'\n{text}");
            Recipe::parse::<&str>(&text, "x.toml".as_ref(), &[])
        };
        let losses =
            read("model.moe.balance_loss = 0.5\nmodel.moe.losses = [{ loss = 'z', weight = 1.0 }]");
        assert_eq!(losses.unwrap().model.moe().unwrap().router.losses.len(), 2);
        let soft =
            read("model.moe.k = 2\nmodel.moe.router.allocation = { kind = 'soft', slots = 2 }");
        assert!(soft.unwrap_err().to_string().contains("moe.k is not a setting of soft routing"));
        let tiling = read("model.moe.own_experts = false\nmodel.moe.members = 2").unwrap().model;
        let moe = tiling.moe().unwrap();
        assert_eq!((moe.tiling, moe.router.pool.members(), moe.router.experts), (2, None, 8));
    }

    #[test]
    fn a_recipe_saved_before_there_was_a_choice_holds_out_as_it_did() {
        let recipe = parse(&["data.columns=image=1,label=kind"]).unwrap();
        assert_eq!(recipe.data.holding_out, HoldingOut::Stratified);
        let text = recipe.to_toml();
        assert!(text.contains("columns = \"image=1,label=kind\""), "{text}");
        let saved = |text: &str| Recipe::parse_saved(text, "saved".as_ref()).unwrap();
        assert_eq!(saved(&text), recipe);
        let before = text.replace("holding_out = \"stratified\"\n", "");
        assert_eq!(saved(&before).data.holding_out, HoldingOut::EveryNth);
        assert_eq!(saved(&before).data.columns, recipe.data.columns);
        let message = parse(&["data.columns=picture=1"]).unwrap_err().to_string();
        assert!(message.starts_with("data.columns cannot be picture=1"), "{message}");
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

    #[test]
    fn a_recipe_is_its_base_and_its_differences() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name)
        };
        write(
            "first.toml",
            "name = 'first'\nabout = 'x'\nbase = 'vmoe'\ntrain.steps = 7\nmodel.moe.k = 1",
        );
        let path =
            write("second.toml", "base = 'first.toml'\n[model.moe]\nrouter = 'soft'\nslots = 2");
        let recipe = Recipe::read(&path, &Request::of(&["train.batch=32"])).unwrap();
        let vmoe = Recipe::find("vmoe", &Request::default()).unwrap();
        assert_eq!((recipe.name.as_str(), recipe.about.as_str()), ("second", ""));
        assert_eq!((recipe.train.steps, recipe.train.batch), (7, 32));
        assert_eq!(recipe.model.encoder.width, vmoe.model.encoder.width);
        assert_eq!(
            recipe.model.moe().unwrap().slots(),
            Some(2),
            "the base's k is not soft routing's"
        );
        let own = write("own.toml", "base = 'own.toml'");
        let message = Recipe::read(&own, &Request::default()).unwrap_err().to_string();
        assert!(message.contains("or on itself"), "{message}");
        for (text, part) in
            [("base = 'vmeo'", "vmoe"), ("base = 3", "not 3"), ("base = 'x.toml'", "x.toml")]
        {
            let path = write("wrong.toml", text);
            let message = Recipe::read(&path, &Request::default()).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
