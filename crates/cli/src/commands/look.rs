//! `omma look`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::files::fresh_folder;
use omma_eval::{
    atlas::{Look, LookInput, LookedAt, look, look_page},
    report::write_report,
};
use omma_ranks::World;

use crate::{
    predict::Inputs,
    resolution::ResolutionArguments,
    screen::Activity,
    subject::Candidate,
    table::{say, say_json, table_of},
};

/// Look which expert takes which patch of a picture, or which word of a text.
///
/// Every picture with the experts of its patches drawn over it, in every layer that has experts; where the pointer rests,
/// the gates are said. With a model that reads, texts go through it together with the pictures, word by word.
/// Writes look.html, look.json and figures/*.svg.
///
/// Examples:
///   omma look runs/vmoe-1 photo.jpg
///   omma look runs/e3-1 a.png b.png --out seen/
///   omma look runs/limoe-1 photo.jpg --text "a red dog on the grass"
///   omma look runs/vmoe-1 photo.jpg --json
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct LookCommand {
    /// The folder of a run, or a checkpoint
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    subject: PathBuf,
    /// Images, folders of images, or patterns such as 'photos/*.jpg'; at most 64
    #[arg(required = true, value_name = "IMAGES")]
    images: Vec<String>,
    /// A text to go with them, for a model that reads; may be given several times
    #[arg(long = "text", value_name = "TEXT")]
    texts: Vec<String>,
    /// A setting of predictions on top of the model's own, such as moe.k=4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    resolution: ResolutionArguments,
    /// Where MC samples and the noise of routers come from, in predictions that are drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where to write; without it, into a fresh folder below looks/
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print where every token went as JSON, and write nothing unless --out says where
    #[arg(long)]
    json: bool,
}

/// Pictures that a page has room for.
const MOST_IMAGES: usize = 64;
/// Where looks are.
const LOOKS: &str = "looks";

impl LookCommand {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        let inputs = Inputs::of(&self.images, None)?.images;
        if inputs.len() > MOST_IMAGES {
            bail!(
                "{} images are too many to look at one by one (at most {MOST_IMAGES}); `omma routes` looks at data sets",
                inputs.len()
            );
        }
        let mut pictures = Vec::new();
        for input in &inputs {
            let picture = input.open().with_context(|| input.name.clone())?;
            pictures.push((input.name.clone(), picture));
        }
        let settings = self.resolution.on_top_of(&self.settings);
        let candidate = Candidate::read_all([&self.subject], &settings, device)?.remove(0);
        let subject = candidate.routed(self.seed, device, &World::alone());
        let activity = Activity::new("looking");
        let found = look(&subject, &LookInput { pictures, texts: self.texts.clone() })?;
        drop(activity);
        let folder = match (&self.out, self.json) {
            (Some(folder), _) => Some(folder.clone()),
            (None, true) => None,
            (None, false) => Some(fresh(&subject.name)?),
        };
        if let Some(folder) = &folder {
            write_report(folder, "look", &look_page(&found), &found)?;
        }
        if self.json {
            return say_json(&found);
        }
        show(&found)?;
        match folder {
            Some(folder) => say(format!("page: {}", folder.join("look.html").display())),
            None => Ok(()),
        }
    }
}

/// A folder of its own.
fn fresh(name: &str) -> Result<PathBuf> {
    let plain = |symbol: char| if symbol.is_alphanumeric() { symbol } else { '-' };
    let name: String = name.chars().map(plain).take(60).collect();
    fresh_folder(Path::new(LOOKS), &name).context(LOOKS)
}

/// Tokens per expert, of every input and layer.
fn show(found: &Look) -> Result<()> {
    for input in &found.inputs {
        say(format!("{}:", input.name))?;
        say(table_of(&["block", "tokens by expert"].map(str::to_owned), &rows(input), 2))?;
    }
    Ok(())
}

fn rows(input: &LookedAt) -> Vec<Vec<String>> {
    let row = |block: &omma_eval::atlas::LookBlock| {
        let mut counts = vec![0_usize; block.experts];
        for (expert, _) in block.tokens.iter().filter_map(|token| token.experts.first()) {
            counts[*expert] += 1;
        }
        let mut busy: Vec<(usize, usize)> =
            counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
        busy.sort_by_key(|(expert, count)| (std::cmp::Reverse(*count), *expert));
        let busy: Vec<String> =
            busy.into_iter().map(|(expert, count)| format!("{expert}: {count}")).collect();
        let name = match block.member {
            Some(member) => format!("{}, member {}", block.block, member + 1),
            None => block.block.to_string(),
        };
        vec![name, busy.join("  ")]
    };
    input.blocks.iter().map(row).collect()
}
