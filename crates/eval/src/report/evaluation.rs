//! The page of one evaluation: what each protocol has to show, and what it all cost.

use omma_report::Page;

use super::{Draft, Fact, Report, pictures};
use crate::{
    gallery::Gallery,
    protocols::{
        Evaluation, contrast::ContrastRecord, ood, segmentation::SegmentationRecord,
        test::TestRecord, transfer,
    },
};

/// Scores, calibration, members, corruptions and out-of-distribution images on one page, of the record alone.
pub fn evaluation_page(evaluation: &Evaluation) -> Report {
    evaluation_page_with(evaluation, &Gallery::default())
}

/// The same with pictures.
pub fn evaluation_page_with(evaluation: &Evaluation, gallery: &Gallery) -> Report {
    let title = format!("Evaluation of {}", evaluation.models.join(" + "));
    let Evaluation { data, test, contrast, .. } = evaluation;
    let about = format!("{} images of {data}{}", evaluation.samples(), evaluation.among());
    let mut facts: Vec<Fact> = test.iter().flat_map(TestRecord::facts).collect();
    facts.extend(evaluation.segmentation.iter().flat_map(SegmentationRecord::facts));
    facts.extend(contrast.iter().flat_map(ContrastRecord::facts));
    facts.extend(evaluation.shift.as_ref().map(|shift| shift.fact()));
    facts.extend(ood::fact(&evaluation.ood));
    facts.extend(transfer::fact(&evaluation.few_shot));
    let mut draft = Draft::new(Page::new(title, about).facts(facts));
    if let Some(found) = &evaluation.segmentation {
        draft = found.section(draft, &evaluation.classes);
        draft = pictures::segmentation(draft, gallery, &evaluation.classes);
    }
    if let Some(contrast) = contrast {
        draft = contrast.section(draft);
        draft = pictures::retrieval(draft, gallery);
    }
    if let Some(test) = test {
        draft = tested(draft, evaluation, test, gallery);
    }
    let Evaluation { ood, ood_score, ood_positive, .. } = evaluation;
    draft = ood::section(draft, ood, *ood_score, *ood_positive);
    draft = transfer::section(draft, &evaluation.few_shot);
    draft = pictures::experts(draft, gallery);
    draft.add(|page| page.section("Cost").table(&["", ""], &cost(evaluation))).finish()
}

/// What there is to show of predictions.
fn tested(
    mut draft: Draft,
    evaluation: &Evaluation,
    test: &TestRecord,
    gallery: &Gallery,
) -> Draft {
    draft = test.section(draft, &evaluation.classes);
    draft = pictures::predictions(draft, gallery);
    if let Some(temperature) = &evaluation.temperature {
        draft = temperature.section(draft, test);
    }
    draft = test.members_section(draft);
    if let Some(shift) = &evaluation.shift {
        draft = shift.section(draft, test);
        draft = pictures::corruption(draft, gallery);
    }
    if let Some(subsets) = &evaluation.subsets {
        draft = subsets.section(draft, &evaluation.classes);
    }
    draft
}

fn cost(evaluation: &Evaluation) -> Vec<Vec<String>> {
    let millions = |count: u64| format!("{:.2} M", count as f64 / 1e6);
    let cost = evaluation.cost;
    let pixels = || evaluation.segmentation.as_ref().map(|found| found.images_per_second);
    let speed = evaluation.test.as_ref().map(|test| test.images_per_second).or_else(pixels);
    let speed = speed.map(|speed| format!("{speed:.0} images/s"));
    let memory = evaluation.peak_rss_bytes.map(|bytes| format!("{} MiB", bytes >> 20));
    let rows = [
        ("parameters", millions(cost.parameters)),
        ("multiply-adds per image", millions(cost.forward_macs)),
        ("training FLOPs per image", millions(cost.training_flops)),
        ("speed of this evaluation", speed.unwrap_or_else(|| "—".to_owned())),
        ("peak memory", memory.unwrap_or_else(|| "—".to_owned())),
    ];
    rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
}
