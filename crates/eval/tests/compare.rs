//! Comparisons of evaluations that are made up, so that every number can be checked by hand.

use std::collections::BTreeMap;

use omma_eval::{
    Binning, DiversityRecord, Evaluation, JudgedClasses, OodPositive, OodRecord, OodScore, Shift,
    ShiftOrigin, ShiftRecord, Shifted, Summary, SystemCost, SystemKind, TestRecord,
    compare::Comparison, report::comparison_page,
};

fn evaluation(label: &str, nll: f64, flops: u64, kind: SystemKind) -> Evaluation {
    Evaluation {
        label: label.to_owned(),
        fingerprint: format!("{kind:?}"),
        models: vec![format!("{label}-{nll}"); kind.models],
        data: "made up".to_owned(),
        classes: vec!["a".to_owned(), "b".to_owned()],
        judged_classes: None,
        test: TestRecord {
            samples: 100,
            summary: Summary { error: nll / 4.0, nll, brier: 0.3, ece: 0.02 },
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
            images_per_second: 1.0,
        },
        temperature: None,
        shift: None,
        ood: BTreeMap::from([(
            "far".to_owned(),
            OodRecord::new(&[0.9, 0.8, 0.2], &[0.1, 0.3], OodPositive::default()).unwrap(),
        )]),
        ood_score: OodScore::default(),
        ood_positive: OodPositive::default(),
        cost: SystemCost { parameters: 10, forward_macs: flops / 6, training_flops: flops },
        peak_rss_bytes: None,
        kind,
    }
}

/// The same evaluation with corruptions too.
fn shifted(evaluation: Evaluation, nll: f64, kl: Option<f64>) -> Evaluation {
    let diversity = kl.map(|kl| DiversityRecord { kl, ..DiversityRecord::default() });
    let overall = Shifted { summary: Summary { nll, ..evaluation.test.summary }, diversity };
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
    assert!((found.rows[0].nll.mean - 0.52).abs() < 1e-12);
    assert!((found.rows[0].nll.standard_error.unwrap() - 0.02).abs() < 1e-12);
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
    assert_eq!(table.header, ["against far", "AUROC %", "AUPR %", "FPR95 %"]);
    assert_eq!(table.rows, [["vit", "83.33", "83.33", "33.33"]]);
    assert!(found.markdown().contains("| vit | 83.33 | 83.33 | 33.33 |"));
    let html = comparison_page(&found, "t", "a").html;
    assert!(
        html.contains("against far")
            && html.contains("AUPR %")
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
    let [systems, _, gains] = &found.tables()[..] else { panic!("three tables") };
    assert_eq!(systems.header.last().unwrap(), "shifted KL");
    let last = |row: &Vec<String>| row.last().cloned().unwrap();
    assert_eq!(systems.rows.iter().map(last).collect::<Vec<_>>(), ["—", "0.2500", "—"]);
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
    let fewer = Evaluation { test: TestRecord { samples: 7, ..here.test.clone() }, ..here.clone() };
    let message = Comparison::new(&[here.clone(), fewer], None).unwrap_err().to_string();
    assert!(message.contains("100 images") && message.contains("7 images"), "{message}");
    let cut = Binning { bins: 20, ..Binning::default() };
    let binned =
        Evaluation { test: TestRecord { binning: cut, ..here.test.clone() }, ..here.clone() };
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
    perfect.test.summary.error = 0.0;
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
