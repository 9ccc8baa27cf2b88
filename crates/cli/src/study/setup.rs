//! What a study is.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use omma_base::range::{OutOfRange, Range};
use omma_train::{recipe::check_name, run::RunFolder};
use serde::Deserialize;

use super::{Options, StudySystem, builtin::STUDIES, scans::Scan};
use crate::{commands::upcycle::Start, names::slug};

pub(super) const STUDY: &str = "study.toml";
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
    /// Checkpoints of every run that stay once it has come to its end, beside its model; those that its recipe
    /// keeps if not given.
    #[serde(default)]
    pub(crate) keep: Option<usize>,
    /// Data sets that features are judged by from a few images of each class (paper 000 App. A.5), as NAME=PATH or
    /// by a built-in name.
    #[serde(default)]
    pub(crate) few_shot: Vec<String>,
    /// How many images that is.
    #[serde(default = "ten")]
    pub(crate) shots: Vec<usize>,
    /// Whether a table and figures say what trainings took: seconds, FLOPs, tokens without room, load.
    #[serde(default)]
    pub(crate) training: bool,
    /// Whether systems that begin from no other one begin from a checkpoint, which the user gives.
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
    pub(super) files: Vec<(String, String)>,
    /// Where they are; nowhere for a study that comes with the program.
    #[serde(skip)]
    pub(super) folder: PathBuf,
}

fn ten() -> Vec<usize> {
    vec![10]
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

    pub(super) fn parse(files: Vec<(String, String)>, folder: &Path) -> Result<Self> {
        let text = files.iter().find(|(name, _)| name == STUDY).map(|(_, text)| text.clone());
        let mut study: Self = toml::from_str(&text.unwrap_or_default()).context(STUDY)?;
        study.files = files;
        study.folder = folder.to_owned();
        study.check().context(STUDY)?;
        check_name(&study.name).context(STUDY)?;
        study.check_chain().context(STUDY)?;
        for system in &study.systems {
            study
                .recipe(system, &Options::default())
                .with_context(|| format!("system {}", system.label))?;
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
        let known = |label: &str| study.judged().any(|system| system.label == label);
        if !known(&study.baseline) {
            bail!("{STUDY}: the baseline \"{}\" is none of the systems", study.baseline);
        }
        if let Some(label) = study.curves.iter().find(|label| !known(label)) {
            bail!("{STUDY}: \"{label}\" of curves is none of the systems");
        }
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
        held("keep".to_owned(), self.keep.unwrap_or_default(), Range::of(0.0, 1e6))?;
        for shots in &self.shots {
            held("shots".to_owned(), *shots, Range::of(1.0, 1e6))?;
        }
        for system in &self.systems {
            held(format!("ensemble of {}", system.label), system.ensemble, MODELS)?;
        }
        Ok(())
    }

    /// A file of the study, by its name.
    pub(super) fn file(&self, name: &str) -> Result<(&String, &String)> {
        let file = self.files.iter().find(|(own, _)| *own == name);
        let Some((name, text)) = file else { bail!("there is no {name} beside {STUDY}") };
        Ok((name, text))
    }

    /// Removes the checkpoints of a run that are not to stay.
    pub(crate) fn lighten(&self, run: &Path) -> Result<()> {
        let Some(keep) = self.keep else { return Ok(()) };
        let (run, _) = RunFolder::open(run)?;
        match run.checkpoints().steps()?.len() > keep {
            true => Ok(run.own()?.checkpoints().keep_only(keep)?),
            false => Ok(()),
        }
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
                let recipe = study.recipe(system, &Options::default());
                recipe.unwrap_or_else(|error| panic!("{name}: {error:#}"));
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
        let (one, both) = (study.models(single, 1, &(0..3)), study.models(pair, 1, &(0..3)));
        assert_eq!(both.iter().map(|model| model.seed).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(study.run_folder(folder, &one[0]), study.run_folder(folder, &both[0]));
        let evals = |system, by| study.eval_folder(folder, system, 1, by);
        assert_ne!(evals(single, None), evals(pair, None));
        assert_ne!(evals(single, None), evals(single, Some("world-unseen")));
    }

    #[test]
    fn a_study_begins_from_one_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let study = Study::find("vimoe").unwrap();
        assert!(study.from_checkpoint);
        let settle = |init: &str| {
            let options = Options { seeds: 1, init: Some(init.to_owned()), ..Options::default() };
            study.settle(folder.path(), &options).map(drop)
        };
        settle("/small").unwrap();
        settle("/small").unwrap();
        let message = settle("/other").unwrap_err().to_string();
        assert!(message.contains("from /small") && message.contains("from /other"), "{message}");
        let sparse: Vec<&StudySystem> =
            study.systems.iter().filter(|system| !system.upcycle.is_empty()).collect();
        let starts: std::collections::BTreeSet<PathBuf> = sparse
            .iter()
            .map(|one| study.start_folder(folder.path(), &study.models(one, 0, &(0..1))[0]))
            .collect();
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
                let recipe = study.recipe(system, &Options::default()).unwrap();
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
        let message = format!("{:#}", Study::parse(files, Path::new("")).err().unwrap());
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
                let stages = study.stages(&(0..study.seeds));
                assert!(!stages.is_empty());
                let _ = study.run_folder(Path::new("x"), &stages[0][0]);
            }
        });
    }
}
