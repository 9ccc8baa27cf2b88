//! A class for every pixel: intersection over union, accuracy, calibration, confusions (paper 003 §5).

use std::time::Instant;

use omma_base::Resolution;
use omma_data::{IGNORED, MaskedPicture, MaskedPictures, Picture};
use omma_report::{Bars, HeatMap};
use serde::{Deserialize, Serialize};

use super::test::{counted, reliability, series};
use crate::{
    digits::share_within,
    error::{EvalError, Result},
    gallery::Shown,
    metrics::{Interval, Scores, Segmentation},
    report::{Draft, Fact},
    routing::{LayerHealth, RoutingTally},
    segment::{Segmented, Segmenting, Windows},
    stream::{Images, Watcher},
    summary::{Binning, ReliabilityBin, Summary},
    system::System,
};

/// How a system that labels pixels is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentationProtocol {
    /// How pictures of another shape than the model's are looked at.
    pub windows: Windows,
    /// The bins of the calibration error.
    pub binning: Binning,
    /// Windows per forward pass.
    pub batch: usize,
}

/// The part of `eval.json` that a system which labels pixels has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentationRecord {
    /// Images that could be read.
    pub samples: usize,
    /// Pixels of theirs that count.
    pub pixels: u64,
    /// Pixels that do not, since nobody has said what they are.
    pub ignored: u64,
    /// Mean intersection over union of the classes that occur, over all pixels of all images.
    pub mean_iou: f64,
    /// How far that may be off, by the bootstrap over images.
    pub mean_iou_interval: Option<Interval>,
    /// Share of the pixels that are right.
    pub pixel_accuracy: f64,
    /// The mean over classes of the share of their pixels that are right.
    pub mean_accuracy: f64,
    /// Of all pixels.
    pub nll: f64,
    /// Of all pixels.
    pub brier: f64,
    /// Of all pixels.
    pub ece: f64,
    /// What the calibration error was computed with.
    pub binning: Binning,
    /// From low to high confidence, without empty bins.
    pub reliability: Vec<ReliabilityBin>,
    /// `[classes]`: intersection over union; nothing for a class that was neither there nor predicted.
    pub iou: Vec<Option<f64>>,
    /// `[classes]`: share of its pixels that are right; nothing for a class that was not there.
    pub class_accuracy: Vec<Option<f64>>,
    /// `[classes]` of `[classes]`: pixels by label, then by predicted class.
    pub confusion: Vec<Vec<u64>>,
    /// How pictures were looked at.
    pub windows: Windows,
    /// Reading included.
    pub images_per_second: f64,
}

/// Everything that one pass over images with masks shows.
pub struct SegmentationTest {
    /// What `eval.json` has of it.
    pub record: SegmentationRecord,
    /// Per model, its layers with experts.
    pub routing: Vec<Vec<LayerHealth>>,
    /// Pictures to be shown.
    pub(crate) shown: Vec<Shown>,
}

/// Pictures that are read at a time, at most.
const AT_A_TIME: usize = 32;
/// What the maps of some pictures may take together.
const MOST_BYTES: usize = 256 << 20;
/// Pictures that are shown.
const SHOWN: usize = 8;

/// Judges a system by images with masks. Maps are compared with masks at the masks' own size.
pub fn segmentation(
    system: &System,
    images: &Images,
    protocol: SegmentationProtocol,
    watcher: &mut dyn Watcher,
) -> Result<SegmentationTest> {
    let classes = system.check_pixel_classes(images)?;
    let SegmentationProtocol { windows, binning, batch } = protocol;
    watcher.begins("test images", images.data.len());
    let started = Instant::now();
    let mut found = Segmentation::new(classes);
    let mut scores = binning.scores();
    let mut routing = vec![RoutingTally::default(); system.names().len()];
    let mut shown = Vec::new();
    let every = images.data.len().div_ceil(SHOWN).max(1);
    for batch_read in MaskedPictures::new(images.data.clone(), AT_A_TIME) {
        let read = batch_read?;
        for some in within_memory(&read, classes * (system.members() + 2)) {
            if watcher.stopped() {
                return Err(EvalError::Interrupted);
            }
            let is_shown = |one: &MaskedPicture| one.index.is_multiple_of(every);
            let with_experts = some.iter().any(is_shown);
            let segmenting = Segmenting { system, windows, batch, with_experts };
            let pictures: Vec<(&Picture, Resolution)> =
                some.iter().map(|one| (&one.picture, one.picture.resolution())).collect();
            let maps = segmenting.run(&pictures, some[0].index, |routings| {
                for (tally, routings) in routing.iter_mut().zip(routings) {
                    tally.add(RoutingTally::of(routings));
                }
            })?;
            for (one, Segmented { map, experts }) in some.iter().zip(maps) {
                add_scores(&mut scores, &map.probabilities, classes, &one.mask);
                let predicted = map.predicted();
                found.add(&one.mask, &predicted);
                if is_shown(one) && shown.len() < SHOWN {
                    shown.push(Shown::new(images.data.name(one.index), one, predicted, experts));
                }
            }
            watcher.done(some.len());
        }
    }
    if found.maps() == 0 || found.pixels() == 0 {
        return Err(EvalError::Empty { data: images.name.clone() });
    }
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    let Summary { nll, brier, ece, .. } = binning.summary(&scores, classes);
    let record = SegmentationRecord {
        samples: found.maps(),
        pixels: found.pixels(),
        ignored: found.ignored(),
        mean_iou: found.mean_iou(),
        mean_iou_interval: found.mean_iou_interval(),
        pixel_accuracy: found.pixel_accuracy(),
        mean_accuracy: found.mean_accuracy(),
        nll,
        brier,
        ece,
        binning,
        reliability: binning.reliability(&scores),
        iou: (0..classes).map(|class| found.iou(class)).collect(),
        class_accuracy: (0..classes).map(|class| found.class_accuracy(class)).collect(),
        confusion: found.confusion.chunks_exact(classes).map(<[u64]>::to_vec).collect(),
        windows,
        images_per_second: found.maps() as f64 / seconds,
    };
    let routing = routing.iter_mut().map(RoutingTally::take).collect();
    Ok(SegmentationTest { record, routing, shown })
}

/// Pictures in groups whose maps fit into memory together, of one picture at least.
///
/// - `planes`: numbers per pixel
fn within_memory(all: &[MaskedPicture], planes: usize) -> impl Iterator<Item = &[MaskedPicture]> {
    let bytes = move |one: &MaskedPicture| one.mask.len().saturating_mul(4 * planes);
    let mut rest = all;
    std::iter::from_fn(move || {
        let mut sum = 0_usize;
        let fits = |one: &&MaskedPicture| {
            sum = sum.saturating_add(bytes(one));
            sum <= MOST_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (group, others) = rest.split_at(count);
        rest = others;
        (!group.is_empty()).then_some(group)
    })
}

/// Adds the pixels of a map that count.
///
/// - `probabilities`: `[H · W, classes]`
fn add_scores(scores: &mut Scores, probabilities: &[f32], classes: usize, mask: &[u8]) {
    let mut row = vec![0.0; classes];
    for (own, label) in probabilities.chunks_exact(classes).zip(mask) {
        if *label != IGNORED {
            row.iter_mut().zip(own).for_each(|(to, from)| *to = f64::from(*from));
            scores.add(&row, usize::from(*label));
        }
    }
}

/// Classes that a table shows by themselves.
const MOST_CLASSES: usize = 60;

impl SegmentationRecord {
    /// The mean intersection over union in per cent, with its interval.
    pub fn mean_iou_in_words(&self) -> String {
        share_within(self.mean_iou, self.mean_iou_interval.as_ref(), self.samples)
    }

    /// How far that may be off; empty where it is not known.
    pub fn interval_in_words(&self) -> String {
        self.mean_iou_interval.map_or(String::new(), |interval| {
            format!("95 % interval {:.1}–{:.1} %", 100.0 * interval.low, 100.0 * interval.high)
        })
    }

    /// A row per class: name, intersection over union, accuracy.
    pub fn rows(&self, classes: &[String]) -> Vec<[String; 3]> {
        let share = |share: &Option<f64>| {
            share.map_or("—".to_owned(), |share| format!("{:.1} %", 100.0 * share))
        };
        let cells = self.iou.iter().zip(&self.class_accuracy);
        let rows = classes.iter().zip(cells);
        rows.map(|(class, (iou, accuracy))| [class.clone(), share(iou), share(accuracy)]).collect()
    }

    pub(crate) fn facts(&self) -> Vec<Fact> {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        vec![
            ("Mean IoU", percent(self.mean_iou), self.interval_in_words()),
            ("Pixels right", percent(self.pixel_accuracy), String::new()),
            ("Mean of the classes' accuracies", percent(self.mean_accuracy), String::new()),
            ("NLL", format!("{:.3}", self.nll), "nats per pixel".to_owned()),
            (
                "Calibration error",
                percent(self.ece),
                format!("of pixels, {} bins", self.binning.bins),
            ),
        ]
    }

    pub(crate) fn section(&self, draft: Draft, classes: &[String]) -> Draft {
        let mut order: Vec<usize> =
            (0..classes.len()).filter(|class| self.iou[*class].is_some()).collect();
        order.sort_by(|a, b| self.iou[*a].partial_cmp(&self.iou[*b]).expect("shares are numbers"));
        order.truncate(MOST_CLASSES);
        let bars = Bars {
            title: "Intersection over union by class".to_owned(),
            x_label: String::new(),
            y_label: "%".to_owned(),
            labels: order.iter().map(|class| classes[*class].clone()).collect(),
            groups: vec![(
                "IoU".to_owned(),
                order.iter().map(|class| 100.0 * self.iou[*class].unwrap_or_default()).collect(),
            )],
            reference: Some(("mean".to_owned(), 100.0 * self.mean_iou)),
            errors: Vec::new(),
        };
        let row = |row: &Vec<u64>| row.iter().map(|count| *count as f64).collect();
        let confusion = HeatMap {
            title: "Confusion of pixels".to_owned(),
            row_label: "what pixels are of".to_owned(),
            column_label: "what they are taken for".to_owned(),
            rows: classes.to_vec(),
            columns: classes.to_vec(),
            values: self.confusion.iter().map(row).collect(),
        };
        let line = counted(series("as it is", &self.reliability), &self.reliability);
        let figures = vec![
            ("pixel-classes".to_owned(), bars.svg()),
            ("pixel-confusion".to_owned(), confusion.svg()),
            ("pixel-reliability".to_owned(), reliability(vec![line])),
        ];
        let text = format!(
            "{} pixels of {} images count; {} do not, since nobody has said what they are. {}",
            self.pixels,
            self.samples,
            self.ignored,
            match self.windows {
                Windows::Sliding => {
                    "Images of another shape than the model's were looked at through windows of its size."
                }
                Windows::Whole => "Images were looked at as a whole, whatever their shape.",
            }
        );
        draft.add(|page| page.section("Pixels").text(&text)).figures(figures)
    }
}
