//! What `omma eval` prints of an evaluation.

use anyhow::Result;
use omma_eval::{
    CaptionRecord, Evaluation, SegmentationRecord, SubsetsRecord, Summary, SummaryIntervals,
    TestRecord, digits::Digits, few_shot_table,
};

use crate::table::{grouped, note, say, table, table_of};

/// Pairs of classes that a line has room for.
const MOST_CONFUSED: usize = 3;

/// The scores of a test, a row of their intervals below each that has them.
struct Shown {
    digits: Digits,
    rows: Vec<Vec<String>>,
}

impl Shown {
    fn add(&mut self, name: &str, scores: &Summary, intervals: Option<&SummaryIntervals>) {
        let row = |name: &str, cells: Vec<String>| {
            std::iter::once(name.to_owned()).chain(cells).collect::<Vec<String>>()
        };
        self.rows.push(row(name, self.digits.scores(scores).cells()));
        let intervals = intervals.map(|all| self.digits.intervals(all).cells());
        self.rows.extend(intervals.map(|cells| row("  95 % interval", cells)));
    }
}

/// Prints what was found.
pub(crate) fn show(evaluation: &Evaluation) -> Result<()> {
    let samples = grouped(evaluation.samples() as u64);
    say(format!("{samples} images of {}{}", evaluation.data, evaluation.among()))?;
    if let Some(test) = &evaluation.test {
        show_test(evaluation, test)?;
    }
    if let Some(found) = &evaluation.segmentation {
        show_segmentation(&evaluation.classes, found)?;
    }
    if let Some(captions) = evaluation.contrast.as_ref().and_then(|all| all.captions.as_ref()) {
        show_captions(captions)?;
    }
    Ok(())
}

/// What pixels are taken for.
fn show_segmentation(classes: &[String], found: &SegmentationRecord) -> Result<()> {
    say(table(["class", "IoU", "pixels right"], found.rows(classes), 1))?;
    say(format!("mean IoU {}", found.mean_iou_in_words()))?;
    say(format!(
        "pixels right {:.1} %, the mean over classes {:.1} %; NLL {:.3}, calibration error {:.1} %",
        100.0 * found.pixel_accuracy,
        100.0 * found.mean_accuracy,
        found.nll,
        100.0 * found.ece
    ))
}

/// How images and texts find each other.
fn show_captions(captions: &CaptionRecord) -> Result<()> {
    let header = CaptionRecord::HEADER.map(str::to_owned);
    say(table_of(&header, &captions.rows(), 1))?;
    let [images, texts] = captions.told_apart();
    say(format!("pairs told apart: {images} of the images, {texts} of the texts"))?;
    say(format!("in {}", captions.batches_in_words()))?;
    say(format!("captions: {}", captions.texts_in_words()))
}

fn show_test(evaluation: &Evaluation, test: &TestRecord) -> Result<()> {
    let mut shown = Shown { digits: Digits::of(test), rows: Vec::new() };
    shown.add(&evaluation.label, &test.summary, test.intervals.as_ref());
    if let Some(scaled) = &evaluation.temperature {
        if scaled.is_at_end() {
            note(format!(
                "no temperature is best: {} held-out images leave it at {:.3}, the end of what is tried",
                scaled.fitted_on, scaled.value
            ));
        }
        let name = format!("temperature {:.3}", scaled.value);
        shown.add(&name, &scaled.summary, scaled.intervals.as_ref());
    }
    for (place, scores) in test.members.iter().enumerate() {
        shown.add(&format!("member {}", place + 1), scores, None);
    }
    if let Some(shift) = &evaluation.shift {
        shown.add("under corruptions", &shift.mean.overall.summary, None);
        let scores = shift.corruptions.iter().map(|(name, record)| (name, record.overall.summary));
        let worst = scores.max_by(|a, b| a.1.error.total_cmp(&b.1.error));
        if let Some((name, scores)) = worst {
            shown.add(&format!("under {}", name.replace('_', " ")), &scores, None);
        }
    }
    let top5 = test.summary.top5_error.map(|_| "top-5 error");
    let header = ["", "error"].into_iter().chain(top5).chain(["NLL", "Brier", "ECE"]);
    let header: Vec<String> = header.map(str::to_owned).collect();
    say(table_of(&header, &shown.rows, 1))?;
    let prompts = evaluation.contrast.as_ref().and_then(|found| found.prompts.as_ref());
    if let Some(prompts) = prompts {
        let sentences = match prompts.templates.len() {
            1 => "one sentence".to_owned(),
            count => format!("{count} sentences"),
        };
        say(format!("zero-shot: classes are known by their names alone, each in {sentences}"))?;
    }
    if let Some(scaled) = &evaluation.temperature {
        let images = grouped(scaled.fitted_on as u64);
        say(format!("the temperature is fitted on {images} images that training held out"))?;
    }
    let pairs = test.confusion.as_ref().map(|all| all.rows(&evaluation.classes, MOST_CONFUSED));
    let pairs = pairs.unwrap_or_default();
    if !pairs.is_empty() {
        let pair = |[own, other, images]: &[String; 3]| format!("{own} for {other} ({images})");
        let pairs: Vec<String> = pairs.iter().map(pair).collect();
        say(format!("most often taken: {}", pairs.join(", ")))?;
    }
    if let Some(diversity) = &test.diversity {
        say(format!("members differ by {}", diversity.in_words()))?;
    }
    if let Some(shift) = &evaluation.shift {
        if let Some(diversity) = &shift.mean.overall.diversity {
            say(format!("under corruptions by {}", diversity.in_words()))?;
        }
        say(format!("corrupted images: {}", shift.origin_in_words()))?;
    }
    if !evaluation.few_shot.is_empty() {
        let (header, rows) = few_shot_table(&evaluation.few_shot);
        say(table_of(&header, &rows, 1))?;
    }
    if let Some(subsets) = &evaluation.subsets {
        say(table(SubsetsRecord::HEADER, subsets.rows(), 1))?;
    }
    if !evaluation.ood.is_empty() {
        let rows = evaluation.ood.iter().map(|(name, record)| {
            let [auroc, aupr, base, fpr95] = record.cells();
            let images = grouped(record.samples as u64);
            [name.clone(), images, auroc, aupr, base, fpr95]
        });
        let header =
            ["out of distribution", "images", "AUROC", "AUPR", "its base rate", "FPR at 95 % TPR"];
        say(table(header, rows, 1))?;
        say(format!("the positive class are the {} images", evaluation.ood_positive.in_words()))?;
    }
    Ok(())
}
