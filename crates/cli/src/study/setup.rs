//! What a study is.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use omma_base::{
    files::{FolderLock, write_atomically},
    range::{OutOfRange, Range},
};
use omma_train::{Recipe, recipe::check_name};
use serde::{Deserialize, Serialize};

use super::scans::Scan;
use crate::{commands::upcycle::Start, names::slug};

/// Names, and files by their names, of the studies in `studies/`.
pub(crate) const STUDIES: &[(&str, &[(&str, &str)])] = &[
    (
        "e3",
        &[
            ("study.toml", include_str!("../../studies/e3/study.toml")),
            ("vit.toml", include_str!("../../studies/e3/vit.toml")),
            ("vmoe.toml", include_str!("../../studies/e3/vmoe.toml")),
        ],
    ),
    (
        "limoe",
        &[
            ("study.toml", include_str!("../../studies/limoe/study.toml")),
            ("dense.toml", include_str!("../../studies/limoe/dense.toml")),
            ("sparse.toml", include_str!("../../studies/limoe/sparse.toml")),
        ],
    ),
    (
        "soft",
        &[
            ("study.toml", include_str!("../../studies/soft/study.toml")),
            ("layer.toml", include_str!("../../studies/soft/layer.toml")),
        ],
    ),
    (
        "soft-cifar10",
        &[
            ("study.toml", include_str!("../../studies/soft-cifar10/study.toml")),
            ("vit.toml", include_str!("../../studies/soft-cifar10/vit.toml")),
        ],
    ),
    (
        "vimoe",
        &[
            ("study.toml", include_str!("../../studies/vimoe/study.toml")),
            ("tail.toml", include_str!("../../studies/vimoe/tail.toml")),
        ],
    ),
    (
        "vimoe-segment",
        &[
            ("study.toml", include_str!("../../studies/vimoe-segment/study.toml")),
            ("tail.toml", include_str!("../../studies/vimoe-segment/tail.toml")),
        ],
    ),
];

const STUDY: &str = "study.toml";
/// A model of as many blocks as most checkpoints.
const STAND_IN: &str = "model.preset=vit-s16";
/// Models that are trained for a row of the table.
const MODELS: Range = Range::of(1.0, 1_000.0);

/// `study.toml`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Study {
    pub(crate) name: String,
    pub(crate) about: String,
    /// Seeds per system.
    pub(crate) seeds: usize,
    /// The system that gains are measured against.
    pub(crate) baseline: String,
    /// Test images per corruption and severity; 0 leaves corruptions out.
    #[serde(default)]
    pub(crate) shift_samples: usize,
    /// Images that systems are judged by, evenly spread over the data; 0 for all.
    #[serde(default)]
    pub(crate) limit: usize,
    /// What else `omma eval` is told of every system.
    #[serde(default)]
    pub(crate) eval: Vec<String>,
    /// Other data that all systems are judged by as well, each with a table of its own.
    #[serde(default)]
    pub(crate) also: Vec<String>,
    /// Whether all systems begin from a checkpoint, which the user gives.
    #[serde(default)]
    pub(crate) from_checkpoint: bool,
    /// What upcycled experts start as.
    #[serde(default)]
    pub(crate) upcycle_start: Start,
    /// The systems whose losses are drawn step by step, by their labels.
    #[serde(default)]
    pub(crate) curves: Vec<String>,
    /// Figures of scores over a setting.
    #[serde(default)]
    pub(crate) scans: Vec<Scan>,
    pub(crate) systems: Vec<StudySystem>,
    /// All files of the study, by their names.
    #[serde(skip)]
    files: Vec<(String, String)>,
    /// Where they are; nowhere for a study that comes with the program.
    #[serde(skip)]
    folder: PathBuf,
}

/// What a user may set beside the study's files, and everything in its folder depends on.
#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    pub(crate) seeds: usize,
    /// On top of all recipes.
    pub(crate) settings: Vec<String>,
    /// The checkpoint that all systems begin from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) init: Option<String>,
    /// Out-of-distribution data sets, by their names.
    #[serde(default, alias = "outside")]
    pub(crate) ood: BTreeMap<String, String>,
}

const OPTIONS: &str = "options.toml";

/// One row of the study's table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StudySystem {
    pub(crate) label: String,
    /// A file beside `study.toml`.
    pub(crate) recipe: String,
    /// On top of the recipe.
    #[serde(default)]
    pub(crate) settings: Vec<String>,
    /// Experts that it is given before it is trained, in a study that begins from a checkpoint: settings of
    /// `omma upcycle`.
    #[serde(default)]
    pub(crate) upcycle: Vec<String>,
    /// Models that are trained for themselves and judged together.
    #[serde(default = "one")]
    pub(crate) ensemble: usize,
}

fn one() -> usize {
    1
}

impl StudySystem {
    /// Seeds of the models of the ensemble with a number. The first is the number itself, so that an
    /// ensemble has its first model in common with the single models of its recipe.
    pub(crate) fn seeds(&self, number: usize, seeds: usize) -> Vec<usize> {
        (0..self.ensemble.max(1)).map(|model| number + model * seeds).collect()
    }
}

impl Study {
    /// A study by its name, or by its folder.
    pub(crate) fn find(name: &str) -> Result<Self> {
        if let Some((_, files)) = STUDIES.iter().find(|(known, _)| *known == name) {
            let own = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
            return Self::parse(files.iter().map(own).collect(), Path::new(""));
        }
        let folder = Path::new(name);
        if !folder.join(STUDY).is_file() {
            let known: Vec<&str> = STUDIES.iter().map(|(name, _)| *name).chain(["norm"]).collect();
            bail!(
                "there is no study \"{name}\"; there are {}, and a study of your own is a folder with \
                 {STUDY} in it",
                known.join(", ")
            );
        }
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "toml") {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path);
                files.push((name, text.with_context(|| path.display().to_string())?));
            }
        }
        files.sort();
        Self::parse(files, folder)
    }

    fn parse(files: Vec<(String, String)>, folder: &Path) -> Result<Self> {
        let text = files.iter().find(|(name, _)| name == STUDY).map(|(_, text)| text.clone());
        let mut study: Self = toml::from_str(&text.unwrap_or_default()).context(STUDY)?;
        study.files = files;
        study.folder = folder.to_owned();
        study.check().context(STUDY)?;
        check_name(&study.name).context(STUDY)?;
        for system in &study.systems {
            study.recipe(system, &[]).with_context(|| format!("system {}", system.label))?;
        }
        let without = |system: &&StudySystem| !system.upcycle.is_empty() && !study.from_checkpoint;
        if let Some(system) = study.systems.iter().find(without) {
            bail!(
                "{STUDY}: {} is to be upcycled, and nothing is said to begin from; add from_checkpoint = true",
                system.label
            );
        }
        let mut slugs: Vec<String> = study.systems.iter().map(|one| slug(&one.label)).collect();
        slugs.sort_unstable();
        if slugs.first().is_some_and(String::is_empty)
            || slugs.windows(2).any(|two| two[0] == two[1])
        {
            bail!(
                "{STUDY}: labels must differ in their letters (a to z) and digits, which name folders"
            );
        }
        if study.systems.iter().all(|system| system.label != study.baseline) {
            bail!("{STUDY}: the baseline \"{}\" is none of the systems", study.baseline);
        }
        let unknown = |label: &&String| study.systems.iter().all(|system| system.label != **label);
        if let Some(label) = study.curves.iter().find(unknown) {
            bail!("{STUDY}: \"{label}\" of curves is none of the systems");
        }
        let known = |label: &str| study.systems.iter().any(|system| system.label == label);
        study.scans.iter().try_for_each(|scan| scan.check(known)).context(STUDY)?;
        Ok(study)
    }

    /// Holds every number to its range.
    fn check(&self) -> Result<(), OutOfRange> {
        let held = |key: String, value: usize, range: Range| match range.contains(value as f64) {
            true => Ok(()),
            false => Err(OutOfRange { key, value: value.to_string(), range }),
        };
        held("seeds".to_owned(), self.seeds, MODELS)?;
        held("shift_samples".to_owned(), self.shift_samples, Range::of(0.0, 1e9))?;
        held("limit".to_owned(), self.limit, Range::of(0.0, 1e9))?;
        for system in &self.systems {
            held(format!("ensemble of {}", system.label), system.ensemble, MODELS)?;
        }
        Ok(())
    }

    /// The recipe of a system, with all that is on top of it.
    pub(crate) fn recipe(&self, system: &StudySystem, settings: &[String]) -> Result<Recipe> {
        let file = self.files.iter().find(|(name, _)| *name == system.recipe);
        let Some((name, text)) = file else {
            bail!("there is no {} beside {STUDY}", system.recipe);
        };
        // What is not there yet is stood in for: only what is not the model is looked at.
        let stand_in = self.from_checkpoint.then(|| STAND_IN.to_owned());
        let settings: Vec<&String> =
            stand_in.iter().chain(&system.settings).chain(settings).collect();
        Ok(Recipe::parse(text, &self.folder.join(name), &settings)?)
    }

    /// Puts the study's files into its folder, and owns it; fails if another process does, or if that holds another study, or the same with
    /// other options.
    pub(crate) fn settle(&self, folder: &Path, options: &Options) -> Result<FolderLock> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let owned = FolderLock::take(folder).with_context(|| folder.display().to_string())?;
        let write = |path: &Path, text: &str| {
            write_atomically(path, |file| std::fs::write(file, text))
                .with_context(|| path.display().to_string())
        };
        for (name, text) in &self.files {
            let path = folder.join(name);
            match std::fs::read_to_string(&path) {
                Ok(old) if old != *text => bail!(
                    "{} is of another study, or of another version of it; choose another folder with \
                     --out",
                    path.display()
                ),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => write(&path, text)?,
                Err(error) => return Err(error).with_context(|| path.display().to_string()),
            }
        }
        let path = folder.join(OPTIONS);
        let known: Option<Options> = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => Some(toml::from_str(&text?).with_context(|| path.display().to_string())?),
        };
        let Some(mut known) = known else {
            write(&path, &toml::to_string(options)?)?;
            return Ok(owned);
        };
        let chosen =
            |options: &Options| (options.seeds, options.settings.clone(), options.init.clone());
        if chosen(&known) != chosen(options) {
            let both = [&known, options].map(|options| {
                let from =
                    options.init.iter().map(|init| format!(" from {init}")).collect::<String>();
                format!("{} seeds and {:?}{from}", options.seeds, options.settings)
            });
            bail!(
                "{} has a study with {}, now it is {}; choose another folder with --out",
                folder.display(),
                both[0],
                both[1]
            );
        }
        // Others may come later; one of the same name would be taken for the one that was looked at.
        for (name, data) in &options.ood {
            match known.ood.insert(name.clone(), data.clone()) {
                Some(old) if old != *data => bail!(
                    "{}: {name} was {old} and is {data} now; give it another name as NAME=PATH",
                    folder.display()
                ),
                _ => {}
            }
        }
        write(&path, &toml::to_string(&known)?)?;
        Ok(owned)
    }

    /// Where a model of a system is trained. Systems that differ in nothing but how many models they
    /// have share them.
    pub(crate) fn run_folder(&self, folder: &Path, system: &StudySystem, seed: usize) -> PathBuf {
        let same = |other: &&StudySystem| {
            other.recipe == system.recipe
                && other.settings == system.settings
                && other.upcycle == system.upcycle
        };
        let first = self.systems.iter().find(same).unwrap_or(system);
        folder.join("runs").join(format!("{}-{seed}", slug(&first.label)))
    }

    /// Where the model is that a system of upcycled experts begins from. Systems of the same experts share it.
    pub(crate) fn start_folder(&self, folder: &Path, system: &StudySystem, seed: usize) -> PathBuf {
        let same = |other: &&StudySystem| other.upcycle == system.upcycle;
        let first = self.systems.iter().find(same).unwrap_or(system);
        folder.join("starts").join(format!("{}-{seed}", slug(&first.label)))
    }

    /// Where a system is judged.
    ///
    /// - `by`: other data than it was trained on
    pub(crate) fn eval_folder(
        &self,
        folder: &Path,
        system: &StudySystem,
        seed: usize,
        by: Option<&str>,
    ) -> PathBuf {
        let evals = by.map_or("evals".to_owned(), |data| format!("evals-{}", slug(data)));
        folder.join(evals).join(format!("{}-{seed}", slug(&system.label)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_studies_are_whole() {
        for (name, _) in STUDIES {
            let study = Study::find(name).unwrap();
            assert_eq!(study.name, *name);
            for system in &study.systems {
                study.recipe(system, &[]).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            }
            assert!(study.systems.iter().any(|system| system.label == study.baseline), "{name}");
        }
        assert!(Study::find("e4").err().unwrap().to_string().contains("e3"));
    }

    #[test]
    fn an_ensemble_has_its_first_model_in_common_with_the_single_ones() {
        let study = Study::find("e3").unwrap();
        let folder = Path::new("x");
        let of = |label: &str| study.systems.iter().find(|s| s.label == label).unwrap();
        let (single, pair) = (of("V-MoE (K=1)"), of("V-MoE (K=1) ensemble of 2"));
        assert_eq!(pair.seeds(1, 3), [1, 4]);
        assert_eq!(
            study.run_folder(folder, single, 1),
            study.run_folder(folder, pair, pair.seeds(1, 3)[0])
        );
        let evals = |system, by| study.eval_folder(folder, system, 1, by);
        assert_ne!(evals(single, None), evals(pair, None));
        assert_ne!(evals(single, None), evals(single, Some("world-unseen")));
    }

    #[test]
    fn a_name_means_one_data_set() {
        let folder = tempfile::tempdir().unwrap();
        let study = Study::find("e3").unwrap();
        let settle = |ood: &[(&str, &str)]| {
            let own = |(name, path): &(&str, &str)| ((*name).to_owned(), (*path).to_owned());
            let ood = ood.iter().map(own).collect();
            let options = Options { seeds: 1, settings: Vec::new(), init: None, ood };
            study.settle(folder.path(), &options).map(drop)
        };
        settle(&[("x", "/a")]).unwrap();
        settle(&[("y", "/b")]).unwrap();
        let message = settle(&[("x", "/c")]).unwrap_err().to_string();
        assert!(message.contains("x was /a and is /c"), "{message}");
        settle(&[("x", "/a"), ("y", "/b")]).unwrap();
    }

    #[test]
    fn a_study_begins_from_one_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let study = Study::find("vimoe").unwrap();
        assert!(study.from_checkpoint);
        let settle = |init: &str| {
            let (settings, ood) = (Vec::new(), BTreeMap::new());
            let options = Options { seeds: 1, settings, init: Some(init.to_owned()), ood };
            study.settle(folder.path(), &options).map(drop)
        };
        settle("/small").unwrap();
        settle("/small").unwrap();
        let message = settle("/other").unwrap_err().to_string();
        assert!(message.contains("from /small") && message.contains("from /other"), "{message}");
        let sparse: Vec<&StudySystem> =
            study.systems.iter().filter(|system| !system.upcycle.is_empty()).collect();
        let starts: std::collections::BTreeSet<PathBuf> =
            sparse.iter().map(|system| study.start_folder(folder.path(), system, 0)).collect();
        assert_eq!(starts.len(), sparse.len(), "they differ in their experts");
    }

    /// Paper 003 §3.1 and eq. 1, §6.1 (0.01) and §6.2 (0.001).
    #[test]
    fn studies_of_vimoe_have_the_experts_of_paper_003() {
        for (name, weight) in [("vimoe", "0.01"), ("vimoe-segment", "0.001")] {
            let study = Study::find(name).unwrap();
            assert_eq!(study.upcycle_start, Start::Copies);
            let sparse = study.systems.iter().filter(|system| !system.upcycle.is_empty());
            let balance = format!("moe.balance_loss={weight}");
            let settings = [
                &balance,
                "moe.importance_loss=0",
                "moe.load_loss=0",
                "moe.noise=0",
                "moe.capacity_ratio=none",
                "moe.k=1",
            ];
            for system in sparse {
                let said = |setting: &&str| system.upcycle.iter().any(|own| own == setting);
                assert!(settings.iter().all(said), "{}: {:?}", system.label, system.upcycle);
            }
        }
    }

    /// Paper 004 E.1 and E.2: numbers of experts at a fixed total of hidden units; only a layer's own choices of 32
    /// experts and more are rounded down.
    #[test]
    fn studies_of_soft_moe_keep_the_total_of_expert_parameters() {
        for (name, total, most) in [("soft", 784, 9), ("soft-cifar10", 1_024, 6)] {
            let study = Study::find(name).unwrap();
            let experts: Vec<usize> = (1..=most).map(|power| 1 << power).collect();
            for (system, experts) in study.systems.iter().zip(&experts) {
                let recipe = study.recipe(system, &[]).unwrap();
                let moe = recipe.model.moe().unwrap();
                assert_eq!(system.label, format!("n={experts}"));
                assert_eq!((moe.router.experts, moe.hidden), (*experts, Some(total / experts)));
                assert!(!moe.residual && !recipe.train.linear_baseline);
            }
            assert_eq!(study.systems.len(), experts.len());
            assert!(study.eval[0].starts_with("--subsets"));
        }
    }

    #[test]
    fn experts_without_anything_to_begin_from_are_refused() {
        let text = "name = \"x\"\nabout = \"\"\nseeds = 1\nbaseline = \"a\"\n[[systems]]\nlabel = \"a\"\n\
                    recipe = \"r.toml\"\nupcycle = [\"moe.experts=4\"]\n";
        let recipe = "name = \"r\"\nabout = \"\"\nbase = \"vit\"\n";
        let files = [(STUDY, text), ("r.toml", recipe)];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec();
        let message = Study::parse(files, Path::new("")).err().unwrap().to_string();
        assert!(message.contains("from_checkpoint"), "{message}");
    }

    #[test]
    fn figures_of_systems_that_do_not_exist_are_refused() {
        let systems = "[[systems]]\nlabel = \"a\"\nrecipe = \"r.toml\"\n";
        let top = "name = \"x\"\nabout = \"\"\nseeds = 1\nbaseline = \"a\"\n";
        let recipe = "name = \"r\"\nabout = \"\"\nbase = \"vit\"\n";
        let parsed = |figure: &str| {
            let text = format!("{top}{figure}{systems}");
            let files = [(STUDY, text.as_str()), ("r.toml", recipe)];
            let files = files.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec();
            Study::parse(files, Path::new(""))
        };
        let scan = |label: &str| {
            format!(
                "[[scans]]\ntitle = \"t\"\nx = \"L\"\n[[scans.lines]]\nlabel = \"l\"\n\
                 points = [[0, \"{label}\"]]\n"
            )
        };
        assert!(parsed("curves = [\"a\"]\n").is_ok() && parsed(&scan("a")).is_ok());
        for figure in ["curves = [\"b\"]\n", &scan("b")] {
            let message = format!("{:#}", parsed(figure).err().unwrap());
            assert!(
                message.contains("\"b\"") && message.contains("none of the systems"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_study_of_an_earlier_version_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let old = "seeds = 1\nsettings = []\n\n[outside]\nx = \"/a\"\n";
        std::fs::write(folder.path().join(OPTIONS), old).unwrap();
        let ood = BTreeMap::from([("x".to_owned(), "/b".to_owned())]);
        let options = Options { seeds: 1, settings: Vec::new(), init: None, ood };
        let settled = Study::find("e3").unwrap().settle(folder.path(), &options).map(drop);
        let message = settled.unwrap_err().to_string();
        assert!(message.contains("x was /a and is /b"), "{message}");
    }

    #[test]
    fn no_text_makes_it_panic() {
        let files = |name: &str| {
            let (_, files) = STUDIES.iter().find(|(known, _)| *known == name).unwrap();
            files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        };
        let right: Vec<(String, String)> = files("e3").collect();
        let text = |name: &str| right.iter().find(|(own, _)| own == name).unwrap().1.clone();
        let seeds = vec![text(STUDY).into_bytes()];
        let target = omma_fuzz::Target { name: STUDY, seeds, containers: &[], cases: 100 };
        target.run(|path| {
            let Ok(text) = std::fs::read_to_string(path) else { return };
            let mut files = right.clone();
            files
                .iter_mut()
                .filter(|(name, _)| name == STUDY)
                .for_each(|file| file.1 = text.clone());
            if let Ok(study) = Study::parse(files, Path::new("")) {
                let system = &study.systems[0];
                let seeds = system.seeds(0, study.seeds);
                assert!(!seeds.is_empty());
                let _ = study.run_folder(Path::new("x"), system, seeds[0]);
            }
        });
    }
}
