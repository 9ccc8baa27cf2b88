//! Comparisons of evaluations that are made up, so that every number can be checked by hand.

use std::collections::BTreeMap;

use omma_eval::{
    Binning, DiversityRecord, Evaluation, ImageOutcome, ImageResults, JudgedClasses, OodPositive,
    OodRecord, OodScore, Outcomes, Shift, ShiftOrigin, ShiftRecord, Shifted, Summary, SystemCost,
    SystemKind, TestRecord,
    compare::{Alike, Comparison, Subject},
    report::comparison_page,
};

fn evaluation(label: &str, nll: f64, flops: u64, kind: SystemKind) -> Evaluation {
    Evaluation {
        label: label.to_owned(),
        fingerprint: format!("{kind:?}"),
        models: vec![format!("{label}-{nll}"); kind.models],
        data: "made up".to_owned(),
        classes: vec!["a".to_owned(), "b".to_owned()],
        judged_classes: None,
        test: Some(TestRecord {
            samples: 100,
            summary: Summary { error: nll / 4.0, top5_error: None, nll, brier: 0.3, ece: 0.02 },
            intervals: None,
            binning: Binning::default(),
            members: Vec::new(),
            diversity: (kind.members > 1).then_some(DiversityRecord {
                kl: 0.1 * nll,
                cosine: 0.9,
                disagreement: 0.5,
                disagreement_share: 0.1,
            }),
            reliability: Vec::new(),
            class_errors: vec![Some(0.1), None],
            confusion: None,
            images_per_second: 1.0,
        }),
        contrast: None,
        segmentation: None,
        temperature: None,
        shift: None,
        subsets: None,
        few_shot: BTreeMap::new(),
        ood: BTreeMap::from([(
            "far".to_owned(),
            OodRecord::new(&[0.9, 0.8, 0.2], &[0.1, 0.3], OodPositive::default()).unwrap(),
        )]),
        ood_score: OodScore::default(),
        ood_positive: OodPositive::default(),
        cost: SystemCost { parameters: 10, forward_macs: flops / 6, training_flops: flops },
        peak_rss_bytes: None,
        options: Some(Vec::new()),
        images_seal: None,
        images: ImageResults::None,
        kind,
    }
}

/// What it has on the test images, changed.
fn with(evaluation: &Evaluation, change: impl FnOnce(&mut TestRecord)) -> Option<TestRecord> {
    let mut test = evaluation.test.clone();
    test.as_mut().map(change);
    test
}

/// The same evaluation with corruptions too.
fn shifted(evaluation: Evaluation, nll: f64, kl: Option<f64>) -> Evaluation {
    let diversity = kl.map(|kl| DiversityRecord { kl, ..DiversityRecord::default() });
    let overall = Shifted {
        summary: Summary { nll, ..evaluation.test.as_ref().unwrap().summary },
        diversity,
    };
    let record = ShiftRecord { overall, severities: vec![overall; 5] };
    let corruptions = BTreeMap::from([("fog".to_owned(), record.clone())]);
    let (origin, extra) = (Some(ShiftOrigin::Made { seed: 0 }), BTreeMap::new());
    let shift = Shift { origin, samples: 100, mean: record, extra, corruptions };
    Evaluation { shift: Some(shift), ..evaluation }
}

fn dense(family: &str) -> SystemKind {
    SystemKind { family: family.to_owned(), models: 1, members: 1, experts: None, k: None }
}

fn sparse(family: &str, k: usize, models: usize) -> SystemKind {
    let (experts, k) = (Some(8), Some(k));
    SystemKind { family: family.to_owned(), models, members: models, experts, k }
}

#[test]
fn seeds_become_means_and_gains_are_percentages() {
    let all = [
        evaluation("vit", 0.50, 1_000_000_000, dense("s")),
        evaluation("vit", 0.54, 1_000_000_000, dense("s")),
        evaluation("vmoe", 0.39, 1_200_000_000, sparse("s", 1, 1)),
    ];
    let found = Comparison::new(&all, None).unwrap();
    assert_eq!(found.rows.len(), 2);
    assert!((found.rows[0].nll.unwrap().mean - 0.52).abs() < 1e-12);
    assert!((found.rows[0].nll.unwrap().standard_error.unwrap() - 0.02).abs() < 1e-12);
    let gain = &found.gains[0];
    assert_eq!((gain.label.as_str(), gain.normalised_nll), ("vmoe", None));
    assert!((gain.nll.unwrap() - 25.0).abs() < 1e-9 && (gain.flops.unwrap() + 20.0).abs() < 1e-9);
    assert!(found.markdown().starts_with("| system | runs |"));
    let page = comparison_page(&found, "<b>", "about");
    assert!(page.html.contains("&lt;b&gt;") && page.figures.iter().any(|(name, _)| name == "nll"));
}

/// Scores of the test images are 0.1 and 0.3, of the others 0.2, 0.8 and 0.9: in the order of rising
/// scores one to be found, one other, one to be found.
#[test]
fn all_of_a_detection_is_compared() {
    let found = Comparison::new(&[evaluation("vit", 0.5, 1_000, dense("s"))], None).unwrap();
    let row = &found.rows[0];
    let close = |found: f64, expected: f64| (found - expected).abs() < 1e-12;
    assert!(close(row.auroc["far"].mean, 5.0 / 6.0));
    assert!(close(row.aupr["far"].mean, (1.0 + 2.0 / 3.0) / 2.0));
    assert!(close(row.fpr95["far"].mean, 1.0 / 3.0));
    let table = found.tables().into_iter().find(|table| table.header.len() == 4).unwrap();
    // Two of five images are to be found; a hundred images bear no digit behind the point.
    let header = ["against far", "AUROC %", "AUPR % (base rate 40.0)", "FPR95 %"];
    assert_eq!(table.header, header);
    assert_eq!(table.rows, [["vit", "83", "83", "33"]]);
    assert!(found.markdown().contains("| vit | 83 | 83 | 33 |"));
    let html = comparison_page(&found, "t", "a").html;
    assert!(
        html.contains("against far")
            && html.contains("AUPR % (base rate 40.0)")
            && html.contains("positive class are the in-distribution")
    );
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["ood_positive"], "in-distribution");
    assert_eq!(json["rows"][0]["aupr"]["far"]["mean"].as_f64(), Some(row.aupr["far"].mean));
}

#[test]
fn the_gain_under_shift_is_that_of_the_mean_over_corruptions() {
    let all = [
        shifted(evaluation("vit", 0.5, 1_000, dense("s")), 1.0, None),
        shifted(evaluation("vit", 0.5, 1_000, dense("s")), 1.2, None),
        shifted(evaluation("pair", 0.4, 2_000, sparse("s", 1, 2)), 0.88, Some(0.25)),
        evaluation("unshifted", 0.4, 1_000, sparse("s", 1, 1)),
    ];
    let found = Comparison::new(&all, None).unwrap();
    let gain = |label: &str| found.gains.iter().find(|gain| gain.label == label).unwrap();
    // 100 · (1.1 − 0.88) / 1.1
    assert!((gain("pair").shift_nll.unwrap() - 20.0).abs() < 1e-9);
    assert_eq!(gain("unshifted").shift_nll, None);
    assert_eq!(found.rows[1].shift_kl.unwrap().mean, 0.25);
    assert_eq!(found.rows[0].shift_kl, None);
    let [systems, _, _, gains] = &found.tables()[..] else { panic!("four tables") };
    assert_eq!(systems.header.last().unwrap(), "shifted KL");
    let last = |row: &Vec<String>| row.last().cloned().unwrap();
    assert_eq!(systems.rows.iter().map(last).collect::<Vec<_>>(), ["—", "0.250", "—"]);
    assert_eq!(gains.header[..3], ["gain over vit", "NLL", "shifted NLL"]);
    assert_eq!(gains.rows[0][..3], ["pair", "+20.0 %", "+20.0 %"]);
    assert_eq!(gains.rows[1][2], "—");
    let html = comparison_page(&found, "t", "a").html;
    assert!(html.contains("shifted KL") && html.contains("<td class=\"number\">+20.0 %</td>"));
    assert!(html.contains("pair, shifted NLL: 20") && !html.contains("unshifted, shifted NLL"));
    // Without a baseline that was judged by corruptions there is nothing to gain over.
    let over = Comparison::new(&all, Some("unshifted")).unwrap();
    assert!(over.gains.iter().all(|gain| gain.shift_nll.is_none()));
    let none = Comparison::new(&all[3..], None).unwrap();
    assert!(!none.markdown().contains("shifted NLL"), "no column for what nobody has");
}

#[test]
fn gains_of_small_families_count_less_once_the_slope_is_known() {
    let all = [
        evaluation("small", 0.60, 1_000_000_000, dense("s")),
        evaluation("large", 0.50, 8_000_000_000, dense("l")),
        evaluation("small sparse", 0.54, 1_000_000_000, sparse("s", 1, 1)),
        evaluation("large sparse", 0.45, 8_000_000_000, sparse("l", 1, 1)),
    ];
    let found = Comparison::new(&all, Some("small")).unwrap();
    let normalised = |label: &str| {
        found.gains.iter().find(|gain| gain.label == label).unwrap().normalised_nll.unwrap()
    };
    // NLL falls with ln FLOPs, so the slope at an eighth of the FLOPs is eight times as steep.
    assert!((normalised("large sparse") - 10.0).abs() < 1e-9);
    assert!((normalised("small sparse") - 10.0 / 8.0).abs() < 1e-6);
}

#[test]
fn a_full_grid_of_k_and_m_is_shown_and_half_a_grid_is_not() {
    let cell = |k: usize, m: usize, nll: f64| {
        let flops = 1_000_000_000 * (m as u64) + 100_000_000 * (k as u64);
        evaluation(&format!("k{k}m{m}"), nll, flops, sparse("s", k, m))
    };
    let all = [cell(1, 1, 0.6), cell(2, 1, 0.5), cell(1, 2, 0.55), cell(2, 2, 0.48)];
    let grid = Comparison::new(&all, None).unwrap().grid.unwrap();
    assert_eq!((grid.ks.as_slice(), grid.ms.as_slice()), (&[1, 2][..], &[1, 2][..]));
    assert_eq!(grid.cells[0].log_gain_per_gflop, None);
    assert!((grid.cells[1].log_gain_per_gflop.unwrap() - 1_f64.ln()).abs() < 1e-9);
    assert!(grid.cells[2].log_gain_per_gflop < grid.cells[1].log_gain_per_gflop);
    assert_eq!(Comparison::new(&all[..3], None).unwrap().grid, None);
}

#[test]
fn what_cannot_be_compared_is_said() {
    assert!(Comparison::new(&[], None).is_err());
    let here = evaluation("a", 0.5, 1, dense("s"));
    let there = Evaluation { data: "elsewhere".to_owned(), label: "b".to_owned(), ..here.clone() };
    let message = Comparison::new(&[here.clone(), there], None).unwrap_err().to_string();
    assert!(message.contains("made up") && message.contains("elsewhere"), "{message}");
    let fewer = Evaluation { test: with(&here, |test| test.samples = 7), ..here.clone() };
    let message = Comparison::new(&[here.clone(), fewer], None).unwrap_err().to_string();
    assert!(message.contains("100 images") && message.contains("7 images"), "{message}");
    let cut = Binning { bins: 20, ..Binning::default() };
    let binned = Evaluation { test: with(&here, |test| test.binning = cut), ..here.clone() };
    let message = Comparison::new(&[here.clone(), binned], None).unwrap_err().to_string();
    assert!(message.contains("15 bins of equal width") && message.contains("20 bins"), "{message}");
    let among = Evaluation { judged_classes: Some(JudgedClasses { of: 9 }), ..here.clone() };
    let message = Comparison::new(&[here.clone(), among], None).unwrap_err().to_string();
    assert!(message.contains("by 100 images of made up, a by 100 images of made up, among 2 of 9"));
    assert!(Comparison::new(&[here], Some("c")).unwrap_err().to_string().contains("\"c\""));
}

#[test]
fn detections_of_different_sides_are_not_compared() {
    let inside = evaluation("a", 0.5, 1, dense("s"));
    let outside = Evaluation {
        label: "b".to_owned(),
        ood_positive: OodPositive::OutOfDistribution,
        ..inside.clone()
    };
    // The one in front has nothing that either could contradict.
    let without = Evaluation { ood: BTreeMap::new(), ..inside.clone() };
    let all = [without.clone(), inside.clone(), outside.clone()];
    let message = Comparison::new(&all, None).unwrap_err().to_string();
    assert!(
        message.contains("a was judged with in-distribution images as the positive class")
            && message.contains("b with out-of-distribution images"),
        "{message}"
    );
    Comparison::new(&[without, outside], None).unwrap();
    let entropy = Evaluation { ood_score: OodScore::Entropy, ..inside.clone() };
    let message = Comparison::new(&[inside, entropy], None).unwrap_err().to_string();
    assert!(message.contains("largest probability") && message.contains("entropy"), "{message}");
}

#[test]
fn corrupted_images_of_different_origins_are_not_compared() {
    let with = |label: &str, origin: Option<ShiftOrigin>, samples: usize| {
        let made = shifted(evaluation(label, 0.5, 1_000, dense("s")), 1.0, None);
        let shift = Shift { origin, samples, ..made.shift.clone().unwrap() };
        Evaluation { shift: Some(shift), ..made }
    };
    let made = || with("a", Some(ShiftOrigin::Made { seed: 0 }), 100);
    let folder = "CIFAR-10-C".to_owned();
    let published = with("b", Some(ShiftOrigin::Published { folder }), 100);
    let message = Comparison::new(&[made(), published], None).unwrap_err().to_string();
    assert!(message.contains("made here") && message.contains("CIFAR-10-C"), "{message}");
    let message = Comparison::new(&[made(), with("b", None, 7)], None).unwrap_err().to_string();
    assert!(message.contains("100 images under 1 corruptions") && message.contains("7 images"));
    // Another draw of the same, and one of an earlier version, whose seed is not known.
    let other = with("b", Some(ShiftOrigin::Made { seed: 1 }), 100);
    Comparison::new(&[made(), other, with("c", None, 100)], None).unwrap();
}

#[test]
fn a_baseline_without_error_has_no_percentages() {
    let mut perfect = evaluation("perfect", 0.4, 1_000, dense("s"));
    perfect.test.as_mut().unwrap().summary.error = 0.0;
    let other = evaluation("other", 0.5, 1_000, sparse("s", 1, 1));
    let found = Comparison::new(&[perfect, other], None).unwrap();
    assert_eq!(found.gains[0].error, None);
    assert!(found.gains[0].nll.is_some());
    assert!(comparison_page(&found, "t", "a").html.contains("—"));
}

#[test]
fn systems_with_other_experts_are_on_another_grid() {
    let cell = |k: usize, m: usize, experts: usize| {
        let kind = SystemKind { experts: Some(experts), ..sparse("s", k, m) };
        evaluation(&format!("k{k}m{m}e{experts}"), 0.5, 1_000, kind)
    };
    let all = [cell(1, 1, 8), cell(2, 1, 8), cell(1, 2, 8), cell(2, 2, 32)];
    assert_eq!(Comparison::new(&all, None).unwrap().grid, None);
}

/// A hundred images of which these are wrong, each with its NLL.
fn with_images(one: Evaluation, wrong: &[u32], nll: impl Fn(u32) -> f32) -> Evaluation {
    let image = |index: u32| ImageOutcome {
        index,
        label: 0,
        predicted: u32::from(wrong.contains(&index)),
        rank: u32::from(wrong.contains(&index)),
        confidence: 0.9,
        nll: nll(index),
        brier: 0.1,
    };
    let images = (0..100).map(image).collect();
    let outcomes = Outcomes { images, identity: "these".to_owned() };
    Evaluation { images: ImageResults::Whole(outcomes), ..one }
}

#[test]
fn a_small_difference_on_hard_images_is_found_and_a_large_one_by_chance_is_not() {
    let base = |label: &str| evaluation(label, 0.5, 1_000, dense(label));
    // Images are hard or easy for both; one system is better by a little on each of them.
    let hard = |index: u32| if index.is_multiple_of(2) { 2.0 } else { 0.1 };
    let first = with_images(base("vit"), &[0, 1, 2], hard);
    let better = with_images(base("better"), &[0, 1], |index| hard(index) - 0.02);
    // And one by a lot on a few images and worse on others.
    let other = with_images(base("other"), &[3, 4, 5, 6], |index| match index {
        0..4 => 0.0,
        4..8 => 4.0,
        _ => hard(index),
    });
    let found = Comparison::new(&[first, better, other], None).unwrap();
    let better = found.gains[0].paired.as_ref().unwrap();
    assert!((better.nll.mean + 0.02).abs() < 1e-6 && better.nll.interval.width() < 1e-6);
    assert_eq!((better.mcnemar.gained, better.mcnemar.lost, better.mcnemar.p), (1, 0, 1.0));
    assert!((better.error.mean + 0.01).abs() < 1e-9);
    assert_eq!(better.verdict(), "better in NLL");
    let other = found.gains[1].paired.as_ref().unwrap();
    assert_eq!((other.mcnemar.gained, other.mcnemar.lost), (3, 4));
    assert_eq!(other.verdict(), "not distinguishable");
    let [_, verdict] = &found.verdicts()[..] else { panic!("two systems") };
    assert!(verdict.starts_with("other is not distinguishable from vit on 100 images: NLL"));
    let table = found.tables().pop().unwrap();
    assert_eq!(table.header[0], "less vit");
    assert_eq!(table.rows[1].last().unwrap(), "not distinguishable");
    assert!(table.rows[0][1].starts_with("−0.02"), "{table:?}");
    assert!(comparison_page(&found, "t", "a").html.contains("not distinguishable from vit"));
}

#[test]
fn seeds_are_paired_and_their_spread_widens_the_interval() {
    let one = |label: &str, nll: f32| {
        with_images(evaluation(label, 0.5, 1_000, dense(label)), &[1], move |_| nll)
    };
    let alone = Comparison::new(&[one("a", 1.0), one("b", 0.9)], None).unwrap();
    let alone = alone.gains[0].paired.as_ref().unwrap().nll.interval.width();
    assert!(alone < 1e-6, "images do not differ: {alone}");
    // The first pair differs by 0.1, the second by 0.5 the other way.
    let all = [one("a", 1.0), one("a", 1.0), one("b", 0.9), one("b", 1.5)];
    let found = Comparison::new(&all, None).unwrap();
    let paired = found.gains[0].paired.as_ref().unwrap();
    assert_eq!((paired.pairs, paired.images), (2, 100));
    assert!((paired.nll.mean - 0.2).abs() < 1e-6);
    assert!((paired.nll.interval.low + 0.1).abs() < 1e-6, "{paired:?}");
    assert!((paired.nll.interval.high - 0.5).abs() < 1e-6 && paired.verdict().starts_with("not"));
    assert!(paired.in_words("a").contains("100 images and 2 pairs of seeds:"));
    let uneven = Comparison::new(&all[1..], None).unwrap();
    let said = uneven.gains[0].paired.as_ref().unwrap().in_words("a");
    assert!(said.contains("100 images (1 more without a counterpart):"), "{said}");
}

#[test]
fn what_cannot_be_paired_is_said() {
    let old = evaluation("old", 0.5, 1_000, dense("s"));
    let new = with_images(evaluation("new", 0.5, 1_000, dense("t")), &[1], |_| 1.0);
    let said = |all: &[Evaluation]| Comparison::new(all, None).unwrap().verdicts()[0].clone();
    let message = said(&[new.clone(), old.clone()]);
    assert!(message.contains("old has no results of single images") && message.contains("again"));
    let lost = Evaluation { images: ImageResults::Lost("it is damaged".to_owned()), ..old };
    assert!(said(&[new.clone(), lost]).contains("it is damaged"));
    let mut elsewhere = new.clone();
    elsewhere.label = "elsewhere".to_owned();
    elsewhere.fingerprint = "other".to_owned();
    if let ImageResults::Whole(outcomes) = &mut elsewhere.images {
        outcomes.identity = "others".to_owned();
    }
    assert!(said(&[new, elsewhere]).contains("judged by different images"));
}

fn run(name: &str, evaluations: Vec<Evaluation>) -> Subject {
    Subject { name: name.to_owned(), is_run: true, data: Some("made up".to_owned()), evaluations }
}

fn asked(one: Evaluation, options: &[&str]) -> Evaluation {
    let options = options.iter().map(|word| (*word).to_owned()).collect();
    Evaluation { options: Some(options), ..one }
}

/// Without detection.
fn plain(label: &str) -> Evaluation {
    Evaluation { ood: BTreeMap::new(), ..evaluation(label, 0.5, 1_000, dense(label)) }
}

#[test]
fn the_richest_protocol_that_all_have_is_compared_and_the_rest_is_named() {
    let rich = |label: &str| asked(shifted(plain(label), 1.0, None), &["--shift"]);
    let full = |label: &str| {
        let ood = evaluation(label, 0.5, 1_000, dense(label)).ood;
        asked(Evaluation { ood, ..rich(label) }, &["--shift", "--ood", "far=/my data/far"])
    };
    let few = |label: &str| {
        let one = plain(label);
        let test = with(&one, |test| test.samples = 7);
        asked(Evaluation { test, ..one }, &["--limit", "7"])
    };
    let subjects = [
        run("runs/a", vec![plain("a"), few("a"), full("a")]),
        run("runs/b", vec![few("b"), plain("b"), rich("b")]),
    ];
    let Alike { evaluations, notes } = Alike::choose(&subjects).unwrap();
    assert!(evaluations.iter().all(|one| one.shift.is_some() && one.ood.is_empty()));
    assert!(evaluations.iter().all(|one| one.samples() == 100));
    let [missing, other] = &notes[..] else { panic!("{notes:?}") };
    assert!(
        missing.starts_with("runs/b was not judged against 3 images of far; make"),
        "{missing}"
    );
    assert!(missing.ends_with("omma eval runs/b --shift --ood 'far=/my data/far'"), "{missing}");
    assert!(other.contains("by 7 images of made up") && other.contains("name the folders"));
    // What one has alone is no matter where nobody has more.
    let alone = Alike::choose(&subjects[..1]).unwrap();
    assert!(!alone.evaluations[0].ood.is_empty());
    assert!(!alone.notes.iter().any(|note| note.contains("make it with")), "{:?}", alone.notes);
}

#[test]
fn runs_that_were_judged_by_different_data_say_what_they_have_and_what_to_do() {
    let elsewhere = Evaluation { data: "elsewhere".to_owned(), ..plain("b") };
    let subjects = [
        run("runs/a", vec![plain("a")]),
        run("runs/b", vec![asked(elsewhere, &["--data", "elsewhere"])]),
    ];
    let message = Alike::choose(&subjects).unwrap_err().to_string();
    for part in [
        "runs/a was judged by 100 images of made up with 15 bins",
        "runs/b was judged by 100 images of elsewhere",
        "omma eval runs/b",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let other = Subject { data: Some("else".to_owned()), ..subjects[1].clone() };
    let message = Alike::choose(&[subjects[0].clone(), other]).unwrap_err().to_string();
    assert!(message.ends_with("omma eval runs/b --data 'made up'"), "{message}");
    assert!(Alike::choose(&[]).is_err());
}

#[test]
fn costs_that_span_a_decade_have_a_logarithmic_axis_and_factors_are_no_percentages() {
    let all = |large: u64| {
        let mut far = evaluation("large", 0.25, large, sparse("s", 1, 1));
        far.test.as_mut().unwrap().summary.error = 1.9;
        [evaluation("small", 0.5, 1_000_000, dense("s")), far]
    };
    let ticks = |large: u64| {
        let found = Comparison::new(&all(large), None).unwrap();
        let page = comparison_page(&found, "t", "a");
        page.figures.iter().find(|(name, _)| name == "nll").unwrap().1.clone()
    };
    // Between 1 and 100 MFLOPs, 10 is in the middle of a logarithmic axis alone.
    assert!(ticks(100_000_000).contains(">10</text>") && !ticks(4_000_000).contains(">10</text>"));
    let svg = ticks(100_000_000);
    assert!(svg.contains(">baseline</text>") && svg.contains(">best</text>"));
    let found = Comparison::new(&all(15_700_000), None).unwrap();
    let text = found.markdown();
    assert!(text.contains("15.7×") && !text.contains("-1470"), "{text}");
    assert!(text.contains("small (baseline)") && text.contains("★ 0.25"), "{text}");
    let page = comparison_page(&found, "t", "a").html;
    assert!(page.contains("Times as much as small"), "an error of 15.2 times");
}
