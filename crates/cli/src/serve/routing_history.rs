//! What `omma serve --log-routing` has kept, read again: the load of every expert over time.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use omma_base::files::read_regular;
use omma_serve::load_drift;
use serde::Serialize;

use super::routing::RoutingEntry;
use crate::table::{grouped, say, table_of};

/// Bytes of a log: that of a model with twelve layers of eight experts grows by a megabyte in six hours.
const MOST_BYTES: u64 = 1 << 30;
/// Moments of a table, evenly spread.
const MOST_ROWS: usize = 12;
/// Experts of a table: those whose share has changed most.
const MOST_COLUMNS: usize = 16;

/// A log, layer by layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RoutingHistory {
    log: PathBuf,
    layers: Vec<LayerHistory>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct LayerHistory {
    model: String,
    part: String,
    block: usize,
    experts: usize,
    /// `[E]`: shares on the test images of the training run, as the newest entry has them.
    training: Option<Vec<f64>>,
    moments: Vec<Moment>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Moment {
    /// Seconds since 1970.
    time: u64,
    images: u64,
    /// How far the load is from that of training, from 0 for the same shares to 1.
    drift: Option<f64>,
    /// `[E]`: shares.
    load: Vec<f64>,
}

impl RoutingHistory {
    /// Whether a path is that of a log, not of a model.
    pub(crate) fn is_log(path: &Path) -> bool {
        path.extension().is_some_and(|ending| ending == "jsonl")
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let shown = || path.display().to_string();
        let bytes = read_regular(path, MOST_BYTES).with_context(shown)?;
        let mut layers: Vec<LayerHistory> = Vec::new();
        let lines = bytes.split(|byte| *byte == b'\n').enumerate();
        for (number, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let entry = entry(line).with_context(|| format!("{}: line {}", shown(), number + 1))?;
            add(&mut layers, entry);
        }
        match layers.is_empty() {
            true => bail!(
                "{} has no entries yet; omma serve --log-routing writes one a minute, and one in the end",
                shown()
            ),
            false => Ok(Self { log: path.to_owned(), layers }),
        }
    }

    /// A table per layer.
    pub(crate) fn show(&self) -> Result<()> {
        self.layers.iter().try_for_each(LayerHistory::show)
    }
}

fn entry(line: &[u8]) -> Result<RoutingEntry> {
    let entry: RoutingEntry =
        serde_json::from_slice(line).context("this is no entry of omma serve --log-routing")?;
    let is_share = |share: &f64| (0.0..=1.000_001).contains(share);
    let all = entry.load.iter().chain(entry.training.iter().flatten());
    let fits = entry.training.as_ref().is_none_or(|own| own.len() == entry.load.len());
    if entry.load.is_empty() || !fits || !all.into_iter().all(is_share) {
        bail!("the load of experts is one share each, and so is that of training");
    }
    Ok(entry)
}

/// A layer that has another number of experts than before is another layer: its model was replaced.
fn add(layers: &mut Vec<LayerHistory>, entry: RoutingEntry) {
    let RoutingEntry { time, model, part, block, images, load, training } = entry;
    let is_own = |own: &LayerHistory| {
        own.model == model && own.part == part && own.block == block && own.experts == load.len()
    };
    let place = layers.iter().position(is_own).unwrap_or_else(|| {
        let (experts, moments) = (load.len(), Vec::new());
        layers.push(LayerHistory { model, part, block, experts, training: None, moments });
        layers.len() - 1
    });
    let drift = training.as_ref().map(|training| load_drift(&load, training));
    layers[place].moments.push(Moment { time, images, drift, load });
    layers[place].training = training;
}

impl LayerHistory {
    fn show(&self) -> Result<()> {
        let whose = match self.model == self.part {
            true => self.model.clone(),
            false => format!("{} of {}", self.part, self.model),
        };
        let count = grouped(self.moments.len() as u64);
        say(format!("{whose}, block {}: {count} entries", self.block))?;
        let experts = self.most_changed();
        let names = experts.iter().map(|expert| format!("expert {expert}"));
        let header: Vec<String> =
            ["UTC", "images", "drift"].map(str::to_owned).into_iter().chain(names).collect();
        let dash = || "—".to_owned();
        let shares =
            |load: &[f64]| experts.iter().map(|expert| format!("{:.3}", load[*expert])).collect();
        let mut rows: Vec<Vec<String>> = Vec::new();
        if let Some(training) = &self.training {
            let own: Vec<String> = shares(training);
            rows.push([vec!["training".to_owned(), dash(), dash()], own].concat());
        }
        for place in spread(self.moments.len()) {
            let Moment { time, images, drift, load } = &self.moments[place];
            let drift = drift.map_or_else(dash, |drift| format!("{drift:.3}"));
            let own: Vec<String> = shares(load);
            rows.push([vec![utc(*time), grouped(*images), drift], own].concat());
        }
        say(table_of(&header, &rows, 1))?;
        match self.experts > experts.len() {
            true => say(format!(
                "the {} of {} experts whose share changed most; --json has all",
                experts.len(),
                self.experts
            )),
            false => Ok(()),
        }
    }

    /// In their order.
    fn most_changed(&self) -> Vec<usize> {
        let before = self.training.as_ref().or_else(|| self.moments.first().map(|own| &own.load));
        let change = |expert: usize| match (before, self.moments.last()) {
            (Some(before), Some(now)) => (now.load[expert] - before[expert]).abs(),
            _ => 0.0,
        };
        let mut experts: Vec<usize> = (0..self.experts).collect();
        experts.sort_by(|a, b| change(*b).total_cmp(&change(*a)).then(a.cmp(b)));
        experts.truncate(MOST_COLUMNS);
        experts.sort_unstable();
        experts
    }
}

/// Places of so many, the first and the last among them.
fn spread(count: usize) -> Vec<usize> {
    match count <= MOST_ROWS {
        true => (0..count).collect(),
        false => (0..MOST_ROWS).map(|row| row * (count - 1) / (MOST_ROWS - 1)).collect(),
    }
}

/// Seconds since 1970 as `2026-11-18 05:43`. Days become years by Howard Hinnant's `civil_from_days`.
fn utc(seconds: u64) -> String {
    // A year of more than four digits is no time that a clock has.
    let seconds = seconds.min(253_402_300_799);
    let (days, minutes) = (seconds / 86_400 + 719_468, seconds / 60 % 1440);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let day = day - (153 * march + 2) / 5 + 1;
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(lines: &str) -> Result<RoutingHistory> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        RoutingHistory::read(file.path())
    }

    #[test]
    fn a_log_becomes_the_history_of_every_layer() {
        let lines = r#"{"time":60,"model":"m","part":"a","block":1,"images":10,"load":[0.5,0.5],"training":[0.75,0.25]}
{"time":60,"model":"m","part":"a","block":3,"images":10,"load":[1.0,0.0]}

{"time":120,"model":"m","part":"a","block":1,"images":30,"load":[0.25,0.75],"training":[0.75,0.25]}
"#;
        let found = history(lines).unwrap().layers;
        assert_eq!((found.len(), found[0].block, found[1].block), (2, 1, 3));
        let drift: Vec<Option<f64>> = found[0].moments.iter().map(|own| own.drift).collect();
        assert_eq!(drift, [Some(0.25), Some(0.5)]);
        assert_eq!(found[1].moments[0].drift, None);
    }

    #[test]
    fn a_broken_line_is_named() {
        let good = r#"{"time":1,"model":"m","part":"a","block":1,"load":[1.0]}"#;
        for bad in [
            "{",
            "[]",
            r#"{"time":1,"model":"m","part":"a","block":1,"load":[]}"#,
            r#"{"time":1,"model":"m","part":"a","block":1,"load":[7.0]}"#,
            r#"{"time":1,"model":"m","part":"a","block":1,"load":[1.0],"training":[0.5,0.5]}"#,
        ] {
            let why = format!("{:#}", history(&format!("{good}\n{bad}\n")).unwrap_err());
            assert!(why.contains("line 2"), "{why}");
        }
        assert!(history("\n").unwrap_err().to_string().contains("no entries"));
    }

    #[test]
    fn times_are_those_of_a_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00");
        assert_eq!(utc(951_825_599), "2000-02-29 11:59");
        assert_eq!(utc(1_795_066_980), "2026-11-19 05:43");
        assert_eq!(utc(u64::MAX), "9999-12-31 23:59");
    }

    #[test]
    fn the_first_and_the_last_moment_are_shown() {
        assert_eq!(spread(3), [0, 1, 2]);
        let many = spread(1000);
        assert_eq!((many.len(), many[0], many[MOST_ROWS - 1]), (MOST_ROWS, 0, 999));
    }
}
