//! `omma fewshot`

use std::path::PathBuf;

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_data::formats::Columns;
use omma_eval::{FewShotProtocol, FewShotSet, few_shot, metrics::Estimate};

use crate::{
    resolution::ResolutionArguments,
    subject::{Candidate, Data, Part, system},
    table::{say, say_json, table},
    watch::Watch,
};

/// Judge frozen features by a few images of every class.
///
/// A linear classifier in closed form (ridge regression) on the features of 1, 5, 10 and 25 images per
/// class. Of an ensemble, once on all members' features side by side (joint), once by a classifier per
/// member (disjoint). The regularisation is chosen on up to 25 more training images per class.
///
/// Examples:
///   omma fewshot runs/default-1
///   omma fewshot dinov2.safetensors --data photos/ --shots 1,5 --seeds 5
///   omma fewshot runs/e3-1 --data fashion-mnist --json
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct FewShot {
    /// Folders of runs or checkpoints; several are one deep ensemble
    #[arg(required = true, value_name = "RUN_OR_CHECKPOINT")]
    subjects: Vec<PathBuf>,
    /// What to judge by; without it, what the runs were trained on
    #[arg(long)]
    data: Option<String>,
    /// Which columns of a table are what, by name or by number from 1: image=photo,label=3
    #[arg(long, value_name = "COLUMNS", requires = "data")]
    columns: Option<Columns>,
    /// Images per class
    #[arg(long, value_delimiter = ',', default_value = "1,5,10,25")]
    shots: Vec<usize>,
    /// How many times shots are drawn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    seeds: u16,
    /// Where the draws come from
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Judge by so many test images at most
    #[arg(long, value_name = "IMAGES", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Strengths of the regularisation; the reference's grid if not given
    #[arg(long, value_delimiter = ',')]
    l2: Vec<f64>,
    /// A setting of predictions on top of the model's own, such as moe.k=4, moe.inference_noise=1,
    /// moe.inference_capacity_ratio=8 or mc_samples=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    resolution: ResolutionArguments,
    /// Images per forward pass
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl FewShot {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        if self.shots.is_empty() || self.shots.contains(&0) {
            bail!("--shots are numbers of images per class, from 1 on");
        }
        if let Some(bad) = self.l2.iter().find(|l2| !(**l2 > 0.0 && l2.is_finite())) {
            bail!("a regularisation is above 0, not {bad}");
        }
        let mut watch = Watch::new();
        let settings = self.resolution.on_top_of(&self.settings);
        let candidates = Candidate::read_all(&self.subjects, &settings, device)?;
        let data = Data::of(self.data.as_deref(), self.columns.as_ref(), &candidates)?;
        let limit = self.limit.map(|limit| limit as usize);
        let protocol = FewShotProtocol {
            set: FewShotSet {
                train: data.part(Some(Part::Train), None)?.1,
                test: data.part(Some(Part::Test), limit)?.1,
            },
            shots: self.shots.clone(),
            seeds: self.seeds.into(),
            seed: self.seed,
            l2: if self.l2.is_empty() { FewShotProtocol::reference_l2() } else { self.l2.clone() },
            batch: self.batch.into(),
        };
        let system = system(candidates, self.seed, device)?;
        let found = few_shot(&system, &protocol, &mut watch)?;
        drop(watch);
        if self.json {
            return say_json(&found);
        }
        let rows = found.results.iter().map(|result| {
            let percent = |of: Estimate| format!("{:.2} %", of.times(100.0));
            [
                result.shots.to_string(),
                percent(result.joint),
                percent(result.disjoint),
                percent(result.joint_best_l2),
            ]
        });
        say(format!(
            "{}: accuracy on {} images of {}, {} draws",
            found.models.join(" + "),
            crate::table::grouped(found.samples as u64),
            found.data,
            found.seeds
        ))?;
        say(table(["shots", "joint", "disjoint", "joint, best l2 on the test"], rows, 1))
    }
}
