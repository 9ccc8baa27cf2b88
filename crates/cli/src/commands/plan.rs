//! `omma plan`

use anyhow::Result;
use clap::Args;
use omma_train::{Layout, Plan, RankSpeed, Recipe, recipe::Request};
use serde::Serialize;

use crate::table::{note, say, say_json, short, table};

/// Say how long a step of many ranks would take, and what each would hold.
///
/// A rank is a process that `mpirun` starts, with a shard of every batch. A step is its images, the weights,
/// which every rank moves for itself, and what is waited for of the sum of the gradients, most of which goes on
/// beside the backward pass; with train.expert_parallel also the rows that go to experts on other ranks. --flops is what a rank really reaches in training, not what its
/// processor promises: `omma plan` beside a run of one rank says how far that is.
///
/// Examples:
///   omma plan vmoe --ranks 1,2,4 --flops 60G --bandwidth 5GB/s
///   omma plan vmoe --set train.expert_parallel=4 --flops 60G --bandwidth 5GB/s
///   omma plan imagenet-scratch --ranks 8,64,1024 --bandwidth 25GB/s \
///       --flops 50T --memory-bandwidth 1TB/s --memory 40G
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct PlanCommand {
    /// A recipe that `omma recipes` lists, or a .toml file
    recipe: String,
    /// A setting on top of the recipe, such as train.batch=4096
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Numbers of ranks
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    ranks: Vec<u32>,
    /// Operations per second that a rank reaches, such as 50T
    #[arg(long, value_parser = quantity)]
    flops: f64,
    /// Bytes per second that a rank sends, such as 25GB/s
    #[arg(long, value_parser = quantity)]
    bandwidth: f64,
    /// Seconds until a message is there, such as 10us
    #[arg(long, value_parser = quantity, default_value = "10us")]
    latency: f64,
    /// Bytes per second of a rank's memory
    #[arg(long, value_parser = quantity, default_value = "10GB/s")]
    memory_bandwidth: f64,
    /// Bytes that a rank may hold: says what is too much, and what would make it fit
    #[arg(long, value_parser = quantity)]
    memory: Option<f64>,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    recipe: &'a str,
    batch: usize,
    speed: RankSpeed,
    layouts: Vec<Layout>,
    /// The most ranks whose images take at least half of a step.
    scales_to: usize,
    /// What makes the largest number of ranks fit, where it does not.
    lighter: Option<Lighter>,
}

/// Settings that let a rank hold less, and what a step is with them.
#[derive(Serialize)]
struct Lighter {
    settings: Vec<String>,
    layout: Layout,
}

impl PlanCommand {
    pub(crate) fn run(self) -> Result<()> {
        let request = Request { settings: self.settings.clone(), ..Request::default() };
        let (recipe, notes) = Recipe::find_with_notes(&self.recipe, &request)?;
        notes.iter().for_each(note);
        let Self { flops, bandwidth, latency, memory_bandwidth, .. } = self;
        let speed = RankSpeed { flops, bandwidth, latency, memory_bandwidth };
        let plan = Plan::new(&recipe, speed)?;
        let layouts = self.ranks.iter().map(|ranks| plan.layout(*ranks as usize));
        let layouts = layouts.collect::<Result<Vec<_>, _>>()?;
        let (batch, scales_to) = (recipe.train.batch, plan.scales_to());
        let lighter = self.lighter(&layouts, speed);
        if self.json {
            let recipe = &recipe.name;
            return say_json(&Report { recipe, batch, speed, layouts, scales_to, lighter });
        }
        let header = [
            "ranks",
            "experts on",
            "images",
            "step",
            "compute",
            "weights",
            "sum",
            "waited",
            "rows",
            "sent",
            "held",
            "images/s",
            "share",
        ];
        say(table(header, layouts.iter().map(|layout| self.row(layout)), 0))?;
        say(match scales_to {
            most if most == batch => {
                format!("of a batch of {batch}, every rank can have a single image")
            }
            most => format!(
                "beyond {most} ranks, less than half of a step is images: more ranks want a larger train.batch than \
                 {batch}"
            ),
        })?;
        let too_much = layouts.last().filter(|layout| !self.fits(layout));
        match (too_much, lighter) {
            (None, _) => Ok(()),
            (Some(_), Some(Lighter { settings, layout })) => say(format!(
                "with {}, {} ranks hold {} each, and a step takes {}",
                settings.join(" and "),
                layout.ranks,
                gigabytes(layout.memory as f64),
                time(layout.step())
            )),
            (Some(layout), None) => say(format!(
                "no layout of {} ranks fits: a smaller train.batch, or more ranks, would make images fewer",
                layout.ranks
            )),
        }
    }

    fn fits(&self, layout: &Layout) -> bool {
        self.memory.is_none_or(|memory| layout.memory as f64 <= memory)
    }

    /// The first of all ways to spread what the last layout's ranks hold that fits, those that send least first.
    fn lighter(&self, layouts: &[Layout], speed: RankSpeed) -> Option<Lighter> {
        let ranks = layouts.last().filter(|layout| !self.fits(layout))?.ranks;
        let spread_optimiser = "train.spread_optimiser=true".to_owned();
        let groups = (2..=ranks).filter(|group| ranks.is_multiple_of(*group));
        let of_group = |group| {
            let experts = format!("train.expert_parallel={group}");
            [vec![experts.clone()], vec![spread_optimiser.clone(), experts]]
        };
        let mut ways =
            std::iter::once(vec![spread_optimiser.clone()]).chain(groups.flat_map(of_group));
        ways.find_map(|settings| {
            // What an optimiser or a number of experts does not allow is no way.
            let settings_with = [self.settings.clone(), settings.clone()].concat();
            let request = Request { settings: settings_with, ..Request::default() };
            let (recipe, _) = Recipe::find_with_notes(&self.recipe, &request).ok()?;
            let layout = Plan::new(&recipe, speed).and_then(|plan| plan.layout(ranks)).ok()?;
            self.fits(&layout).then_some(Lighter { settings, layout })
        })
    }

    fn row(&self, layout: &Layout) -> [String; 13] {
        let held = gigabytes(layout.memory as f64);
        [
            layout.ranks.to_string(),
            match layout.experts_on {
                1 => "each".to_owned(),
                few => few.to_string(),
            },
            layout.images.to_string(),
            time(layout.step()),
            time(layout.compute),
            time(layout.weights),
            time(layout.communication),
            time(layout.waited),
            time(layout.rows),
            format!("{}B", short(layout.bytes + layout.row_bytes)),
            if self.fits(layout) { held } else { format!("{held}, too much") },
            short(layout.images_per_second as u64),
            format!("{:.0} %", 100.0 * layout.efficiency),
        ]
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        few if few < 0.1 => format!("{:.2} ms", 1e3 * few),
        some => format!("{some:.3} s"),
    }
}

fn gigabytes(bytes: f64) -> String {
    format!("{:.2} GB", bytes / 1e9)
}

/// A number with a power of ten and a unit, of which only the number counts: 25GB/s, 50T, 10us.
fn quantity(text: &str) -> Result<f64, String> {
    let fault = || format!("{text} is not a quantity such as 25GB/s, 50T or 10us");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| fault())?;
    let unit = text[end..].trim();
    let (power, unit) = match unit.chars().next() {
        Some('k' | 'K') => (1e3, &unit[1..]),
        Some('M') => (1e6, &unit[1..]),
        Some('G') => (1e9, &unit[1..]),
        Some('T') => (1e12, &unit[1..]),
        Some('P') => (1e15, &unit[1..]),
        Some('m') => (1e-3, &unit[1..]),
        Some('u') => (1e-6, &unit[1..]),
        Some('n') => (1e-9, &unit[1..]),
        _ => (1.0, unit),
    };
    let known = ["", "s", "B", "B/s", "FLOPS", "FLOP/s", "flops"].contains(&unit);
    match known && number > 0.0 {
        true => Ok(number * power),
        false => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_powers_and_units() {
        for (text, expected) in [("25GB/s", 25e9), ("50T", 50e12), ("10us", 1e-5), ("0.5", 0.5)] {
            assert!((quantity(text).unwrap() / expected - 1.0).abs() < 1e-12, "{text}");
        }
        for text in ["", "GB/s", "5 parsecs", "0G", "-3T", "1e400", "5µs"] {
            assert!(quantity(text).is_err(), "{text}");
        }
    }
}
