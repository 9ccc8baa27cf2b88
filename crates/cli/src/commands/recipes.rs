//! `omma recipes`

use anyhow::{Context, Result};
use clap::Args;
use omma_train::recipe::{BUILT_IN, Recipe, Request, built_in};
use serde_json::json;

use crate::table::{say, say_json, table};

/// List the recipes that come with the program, or show one of them.
///
/// Examples:
///   omma recipes
///   omma recipes e3 > mine.toml
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Recipes {
    /// The recipe to show as it is written, by its name or its file
    name: Option<String>,
    /// Show every setting of it, defaults included
    #[arg(long, requires = "name")]
    full: bool,
    /// As JSON: a list of names, or every setting of one recipe
    #[arg(long)]
    json: bool,
}

impl Recipes {
    pub(crate) fn run(self) -> Result<()> {
        match self.name {
            Some(name) if self.json => say_json(&Recipe::find(&name, &Request::default())?),
            Some(name) if self.full => {
                let recipe = Recipe::find(&name, &Request::default())?;
                say(recipe.to_toml().trim_end())
            }
            Some(path) if path.ends_with(".toml") => {
                let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
                say(text.trim_end())
            }
            Some(name) => say(built_in(&name)?.trim_end()),
            None => {
                let about = |text: &str| {
                    let line = text.lines().find_map(|line| line.strip_prefix("about = "));
                    line.unwrap_or_default().trim_matches('"').to_owned()
                };
                if self.json {
                    let listed = BUILT_IN
                        .iter()
                        .map(|(name, text)| json!({ "name": name, "about": about(text) }));
                    return say_json(&listed.collect::<Vec<_>>());
                }
                let rows = BUILT_IN.iter().map(|(name, text)| [(*name).to_owned(), about(text)]);
                say(table(["recipe", "what it is for"], rows, 2))
            }
        }
    }
}
