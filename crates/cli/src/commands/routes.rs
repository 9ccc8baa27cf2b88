//! `omma routes`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::files::fresh_folder;
use omma_data::formats::Columns;
use omma_eval::{
    Images,
    atlas::{
        AtlasProtocol, BlockRoutes, LabelSource, ModelRoutes, RoutePictures, Routes, routes,
        routes_page,
    },
    report::write_report,
};
use omma_ranks::World;

use crate::{
    evals::folder_name,
    ranks,
    resolution::ResolutionArguments,
    serve::RoutingHistory,
    subject::{Candidate, Data, Part, check_distinct},
    table::{grouped, note, say, say_json, table},
    watch::Watch,
};

/// Look where the tokens of a data set go, and what that says of the experts.
///
/// One pass over the images, with their captions for a model that reads them: which classes go to which experts, and
/// whether that is more than chance; load, drops at the capacity of training, gates and entropies by depth; the
/// ways of tokens from layer to layer and the combinations of experts that are used; how many experts are needed;
/// the patches and words that each expert is surest of. It ends with advice: which layers specialise, which experts
/// could go, and the command that does it. Several models are looked at one by one. Writes routes.json, routes.html
/// and figures/*.svg.
///
/// Of a log of `omma serve --log-routing` (FILE.jsonl), it shows the load of every expert over time beside that of the
/// training run.
///
/// Examples:
///   omma routes runs/vmoe-1
///   omma routes runs/e3-1 --limit 2000
///   omma routes runs/limoe-1                images and texts together
///   omma routes vmoe/ --data photos/ --json
///   omma routes runs/vmoe-1 runs/soft-1 --data world --out atlas/
///   omma routes experts.jsonl               kept by omma serve --log-routing
#[derive(Args, Clone)]
#[command(verbatim_doc_comment)]
pub(crate) struct RoutesCommand {
    /// Folders of runs, checkpoints of ours, or of other projects; or logs of a server, FILE.jsonl
    #[arg(required = true, value_name = "RUN_OR_CHECKPOINT")]
    subjects: Vec<PathBuf>,
    /// What to look at; without it, what the runs were trained on
    #[arg(long)]
    data: Option<String>,
    /// Which columns of a table are what, by name or by number from 1: image=photo,label=3
    #[arg(long, value_name = "COLUMNS", requires = "data")]
    columns: Option<Columns>,
    /// Which part of the data; without it, all of data without splits that no model was trained on, else the
    /// test images
    #[arg(long, value_enum)]
    split: Option<Part>,
    /// Look at so many images at most, evenly spread over the data
    #[arg(long, value_name = "IMAGES", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Permutations of every test; a p-value is no less than one in so many
    #[arg(long, default_value_t = 199, value_parser = clap::value_parser!(u32).range(99..=100_000))]
    permutations: u32,
    /// A setting of predictions on top of the model's own, such as moe.k=4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    resolution: ResolutionArguments,
    /// Where the order of the images, the permutations, and what models draw come from
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Images per forward pass; at the capacity of training, those of a batch compete
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Where to write; without it, into a folder of a single run's routes/, else into a fresh one below routes/
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print routes.json instead of a table
    #[arg(long)]
    json: bool,
}

/// Everything that is looked at, read and checked.
struct Prepared {
    candidates: Vec<Candidate>,
    images: Images,
    labels: LabelSource,
    /// Names of the labels.
    classes: Vec<String>,
    /// What the data is called in a recipe.
    data: String,
}

/// The folder of atlases, in a run's own or in the working folder.
const ROUTES: &str = "routes";

impl RoutesCommand {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        if self.subjects.iter().any(|path| RoutingHistory::is_log(path)) {
            return self.show_logs();
        }
        let world = ranks::connect()?;
        let mut watch = Watch::new();
        let prepared = self.prepare(device);
        if !world.leads() {
            let Ok(prepared) = ranks::agree(&world, prepared) else { return Ok(()) };
            return ranks::ended(&world, self.of_all(&prepared, &world, &mut watch, device));
        }
        let prepared = ranks::agree(&world, prepared)?;
        let looked = self.look(&prepared, &world, &mut watch, device);
        let (found, folder) = ranks::led(&world, looked)?;
        drop(watch);
        if self.json {
            return say_json(&found);
        }
        for model in &found.models {
            show(model, found.models.len() > 1)?;
        }
        say(format!("report: {}", folder.join("routes.html").display()))
    }

    /// What servers have kept.
    fn show_logs(&self) -> Result<()> {
        if !self.subjects.iter().all(|path| RoutingHistory::is_log(path)) {
            bail!("models are looked at by themselves, and so are logs of servers (.jsonl)");
        }
        if self.out.is_some() || !self.options().is_empty() {
            bail!("a log is shown as it is, or with --json; other options are those of models");
        }
        let read = |path: &PathBuf| RoutingHistory::read(path);
        let all: Vec<RoutingHistory> = self.subjects.iter().map(read).collect::<Result<_>>()?;
        match self.json {
            true => say_json(&all),
            false => all.iter().try_for_each(RoutingHistory::show),
        }
    }

    /// Reads what is looked at.
    fn prepare(&self, device: &Device) -> Result<Prepared> {
        check_distinct(&self.subjects)?;
        let settings = self.resolution.on_top_of(&self.settings);
        let candidates = Candidate::read_all(&self.subjects, &settings, device)?;
        let data = Data::of(self.data.as_deref(), self.columns.as_ref(), &candidates)?;
        let limit = self.limit.map(|limit| limit as usize);
        let (part, images) = data.part_of_any(self.split, limit)?;
        let count = grouped(images.data.len() as u64);
        note(format!("looking at {count} images of {}: {}", images.name, part.reason(self.split)));
        let (labels, classes) = labelled(&candidates, &images);
        Ok(Prepared { candidates, images, labels, classes, data: data.spec.name.clone() })
    }

    /// Looks and writes the report.
    fn look(
        &self,
        prepared: &Prepared,
        world: &World,
        watch: &mut Watch,
        device: &Device,
    ) -> Result<(Routes, PathBuf)> {
        let Prepared { candidates, images, classes, .. } = prepared;
        // Made before the work, not after it: what cannot be written should not be computed first.
        let folder = self.folder(candidates, &images.name)?;
        let figures = folder.join("figures");
        std::fs::create_dir_all(&figures).with_context(|| {
            format!("{} cannot be made; a report goes into a folder", figures.display())
        })?;
        let made = self.of_all(prepared, world, watch, device);
        let (models, pictures) = made.inspect_err(|_| {
            // Only folders that are still empty go.
            let _ = std::fs::remove_dir(&figures).and_then(|()| std::fs::remove_dir(&folder));
        })?;
        let found = Routes {
            data: images.name.clone(),
            classes: if classes.len() > 1 { classes.clone() } else { Vec::new() },
            batch: self.batch.into(),
            seed: self.seed,
            models,
        };
        watch.turn_to("writing the report");
        write_report(&folder, "routes", &routes_page(&found, &pictures), &found)?;
        Ok((found, folder))
    }

    fn of_all(
        &self,
        prepared: &Prepared,
        world: &World,
        watch: &mut Watch,
        device: &Device,
    ) -> Result<(Vec<ModelRoutes>, Vec<RoutePictures>)> {
        let protocol = AtlasProtocol {
            labels: prepared.labels,
            data: self.data.clone().unwrap_or_else(|| prepared.data.clone()),
            batch: self.batch.into(),
            permutations: self.permutations as usize,
            seed: self.seed,
        };
        let mut all = (Vec::new(), Vec::new());
        for candidate in &prepared.candidates {
            let subject = candidate.routed(self.seed, device, world);
            let (model, pictures) = routes(&subject, &prepared.images, &protocol, watch)?;
            all.0.push(model);
            all.1.push(pictures);
        }
        Ok(all)
    }

    fn folder(&self, candidates: &[Candidate], data: &str) -> Result<PathBuf> {
        match (&self.out, candidates) {
            (Some(folder), _) => Ok(folder.clone()),
            (None, [one]) if one.has_folder() => {
                let own = one.recipe.as_ref().is_some_and(|recipe| recipe.data.name == data);
                Ok(one.path.join(ROUTES).join(folder_name(data, own, &self.options())))
            }
            (None, several) => {
                let name: String = several.first().map(Candidate::name).unwrap_or_default();
                let plain = |symbol: char| if symbol.is_alphanumeric() { symbol } else { '-' };
                let name: String = name.chars().map(plain).take(60).collect();
                fresh_folder(Path::new(ROUTES), &name).context(ROUTES)
            }
        }
    }

    /// What tells atlases of one run apart.
    fn options(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut say = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                words.extend([flag.to_owned(), value]);
            }
        };
        say("--data", self.data.clone());
        say("--columns", self.columns.as_ref().map(ToString::to_string));
        let part = self.split.and_then(|part| clap::ValueEnum::to_possible_value(&part));
        say("--split", part.map(|part| part.get_name().to_owned()));
        say("--limit", self.limit.map(|limit| limit.to_string()));
        for setting in self.resolution.on_top_of(&self.settings) {
            say("--set", Some(setting));
        }
        say("--seed", (self.seed != 0).then(|| self.seed.to_string()));
        words
    }
}

/// What the classes of tokens are, and their names: those of pixels, by the majority of a patch, where all models
/// label pixels, or where images have no classes of their own (paper 003 Fig. 5); else those of images (Fig. 4).
fn labelled(candidates: &[Candidate], images: &Images) -> (LabelSource, Vec<String>) {
    let of_pixels = candidates.iter().all(|one| one.model.config().head.segmenter().is_some());
    let classes = images.data.classes();
    match images.data.pixel_classes() {
        Some(pixels) if of_pixels || classes.len() < 2 => (LabelSource::Pixels, pixels.to_vec()),
        _ => (LabelSource::Images, classes.to_vec()),
    }
}

fn show(model: &ModelRoutes, several: bool) -> Result<()> {
    if several {
        say(format!("{}:", model.name))?;
    }
    let texts = match model.texts {
        0 => String::new(),
        texts => format!(" and {} texts", grouped(texts as u64)),
    };
    say(format!("{} images{texts}: {}", grouped(model.images as u64), model.model))?;
    let header = [
        "block",
        "experts",
        "peak load",
        "idle",
        "settled by class",
        "by chance",
        "p",
        "experts of an image",
        "for 99 % coverage",
        "",
    ];
    let rows = model.blocks.iter().zip(&model.advice.blocks).map(|(block, advice)| {
        let mut cells = cells(block);
        cells[9] = advice.verdict.name().to_owned();
        cells
    });
    say(table(header, rows, 0))?;
    for degree in &model.degrees {
        let possible = match (degree.possible, &degree.formula) {
            (Some(possible), Some(formula)) if possible < 1e6 => {
                format!(" of {possible} ({formula})")
            }
            (Some(possible), Some(formula)) => format!(" of {possible:.1e} ({formula})"),
            _ => String::new(),
        };
        say(format!(
            "combinations of experts that tokens of {} go through: {}{possible}, as varied as {:.1} used alike",
            degree.modality, degree.used, degree.effective
        ))?;
    }
    let own = &model.image_use;
    say(format!(
        "an image goes to {:.1} different experts{} and passes {:.2} of {:.2} M parameters",
        own.experts,
        if own.shared_experts > 0 {
            format!(" + {} shared", own.shared_experts)
        } else {
            String::new()
        },
        own.active_parameters / 1e6,
        own.parameters as f64 / 1e6
    ))?;
    for line in &model.advice.summary {
        say(line)?;
    }
    for own in &model.advice.commands {
        say(format!("{}:\n  {}", own.why, own.command))?;
    }
    model.notes.iter().for_each(note);
    Ok(())
}

fn cells(block: &BlockRoutes) -> [String; 10] {
    let dash = || "—".to_owned();
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let test = block.strongest_test();
    let entropy =
        block.classes.iter().map(|own| own.information.expert_entropy).fold(0.0, f64::max);
    let images = block.of_images().filter(|_| !block.soft);
    [
        block.block.to_string(),
        block.available.to_string(),
        format!("{:.2}", block.peak_load),
        block.idle.len().to_string(),
        test.map_or_else(dash, |test| percent(test.effect.max(0.0))),
        test.map_or_else(dash, |test| percent(test.chance / entropy.max(1e-12))),
        test.map_or_else(dash, |test| format!("{:.3}", test.p_value)),
        format!("{:.2}", block.experts_per_image),
        images.map_or_else(dash, |own| {
            format!("{} of {}", block.experts_for(own, omma_eval::atlas::COVERAGE), block.available)
        }),
        String::new(),
    ]
}
