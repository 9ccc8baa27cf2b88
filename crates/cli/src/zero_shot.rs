//! Classes by their names, for models that compare images with texts.

use std::path::Path;

use anyhow::{Result, bail};
use omma_eval::{EvalError, Images, System, Templates, Watcher, are_numbers};

use crate::{class_subset::read_names, subject::Candidate, table::note};

/// Where names and the sentences around them come from.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) templates: Option<&'a Path>,
    pub(crate) classes: Option<&'a Path>,
}

/// Classes that a system is to be given.
pub(crate) struct Labels {
    pub(crate) names: Vec<String>,
    pub(crate) templates: Templates,
}

impl Names<'_> {
    /// The classes of data for models that have none of their own, and the data with these names; nothing where
    /// the models have classes, or are to be judged by captions alone.
    pub(crate) fn of(
        self,
        candidates: &[Candidate],
        data: Images,
    ) -> Result<(Option<Labels>, Images)> {
        let Some(first) = candidates.iter().find(|one| one.model.reads()) else {
            if let Some(flag) = self.flag() {
                bail!(
                    "{flag} is for models that compare images with texts, which {} does not",
                    whose(candidates)
                );
            }
            return Ok((None, data));
        };
        let labelled = candidates.iter().any(|one| one.model.config().classes() > 0);
        if labelled && self.flag().is_none() {
            return Ok((None, data));
        }
        let classes = data.data.classes().len();
        let captions = data.data.has_captions() && candidates.len() == 1;
        if classes < 2 {
            if let Some(flag) = self.flag() {
                bail!("{flag} is for data with classes, of which {} has {classes}", data.name);
            }
            return match captions {
                true => Ok((None, data)),
                false => Err(EvalError::NoTexts { data: data.name }.into()),
            };
        }
        let names = match self.classes {
            Some(file) => read_names(file)?,
            None => data.data.classes().to_vec(),
        };
        if names.len() != classes {
            let file = self.classes.unwrap_or(Path::new("")).display();
            bail!("{file} names {} classes, but {} has {classes}", names.len(), data.name);
        }
        if self.classes.is_none() && are_numbers(&names) {
            let shown: Vec<&str> = names.iter().take(3).map(String::as_str).collect();
            let names = format!("{}, …", shown.join(", "));
            if captions && self.templates.is_none() {
                note(format!(
                    "classes are called {names}: {} is judged by captions alone; --class-names names them",
                    first.name()
                ));
                return Ok((None, data));
            }
            return Err(EvalError::NoNames { data: data.name, names }.into());
        }
        let templates = self.templates.map(Templates::read).transpose()?.unwrap_or_default();
        let data = data.with_classes(names.clone());
        Ok((Some(Labels { names, templates }), data))
    }

    /// What was asked for.
    fn flag(self) -> Option<&'static str> {
        let templates = self.templates.map(|_| "--templates");
        templates.or(self.classes.map(|_| "--class-names"))
    }
}

fn whose(candidates: &[Candidate]) -> String {
    candidates.first().map(Candidate::name).unwrap_or_default()
}

impl Labels {
    /// The system as a zero-shot classifier of these classes.
    pub(crate) fn given_to(
        &self,
        system: System,
        batch: usize,
        watcher: &mut dyn Watcher,
    ) -> Result<System> {
        let system = system.labelled(&self.names, &self.templates, batch, watcher)?;
        if let Some(prompts) = system.prompts().filter(|all| all.texts.unknown > 0) {
            note(format!("names of classes as the model reads them: {}", prompts.texts));
        }
        Ok(system)
    }
}
