//! What is judged, and by what: runs, checkpoints, data sets as the user names them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use omma_data::{
    Selection, Shared, Split,
    formats::{self, DataSpec},
};
use omma_eval::{Images, System};
use omma_model::VisionTransformer;
use omma_train::{Recipe, recipe::DataRecipe, run::RunFolder};

use crate::{commands::load_any, table::note};

/// Something that can be judged: the folder of a run, or a checkpoint.
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    pub(crate) model: VisionTransformer,
    /// The recipe, if it is a run.
    pub(crate) recipe: Option<Recipe>,
    /// Names of the classes, if it is a run.
    pub(crate) classes: Option<Vec<String>>,
}

impl Candidate {
    /// Reads a run's model (of an unfinished run the best checkpoint so far), one of our checkpoints,
    /// or one of another project.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let device = Device::flex();
        if !path.join("recipe.toml").is_file() {
            let model = load_any(path, &device)?;
            return Ok(Self { path: path.to_owned(), model, recipe: None, classes: None });
        }
        let (run, recipe) = RunFolder::open(path)?;
        let model = match run.file("model.safetensors").exists() {
            true => load_any(path, &device)?,
            false => {
                let checkpoints = run.checkpoints();
                let step = checkpoints.best().map(|best| best.step);
                let Some(step) = step.or_else(|| checkpoints.steps().last().copied()) else {
                    bail!("{} has not come to its first checkpoint yet", path.display());
                };
                note(format!("{} is not finished; taking step {step}", path.display()));
                load_any(&checkpoints.at(step), &device)?
            }
        };
        let names = std::fs::read(run.file("classes.json")).ok();
        let classes = names.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(Self { path: path.to_owned(), model, recipe: Some(recipe), classes })
    }

    /// The last part of its path.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| self.path.display().to_string())
    }

    /// Tells the recipe, all but its seed, from others; of a checkpoint, its configuration.
    pub(crate) fn fingerprint(&self) -> String {
        let text = match &self.recipe {
            Some(recipe) => Recipe { seed: 0, ..recipe.clone() }.to_toml(),
            None => format!("{:?}", self.model.config()),
        };
        format!("{:08x}", crc32fast::hash(text.as_bytes()))
    }

    /// What evaluations of other seeds are called as well.
    pub(crate) fn label(&self) -> String {
        self.recipe.as_ref().map_or_else(|| self.name(), |recipe| recipe.name.clone())
    }
}

/// All candidates as one system.
pub(crate) fn system(candidates: Vec<Candidate>) -> Result<System> {
    let named = candidates.into_iter().map(|candidate| (candidate.name(), candidate.model));
    Ok(System::new(named.collect())?)
}

/// The data of an evaluation.
pub(crate) struct Data {
    pub(crate) spec: DataSpec,
    /// Which of its images training held out, if that is known.
    recipe: Option<DataRecipe>,
}

impl Data {
    /// What the user names, or else what the runs were trained on.
    pub(crate) fn of(named: Option<&str>, candidates: &[Candidate]) -> Result<Self> {
        let first = candidates.first().and_then(|candidate| candidate.recipe.as_ref());
        let side = candidates.first().map_or(32, |one| one.model.config().resolution);
        let same = |recipe: &&Recipe| named.is_none_or(|name| same_data(name, &recipe.data.name));
        if let Some(recipe) = first.filter(same) {
            let other = candidates.iter().filter_map(|one| one.recipe.as_ref());
            let mut other = other.filter(|other| other.data.name != recipe.data.name);
            if let (Some(other), None) = (other.next(), named) {
                bail!(
                    "the runs were trained on different data ({} and {}); say which to use with --data",
                    recipe.data.name,
                    other.data.name
                );
            }
            return Ok(Self { spec: recipe.data_spec(), recipe: Some(recipe.data.clone()) });
        }
        let Some(name) = named else {
            bail!("a checkpoint does not know its data; say what to judge it by with --data");
        };
        Ok(Self { spec: DataSpec { size: side, ..DataSpec::named(name) }, recipe: None })
    }

    /// A split of it; only the first samples that `limit` allows, evenly spread.
    pub(crate) fn images(&self, split: Split, limit: Option<usize>) -> Result<Images> {
        let data = formats::open(&self.spec, split)?;
        Ok(Images::new(self.spec.name.clone(), limited(data, limit)))
    }

    /// Training images that no model has learned from: those that the runs held out.
    pub(crate) fn held_out(&self) -> Result<Option<Images>> {
        let Some(recipe) = &self.recipe else { return Ok(None) };
        let (_, held) = recipe.parts(&formats::open(&self.spec, Split::Train)?);
        let name = format!("held-out images of {}", self.spec.name);
        Ok((!held.is_empty()).then(|| Images::new(name, held)))
    }
}

/// A run remembers the whole path.
fn same_data(name: &str, known: &str) -> bool {
    let whole = |name: &str| std::fs::canonicalize(name).ok();
    name == known || whole(name).is_some_and(|path| whole(known) == Some(path))
}

fn limited(data: Shared, limit: Option<usize>) -> Shared {
    limit.map_or_else(|| data.clone(), |limit| Selection::spread(&data, limit))
}

/// A data set from outside: `NAME=PATH`, or a path alone, or a name of the built-in ones.
pub(crate) fn outside(text: &str, side: usize, limit: Option<usize>) -> Result<Images> {
    let (name, path) = match text.split_once('=') {
        Some((name, path)) => (name.to_owned(), path),
        None => {
            let last = Path::new(text).file_name().map(|name| name.to_string_lossy().into_owned());
            (last.unwrap_or_else(|| text.to_owned()), text)
        }
    };
    let spec = DataSpec { size: side, ..DataSpec::named(path) };
    let data = formats::open(&spec, Split::Test)
        .or_else(|error| formats::open(&spec, Split::Train).map_err(|_| error))
        .with_context(|| format!("data set {name} from outside"))?;
    Ok(Images::new(name, limited(data, limit)))
}

/// Warns where the names of a model's classes are not those of the data.
pub(crate) fn compare_names(candidates: &[Candidate], data: &Images) {
    let names = candidates.iter().find_map(|candidate| candidate.classes.as_ref());
    let Some(names) = names.filter(|names| names.len() == data.data.classes().len()) else {
        return;
    };
    let pairs = names.iter().zip(data.data.classes());
    if let Some((own, other)) = pairs.into_iter().find(|(own, other)| own != other) {
        note(format!(
            "warning: the model's class \"{own}\" stands where {} has \"{other}\"; the figures mean \
             little if these are not the same",
            data.name
        ));
    }
}
