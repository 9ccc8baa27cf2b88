//! Comparisons of evaluations that are made up, so that every number can be checked by hand.

use std::collections::BTreeMap;

use omma_eval::{
    Binning, DiversityRecord, Evaluation, OodRecord, OodScore, Summary, SystemCost, SystemKind,
    TestRecord, compare::Comparison, report::comparison_page,
};

fn evaluation(label: &str, nll: f64, flops: u64, kind: SystemKind) -> Evaluation {
    Evaluation {
        label: label.to_owned(),
        fingerprint: format!("{kind:?}"),
        models: vec![format!("{label}-{nll}"); kind.models],
        data: "made up".to_owned(),
        classes: vec!["a".to_owned(), "b".to_owned()],
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
            OodRecord::new(&[0.9, 0.8, 0.2], &[0.1, 0.3]).unwrap(),
        )]),
        ood_score: OodScore::default(),
        cost: SystemCost { parameters: 10, forward_macs: flops / 6, training_flops: flops },
        peak_rss_bytes: None,
        kind,
    }
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
    assert!((found.rows[1].auroc["far"].mean - 5.0 / 6.0).abs() < 1e-12);
    assert!(found.markdown().starts_with("| system | runs |"));
    let page = comparison_page(&found, "<b>", "about");
    assert!(page.html.contains("&lt;b&gt;") && page.figures.iter().any(|(name, _)| name == "nll"));
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
    assert!(Comparison::new(&[here], Some("c")).unwrap_err().to_string().contains("\"c\""));
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
