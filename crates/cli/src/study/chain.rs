//! Which models a study trains, what each of them begins from, and where they are.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use omma_model::{ModelConfig, checkpoint, preset};
use omma_train::Recipe;

use super::{FromSeed, Options, Study, StudySystem};
use crate::names::slug;

/// A model of as many blocks as most checkpoints.
const STAND_IN: &str = "vit-s16";

/// One training of a study.
#[derive(Clone, Copy)]
pub(crate) struct Model<'a> {
    pub(crate) system: &'a StudySystem,
    pub(crate) seed: usize,
    /// The seed of the model that it begins from.
    from: usize,
}

impl Model<'_> {
    /// What tells it from other models of the same training.
    fn number(&self) -> String {
        match self.from {
            0 => self.seed.to_string(),
            from => format!("{}-of-{from}", self.seed),
        }
    }
}

impl Study {
    /// The models of a system that are judged together, for one of the study's seeds, `numbers`. The first has that
    /// seed itself, so that an ensemble has its first model in common with the single models of its recipe; the
    /// others have seeds after all of the study's.
    pub(crate) fn models<'a>(
        &'a self,
        system: &'a StudySystem,
        number: usize,
        numbers: &Range<usize>,
    ) -> Vec<Model<'a>> {
        let places = 0..system.ensemble.max(1);
        places.map(|place| self.model(system, number + place * numbers.end, place)).collect()
    }

    fn model<'a>(&'a self, system: &'a StudySystem, seed: usize, place: usize) -> Model<'a> {
        let from = match system.from_seed {
            _ if system.from.is_none() => 0,
            FromSeed::First => 0,
            FromSeed::Place => place,
            FromSeed::Own => seed,
        };
        Model { system, seed, from }
    }

    /// The system that another begins from.
    pub(crate) fn upstream(&self, system: &StudySystem) -> Option<&StudySystem> {
        let from = system.from.as_ref()?;
        self.systems.iter().find(|other| other.label == *from)
    }

    /// The model that another begins from.
    pub(crate) fn upstream_of(&self, model: &Model) -> Option<Model<'_>> {
        let system = self.upstream(model.system)?;
        Some(self.model(system, model.from, 0))
    }

    /// Whether other systems begin from it.
    pub(crate) fn is_upstream(&self, system: &StudySystem) -> bool {
        self.systems.iter().any(|other| other.from.as_ref() == Some(&system.label))
    }

    /// Systems that have a row in the table.
    pub(crate) fn judged(&self) -> impl Iterator<Item = &StudySystem> {
        self.systems.iter().filter(|system| system.judged)
    }

    /// Systems one after the other until one begins from none.
    fn depth(&self, system: &StudySystem) -> usize {
        std::iter::successors(self.upstream(system), |system| self.upstream(system)).count()
    }

    /// Every model that is to be trained, each once, in stages: whatever one begins from is in an earlier stage.
    pub(crate) fn stages(&self, numbers: &Range<usize>) -> Vec<Vec<Model<'_>>> {
        let mut stages: Vec<Vec<Model>> = Vec::new();
        let root = Path::new("");
        let systems = |number: usize| self.judged().map(move |system| (number, system));
        for (number, system) in numbers.clone().flat_map(systems) {
            for model in self.models(system, number, numbers) {
                for model in std::iter::successors(Some(model), |model| self.upstream_of(model)) {
                    let depth = self.depth(model.system);
                    stages.resize_with(stages.len().max(depth + 1), Vec::new);
                    let run = self.run_folder(root, &model);
                    if stages[depth].iter().all(|other| self.run_folder(root, other) != run) {
                        stages[depth].push(model);
                    }
                }
            }
        }
        stages
    }

    /// Where a model is trained. Systems that differ in nothing but how many models they have, or how these are
    /// judged, share them.
    pub(crate) fn run_folder(&self, folder: &Path, model: &Model) -> PathBuf {
        let same = |other: &&StudySystem| other.trains_as(model.system);
        let first = self.systems.iter().find(same).unwrap_or(model.system);
        folder.join("runs").join(format!("{}-{}", slug(&first.label), model.number()))
    }

    /// Where the model is that a training begins from once it is prepared. Systems of the same preparations share
    /// it.
    pub(crate) fn start_folder(&self, folder: &Path, model: &Model) -> PathBuf {
        let same = |other: &&StudySystem| other.begins_as(model.system);
        let first = self.systems.iter().find(same).unwrap_or(model.system);
        folder.join("starts").join(format!("{}-{}", slug(&first.label), model.number()))
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

    /// The recipe of a system with all that is on top of it. Of one that begins from another, the model is what
    /// becomes of that one's; of one that begins from a checkpoint that is not known yet, only what is not the
    /// model is meant.
    pub(crate) fn recipe(&self, system: &StudySystem, options: &Options) -> Result<Recipe> {
        let (name, text) = self.file(&system.recipe)?;
        let settings = options.settings_of(self, system);
        let settings: Vec<&String> = system.settings.iter().chain(&settings).collect();
        let path = self.folder.join(name);
        let begins = self.beginning(system, options);
        match begins.with_context(|| format!("what {} begins from", system.label))? {
            Some(model) => Ok(Recipe::parse_from(text, &path, &settings, model)?),
            None => Ok(Recipe::parse(text, &path, &settings)?),
        }
    }

    /// The model that a system begins from, once it is prepared.
    fn beginning(&self, system: &StudySystem, options: &Options) -> Result<Option<ModelConfig>> {
        if self.from_checkpoint && options.init.is_none() {
            return Ok(Some(preset(STAND_IN)?));
        }
        let model = match (self.upstream(system), &options.init) {
            (Some(upstream), _) => self.recipe(upstream, options)?.model,
            (None, Some(init)) => checkpoint::summary(Path::new(init))?.config,
            (None, None) => return Ok(None),
        };
        system.prepared(model).map(Some)
    }

    /// Refuses systems that begin from what is none, or is not one model, or in a circle.
    pub(super) fn check_chain(&self) -> Result<()> {
        for system in &self.systems {
            let label = &system.label;
            system.check_beginning(self.from_checkpoint || system.from.is_some())?;
            if let Some(from) = &system.from {
                match self.upstream(system) {
                    None => bail!("{label} is from \"{from}\", which is none of the systems"),
                    Some(upstream) if upstream.ensemble > 1 => bail!(
                        "{label} is from \"{from}\", which is an ensemble; name a system of one of its models"
                    ),
                    Some(_) => {}
                }
            }
            let above = std::iter::successors(self.upstream(system), |one| self.upstream(one));
            if above.take(self.systems.len()).any(|one| one.label == *label) {
                bail!("{label} begins from itself, by way of what it is from");
            }
            if !system.judged && !self.is_upstream(system) {
                bail!("{label} is not judged, and nothing begins from it");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::setup::STUDY;

    const UPSTREAM: &str =
        "name = \"up\"\nabout = \"\"\n[model]\npreset = \"vmoe-tiny\"\nmoe.k = 2\n";
    const FINE: &str = "name = \"fine\"\nabout = \"\"\n[model]\nmoe.dropout = 0.1\n";

    fn parse(systems: &str) -> Result<Study> {
        let top = "name = \"x\"\nabout = \"\"\nseeds = 2\nbaseline = \"a\"\n";
        let files = [
            (STUDY, format!("{top}{systems}").as_str()),
            ("up.toml", UPSTREAM),
            ("fine.toml", FINE),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()));
        Study::parse(files.to_vec(), Path::new(""))
    }

    fn system(label: &str, more: &str) -> String {
        format!("[[systems]]\nlabel = \"{label}\"\nrecipe = \"fine.toml\"\nfrom = \"up\"\n{more}\n")
    }

    const UP: &str = "[[systems]]\nlabel = \"up\"\nrecipe = \"up.toml\"\njudged = false\n";

    /// Names of the runs of every stage.
    fn runs(study: &Study) -> Vec<Vec<String>> {
        runs_of(study, &(0..study.seeds))
    }

    fn runs_of(study: &Study, numbers: &Range<usize>) -> Vec<Vec<String>> {
        let name = |model: &Model| {
            let path = study.run_folder(Path::new(""), model);
            path.file_name().unwrap().to_string_lossy().into_owned()
        };
        study.stages(numbers).iter().map(|stage| stage.iter().map(name).collect()).collect()
    }

    #[test]
    fn one_upstream_training_serves_all_unless_ensembles_are_of_several() {
        let single = system("a", "");
        let study = parse(&format!("{UP}{single}{}", system("down", "ensemble = 2"))).unwrap();
        assert_eq!(runs(&study), [vec!["up-0"], vec!["a-0", "a-2", "a-1", "a-3"]]);
        let up = system("b", "ensemble = 2\nfrom_seed = \"place\"");
        let study = parse(&format!("{UP}{single}{up}")).unwrap();
        // The first model of the ensemble is the single one; the others begin from another.
        assert_eq!(
            runs(&study),
            [vec!["up-0", "up-1"], vec!["a-0", "a-2-of-1", "a-1", "a-3-of-1"]]
        );
        let study = parse(&format!("{UP}{}", system("a", "from_seed = \"own\""))).unwrap();
        assert_eq!(runs(&study), [vec!["up-0", "up-1"], vec!["a-0", "a-1-of-1"]]);
    }

    #[test]
    fn later_seeds_begin_from_the_same_and_share_no_model_among_them() {
        let ensemble = system("b", "ensemble = 2");
        let study = parse(&format!("{UP}{}{ensemble}", system("a", ""))).unwrap();
        assert_eq!(runs_of(&study, &(2..4)), [vec!["up-0"], vec!["a-2", "a-6", "a-3", "a-7"]]);
    }

    #[test]
    fn a_chain_may_have_several_links() {
        let middle = system("a", "");
        let last = system("c", "").replace("from = \"up\"", "from = \"a\"");
        let study = parse(&format!("{last}{UP}{middle}")).unwrap();
        assert_eq!(runs(&study), [vec!["up-0"], vec!["a-0", "a-1"], vec!["c-0", "c-1"]]);
    }

    #[test]
    fn systems_that_are_only_judged_differently_share_their_runs() {
        let drawn = system("b", "judged_with = [\"mc_samples=4\"]");
        let study = parse(&format!("{UP}{}{drawn}", system("a", ""))).unwrap();
        assert_eq!(runs(&study), [vec!["up-0"], vec!["a-0", "a-1"]]);
    }

    #[test]
    fn the_model_of_a_system_is_what_becomes_of_the_one_that_it_begins_from() {
        let adapt = "adapt = { to = \"e3\", settings = [\"moe.k=1\", \"moe.members=2\", \"moe.overlap=2\"] }";
        let study = parse(&format!("{UP}{}{}", system("a", ""), system("b", adapt))).unwrap();
        let recipe = |label: &str| {
            let system = study.systems.iter().find(|system| system.label == label).unwrap();
            study.recipe(system, &Options::default()).unwrap()
        };
        let (single, ensemble) = (recipe("a").model, recipe("b").model);
        assert_eq!((single.members(), single.moe().unwrap().k()), (1, Some(2)));
        assert_eq!((ensemble.members(), ensemble.moe().unwrap().k()), (2, Some(1)));
        assert_eq!(ensemble.moe().unwrap().dropout, 0.1);
    }

    #[test]
    fn what_cannot_be_begun_from_is_refused() {
        let plain = system("a", "");
        for (systems, part) in [
            (plain.clone(), "\"up\", which is none of the systems"),
            (format!("{UP}ensemble = 2\n{plain}"), "which is an ensemble"),
            (plain.replace("\"up\"", "\"a\""), "begins from itself"),
            (format!("{UP}{}", plain.replace("from = \"up\"\n", "")), "nothing begins from it"),
            (plain.replace("from = \"up\"", "from_seed = \"own\""), "from = \"SYSTEM\""),
            (
                format!("{UP}{}", system("a", "adapt = { to = \"be\", settings = [\"moe.k=1\"] }")),
                "batch_ensemble.",
            ),
            (format!("{UP}{}", system("a", "adapt = { to = \"e4\" }")), "e4"),
        ] {
            let message = format!("{:#}", parse(&systems).err().unwrap());
            assert!(message.contains(part), "{message}");
        }
    }
}
