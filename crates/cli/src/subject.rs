//! What is judged, and by what: runs, checkpoints, data sets as the user names them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::ValueEnum;
use omma_base::{Resolution, Seed, checksum};
use omma_data::{
    Selection, Shared, Split,
    formats::{self, Columns, DataSpec, whole_name},
    text::Tokenizer,
};
use omma_eval::{FewShotSet, Images, System, atlas::RoutedModel};
use omma_model::{Precision, VisionTransformer, checkpoint, systems::reconfigure};
use omma_ranks::World;
use omma_train::{Recipe, recipe::DataRecipe, run::RunFolder};

use crate::{
    commands::{load_any, note_margin},
    evals::EVALS,
    table::note,
};

/// Something that can be judged: the folder of a run, or a checkpoint.
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    pub(crate) model: VisionTransformer,
    /// The recipe, if it is a run.
    pub(crate) recipe: Option<Recipe>,
    /// Names of the classes, where they are known: of a run, or of a probe that was kept.
    pub(crate) classes: Option<Vec<String>>,
    /// How texts become its tokens, of a model that reads.
    pub(crate) tokenizer: Option<Tokenizer>,
    /// Whether it is a run that has not come to its end.
    pub(crate) unfinished: bool,
    /// Settings of its predictions that are not its own.
    settings: Vec<String>,
}

impl Candidate {
    /// Its model as one whose routes are looked at.
    ///
    /// - `world`: those who look together
    pub(crate) fn routed<'a>(
        &'a self,
        seed: u64,
        device: &'a Device,
        world: &World,
    ) -> RoutedModel<'a> {
        RoutedModel {
            name: self.name(),
            path: self.path.display().to_string(),
            model: &self.model,
            tokenizer: self.tokenizer.as_ref(),
            device,
            seed: Seed::new(seed),
            world: world.clone(),
        }
    }

    /// Reads a run's model (of an unfinished run the best checkpoint so far), one of our checkpoints,
    /// or one of another project.
    fn read(path: &Path, device: &Device) -> Result<Self> {
        if !path.join("recipe.toml").is_file() {
            let model = load_any(path, device)?;
            let classes = class_names(&path.join("classes.json"), &model)?;
            let tokenizer = tokenizer_of(&model, &[path])?;
            let (path, recipe) = (path.to_owned(), None);
            let (unfinished, settings) = (false, Vec::new());
            return Ok(Self { path, model, recipe, classes, tokenizer, unfinished, settings });
        }
        let (run, recipe) = RunFolder::open(path)?;
        let unfinished = !run.is_finished();
        let checkpoint = checkpoint_of(path)?;
        let model = load_any(&checkpoint, device)?;
        let classes = class_names(&run.file("classes.json"), &model)?;
        let tokenizer = tokenizer_of(&model, &[&checkpoint, path])?;
        let (path, recipe, settings) = (path.to_owned(), Some(recipe), Vec::new());
        Ok(Self { path, model, recipe, classes, tokenizer, unfinished, settings })
    }

    /// All of them, with settings on top of how each makes its predictions.
    pub(crate) fn read_all<'a>(
        paths: impl IntoIterator<Item = &'a PathBuf>,
        settings: &[String],
        device: &Device,
    ) -> Result<Vec<Self>> {
        let read = |path: &PathBuf| {
            let one = Self::read(path, device)?;
            let model = reconfigure(one.model, settings, device)
                .with_context(|| format!("predictions of {}", path.display()))?;
            note_margin(&model.config().image);
            Ok(Self { model, settings: settings.to_vec(), ..one })
        };
        paths.into_iter().map(read).collect()
    }

    /// The same with products computed in a precision.
    pub(crate) fn in_precision(mut self, precision: Precision) -> Self {
        if precision != Precision::F32 {
            self.settings.push(format!("precision={precision}"));
        }
        Self { model: self.model.in_precision(precision), ..self }
    }

    /// The last part of its path.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| self.path.display().to_string())
    }

    /// Tells the recipe, all but its seed, from others; of a checkpoint, its configuration.
    pub(crate) fn fingerprint(&self) -> String {
        let own = match &self.recipe {
            Some(recipe) => fingerprint(recipe),
            None => checksum(format!("{:?}", self.model.config())),
        };
        match self.settings.is_empty() {
            true => own,
            false => checksum(format!("{own} {:?}", self.model.config())),
        }
    }

    /// What evaluations of other seeds are called as well.
    pub(crate) fn label(&self) -> String {
        let own = self.recipe.as_ref().map_or_else(|| self.name(), |recipe| recipe.name.clone());
        match self.settings.is_empty() {
            true => own,
            false => format!("{own} with {}", self.settings.join(", ")),
        }
    }

    /// Whether a report on it belongs into its folder: that of a finished run.
    pub(crate) fn has_folder(&self) -> bool {
        self.recipe.is_some() && !self.unfinished
    }
}

/// The checkpoint that a path means: itself, or of an unfinished run the best so far.
pub(crate) fn checkpoint_of(path: &Path) -> Result<PathBuf> {
    if !path.join("recipe.toml").is_file() {
        return Ok(path.to_owned());
    }
    let (run, _) = RunFolder::open(path)?;
    if run.is_finished() {
        return Ok(path.to_owned());
    }
    let checkpoints = run.checkpoints();
    let best = checkpoints.best()?.map(|best| best.step);
    let Some(step) = best.or(checkpoints.steps()?.last().copied()) else {
        bail!("{} has not come to its first checkpoint yet", path.display());
    };
    note(format!("{} is not finished; taking step {step}", path.display()));
    Ok(checkpoints.at(step))
}

/// Tells a recipe, all but its seed, from others.
pub(crate) fn fingerprint(recipe: &Recipe) -> String {
    checksum(Recipe { seed: 0, ..recipe.clone() }.to_toml())
}

/// The tokenizer beside a model's weights, or in one of the folders; nothing for a model that reads no texts.
pub(crate) fn tokenizer_of(
    model: &VisionTransformer,
    places: &[&Path],
) -> Result<Option<Tokenizer>> {
    if !model.reads() {
        return Ok(None);
    }
    let mut files = places.iter().map(|place| checkpoint::tokenizer_path(place));
    let file = files.find(|file| file.is_file());
    Ok(file.map(|file| Tokenizer::read(&file)).transpose()?)
}

/// The names of a run's classes; fails where they are not as many as its model tells apart. A model that compares
/// images with texts has none of its own, whatever its data have.
fn class_names(path: &Path, model: &VisionTransformer) -> Result<Option<Vec<String>>> {
    let classes = model.config().classes();
    if classes == 0 && model.reads() {
        return Ok(None);
    }
    let bytes = match std::fs::read(path) {
        Err(error)
            if [std::io::ErrorKind::NotFound, std::io::ErrorKind::NotADirectory]
                .contains(&error.kind()) =>
        {
            return Ok(None);
        }
        bytes => bytes.with_context(|| path.display().to_string())?,
    };
    let names: Vec<String> = serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is not a list of names", path.display()))?;
    if names.len() != classes {
        bail!("{} names {} classes, but the model has {classes}", path.display(), names.len());
    }
    Ok(Some(names))
}

/// Fails where the same run or file is named twice, however it is written, or a run and an evaluation of it:
/// it would count twice.
pub(crate) fn check_distinct(paths: &[PathBuf]) -> Result<()> {
    let real = |path: &PathBuf| {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let record = path.file_name().is_some_and(|name| name == "eval.json");
        path.parent().filter(|_| record).map_or(path.clone(), Path::to_owned)
    };
    let within = |a: &Path, b: &Path| a == b || a.starts_with(b.join(EVALS));
    for (place, path) in paths.iter().enumerate() {
        let own = real(path);
        let same = |other: &PathBuf| within(&real(other), &own) || within(&own, &real(other));
        if paths[..place].iter().any(same) {
            bail!("{} is named twice", path.display());
        }
    }
    Ok(())
}

/// All candidates as one system, whose predictions are drawn from a seed where they are drawn at all.
pub(crate) fn system(candidates: Vec<Candidate>, seed: u64, device: &Device) -> Result<System> {
    let (mut models, mut tokenizers) = (Vec::new(), Vec::new());
    for candidate in candidates {
        models.push((candidate.name(), candidate.model));
        tokenizers.push(candidate.tokenizer);
    }
    Ok(System::new(models, device)?.drawn_from(Seed::new(seed)).reading(tokenizers))
}

/// The data of an evaluation.
pub(crate) struct Data {
    pub(crate) spec: DataSpec,
    /// Which of its images training held out, if that is known.
    recipe: Option<DataRecipe>,
    /// Whether a model was trained on it.
    trained_on: bool,
    /// Two models for which different images of it were held out for testing, if there are such.
    conflict: Option<[String; 2]>,
}

/// A part of a data set.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Everything
    All,
    /// The training images, those that training held out among them
    Train,
    /// The images that training held out to choose a checkpoint and a temperature by
    Val,
    /// The test images; a tenth of data without splits
    Test,
}

impl Data {
    /// What the user names, or else what the runs were trained on.
    pub(crate) fn of(
        named: Option<&str>,
        columns: Option<&Columns>,
        candidates: &[Candidate],
    ) -> Result<Self> {
        let first = candidates.first().and_then(|candidate| candidate.recipe.as_ref());
        let resolution = candidates.first().map(|one| one.model.config().image.resolution);
        let resolution = resolution.unwrap_or(Resolution::square(32));
        let recipes = || candidates.iter().filter_map(|one| one.recipe.as_ref());
        let same_name = |recipe: &&Recipe| {
            named.is_none_or(|name| whole_name(name) == whole_name(&recipe.data.name))
        };
        let same = |recipe: &&Recipe| {
            same_name(recipe)
                && columns.is_none_or(|said| recipe.data.columns.as_ref() == Some(said))
        };
        // Of data that is named, any run knows best how it was cut.
        let known = if named.is_some() { recipes().find(same) } else { first.filter(same) };
        if let Some(recipe) = known {
            let mut other = recipes().filter(|other| other.data.name != recipe.data.name);
            if let (Some(other), None) = (other.next(), named) {
                bail!(
                    "the runs were trained on different data ({} and {}); say which to use with --data",
                    recipe.data.name,
                    other.data.name
                );
            }
            // An image that one model held out may be one that another has learned from.
            let all_held_out = candidates.iter().all(|one| {
                one.recipe.as_ref().is_some_and(|other| same_parts(&other.data, &recipe.data))
            });
            let held_out = all_held_out.then(|| recipe.data.clone());
            let cut = |recipe: &Recipe| (recipe.data.columns.clone(), recipe.data.holding_out);
            let other = recipes().filter(same_name).find(|other| cut(other) != cut(recipe));
            let conflict = other.map(|other| [recipe, other].map(|one| one.name.clone()));
            // At the size that the models take now, which may not be that of training.
            let spec = DataSpec { resolution, ..recipe.data_spec() };
            return Ok(Self { spec, recipe: held_out, trained_on: true, conflict });
        }
        let Some(name) = named else {
            bail!("a checkpoint does not know its data; say what to judge it by with --data");
        };
        // As runs remember it, so that evaluations of both can be compared.
        let (name, columns) = (whole_name(name), columns.cloned());
        Ok(Self {
            spec: DataSpec { resolution, columns, ..DataSpec::named(&name) },
            recipe: None,
            trained_on: recipes().any(|recipe| same_name(&recipe)),
            conflict: None,
        })
    }

    /// What models are averaged by: what the user names, or else what all of them were trained on. Its held-out
    /// images are those that every model held out that has learned from it, at any time.
    ///
    /// - `recipes`: of every model, all that it was trained by; none where that is not known
    pub(crate) fn of_soup(
        named: Option<&str>,
        columns: Option<&Columns>,
        recipes: &[Vec<Recipe>],
        resolution: Resolution,
    ) -> Result<Self> {
        let all = || recipes.iter().flatten();
        let name = match (named, all().next()) {
            (Some(name), _) => whole_name(name),
            (None, Some(first)) => {
                let name = whole_name(&first.data.name);
                if let Some(other) = all().find(|other| whole_name(&other.data.name) != name) {
                    bail!(
                        "they were trained on different data ({name} and {}); say which to judge them by with \
                         --data",
                        other.data.name
                    );
                }
                name
            }
            (None, None) => {
                bail!("checkpoints do not know their data; say what to judge them by with --data")
            }
        };
        let learned_from = || all().filter(|recipe| whole_name(&recipe.data.name) == name);
        let cut = |recipe: &Recipe| (recipe.data.columns.clone(), recipe.data.holding_out);
        let same = |recipe: &&Recipe| {
            columns.is_none_or(|said| recipe.data.columns.as_ref() == Some(said))
        };
        let Some(known) = learned_from().find(same) else {
            let spec = DataSpec { resolution, columns: columns.cloned(), ..DataSpec::named(&name) };
            let trained_on = learned_from().next().is_some();
            return Ok(Self { spec, recipe: None, trained_on, conflict: None });
        };
        let all_known = recipes.iter().all(|own| !own.is_empty());
        let alike = learned_from().all(|other| same_parts(&other.data, &known.data));
        let other = learned_from().find(|other| cut(other) != cut(known));
        let conflict = other.map(|other| [known, other].map(|one| one.name.clone()));
        let spec = DataSpec { name, resolution, ..known.data_spec() };
        let recipe = (all_known && alike).then(|| known.data.clone());
        Ok(Self { spec, recipe, trained_on: true, conflict })
    }

    /// A part of it that has several classes, as [`part_of_any`](Self::part_of_any).
    pub(crate) fn part(
        &self,
        wanted: Option<Part>,
        limit: Option<usize>,
    ) -> Result<(Part, Images)> {
        let (part, images) = self.part_of_any(wanted, limit)?;
        if images.data.classes().len() < 2 {
            formats::check_several_classes(&self.spec, &images.data)?;
        }
        Ok((part, images))
    }

    /// A part of it, and which that is: without a wish, all of data without splits of its own that no model
    /// was trained on, else the test images. At most `limit` samples, evenly spread.
    pub(crate) fn part_of_any(
        &self,
        wanted: Option<Part>,
        limit: Option<usize>,
    ) -> Result<(Part, Images)> {
        let unsplit = match wanted {
            None if !self.trained_on => formats::open_unsplit(&self.spec)?,
            _ => None,
        };
        let part = wanted.unwrap_or(if unsplit.is_some() { Part::All } else { Part::Test });
        let name = &self.spec.name;
        let (name, data) = match part {
            Part::Test => {
                self.check_test()?;
                (name.clone(), formats::open(&self.spec, Split::Test)?)
            }
            Part::Train => {
                (format!("{name} (training images)"), formats::open(&self.spec, Split::Train)?)
            }
            Part::Val => {
                let Some(held) = self.held_out()? else {
                    bail!(
                        "--split val are the images that all models held out of training: that is known for \
                         runs of one data set, judged by that, with data.validation above 0 and the same in \
                         all of them"
                    );
                };
                (held.name, held.data)
            }
            Part::All => {
                let data = unsplit.map_or_else(|| formats::open_whole(&self.spec), Ok)?;
                (format!("{name} (all images)"), data)
            }
        };
        Ok((part, Images::new(name, limited(data, limit))))
    }

    /// Refuses to judge models together by images that one of them has learned from.
    fn check_test(&self) -> Result<()> {
        match &self.conflict {
            Some([one, other]) if formats::open_unsplit(&self.spec)?.is_some() => bail!(
                "{} has no splits, and other images of it were held out for testing when {one} was trained \
                 than when {other} was (data.holding_out, data.columns): the test images of one are images \
                 that the other has learned from; judge them one by one, or by other data",
                self.spec.name
            ),
            _ => Ok(()),
        }
    }

    /// Training images that no model has learned from: those that the runs held out.
    pub(crate) fn held_out(&self) -> Result<Option<Images>> {
        let Some(recipe) = &self.recipe else { return Ok(None) };
        let (_, held) = recipe.parts(&formats::open(&self.spec, Split::Train)?);
        let name = format!("held-out images of {}", self.spec.name);
        Ok((!held.is_empty()).then(|| Images::new(name, held)))
    }
}

impl Part {
    /// Why these images are judged by, in words.
    pub(crate) fn reason(self, wanted: Option<Self>) -> &'static str {
        match (self, wanted) {
            (_, Some(_)) => "as --split says",
            (Self::All, None) => "it has no splits, and no model was trained on it",
            (_, None) => "those for testing; --split takes others",
        }
    }
}

/// Whether two recipes hold the same images out.
fn same_parts(a: &DataRecipe, b: &DataRecipe) -> bool {
    let parts = |data: &DataRecipe| {
        let DataRecipe { name, columns, train_samples, world_seed, limit, validation, .. } =
            data.clone();
        let columns = columns.map(|columns| columns.to_string());
        (name, columns, train_samples, world_seed, limit, validation.to_bits(), data.holding_out)
    };
    parts(a) == parts(b)
}

fn limited(data: Shared, limit: Option<usize>) -> Shared {
    limit.map_or_else(|| data.clone(), |limit| Selection::spread(&data, limit))
}

/// Name and path of a data set: `NAME=PATH`, a path alone, or a built-in name.
fn name_and_path(text: &str) -> (String, &str) {
    match text.split_once('=').filter(|_| !Path::new(text).exists()) {
        Some((name, path)) => (name.to_owned(), path),
        None => {
            let last = Path::new(text).file_name().map(|name| name.to_string_lossy().into_owned());
            (last.unwrap_or_else(|| text.to_owned()), text)
        }
    }
}

/// The names of data sets, and what each means from any working folder.
pub(crate) fn data_meanings(texts: &[String]) -> BTreeMap<String, String> {
    let meaning = |text: &String| {
        let (name, path) = name_and_path(text);
        (name, whole_name(path))
    };
    texts.iter().map(meaning).collect()
}

/// What a data set is called.
pub(crate) fn data_name(text: &str) -> String {
    name_and_path(text).0
}

/// Refuses data sets that would have one name.
fn check_data_names(texts: &[String]) -> Result<()> {
    for (place, text) in texts.iter().enumerate() {
        let same = |other: &&String| data_name(other) == data_name(text);
        if let Some(other) = texts[..place].iter().find(same) {
            bail!(
                "{other} and {text} would both be called {}; name them as NAME=PATH",
                data_name(text)
            );
        }
    }
    Ok(())
}

/// Out-of-distribution data sets, each with a name of its own.
pub(crate) fn ood_sets(
    texts: &[String],
    resolution: Resolution,
    limit: Option<usize>,
) -> Result<Vec<Images>> {
    check_data_names(texts)?;
    texts.iter().map(|text| ood_set(text, resolution, limit)).collect()
}

/// Training and test images of data sets that features are judged by from a few shots, each with a name of its own;
/// of data without splits a tenth is for the test.
pub(crate) fn few_shot_sets(
    texts: &[String],
    resolution: Resolution,
    limit: Option<usize>,
) -> Result<Vec<FewShotSet>> {
    check_data_names(texts)?;
    let set = |text: &String| {
        let (name, path) = name_and_path(text);
        let spec = DataSpec { resolution, ..DataSpec::named(&whole_name(path)) };
        let (train, test) = formats::open_splits(&spec)
            .with_context(|| format!("data set {name} for a few shots"))?;
        formats::check_several_classes(&spec, &train)?;
        let images = |data: Shared| Images::new(name.clone(), data);
        Ok(FewShotSet { train: images(train), test: images(limited(test, limit)) })
    };
    texts.iter().map(set).collect()
}

fn ood_set(text: &str, resolution: Resolution, limit: Option<usize>) -> Result<Images> {
    let (name, path) = name_and_path(text);
    let spec = DataSpec { resolution, ..DataSpec::named(path) };
    let data = formats::open(&spec, Split::Test)
        .or_else(|error| formats::open(&spec, Split::Train).map_err(|_| error))
        .with_context(|| format!("out-of-distribution data set {name}"))?;
    Ok(Images::new(name, limited(data, limit)))
}

/// Differences of names that a message has room for.
const SHOWN: usize = 3;

/// Fails where the names of a model's classes are not those of the data: its figures would be of other classes
/// than they say.
pub(crate) fn check_names(candidates: &[Candidate], data: &Images) -> Result<()> {
    for candidate in candidates {
        let classes = match candidate.model.config().head.segmenter() {
            Some(_) => data.data.pixel_classes().unwrap_or_default(),
            None => data.data.classes(),
        };
        let names = candidate.classes.as_deref().unwrap_or_default();
        // That there are more or less is said elsewhere.
        let pairs = names.iter().zip(classes).filter(|_| names.len() == classes.len());
        let different: Vec<(usize, (&String, &String))> =
            pairs.enumerate().filter(|(_, (own, other))| own != other).collect();
        if different.is_empty() {
            continue;
        }
        let (model, data) = (candidate.name(), &data.name);
        let shown = different.iter().take(SHOWN).map(|(place, (own, other))| {
            format!("class {place} is \"{own}\" for {model} and \"{other}\" in {data}")
        });
        let mut shown = shown.collect::<Vec<String>>().join("; ");
        if different.len() > SHOWN {
            shown += &format!("; and {} more", different.len() - SHOWN);
        }
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort_unstable();
            names
        };
        let hint = match sorted(names) == sorted(classes) {
            true => {
                "they are the same in another order, in which --class-subset finds them by their names"
            }
            false => "where they mean the same, say so with --ignore-names",
        };
        bail!(
            "{} of the {} classes have other names: {shown}; {hint}",
            different.len(),
            classes.len()
        );
    }
    Ok(())
}
