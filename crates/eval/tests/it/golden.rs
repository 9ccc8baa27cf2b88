//! Parity of metrics and probes with NumPy, scikit-learn and vmoe.

use burn::tensor::Device;
use omma_eval::{
    OodPositive, OodRecord,
    metrics::{
        Diversity, Embeddings, Retrieval, Scores, Segmentation, largest, mean_of_members,
        zero_shot_classifier,
    },
    probe::Support,
};
use omma_golden::{Case, Kind, check_cases};

#[test]
fn metrics_and_probes_agree_with_their_references() {
    check_cases(
        |kind| {
            let own = [Kind::Metrics, Kind::FewShot, Kind::Detection];
            own.contains(&kind) || [Kind::ZeroShot, Kind::Retrieval].contains(&kind)
        },
        |kind, case| match kind {
            Kind::Metrics => metrics(case),
            Kind::Detection => detection(case),
            Kind::ZeroShot => zero_shot(case),
            Kind::Retrieval => retrieval(case),
            _ => fewshot(case),
        },
    );
}

/// `[M, N, C]` as `[N]` of `[M]` of `[C]`.
fn by_input(case: &Case, name: &str) -> Vec<Vec<Vec<f64>>> {
    let [members, inputs, classes] = case.shape(name) else { panic!("{name} has three axes") };
    let values: Vec<f64> = case.floats(name).iter().map(|v| f64::from(*v)).collect();
    let row = |m: usize, n: usize| values[(m * inputs + n) * classes..][..*classes].to_vec();
    (0..*inputs).map(|n| (0..*members).map(|m| row(m, n)).collect()).collect()
}

fn indices(case: &Case, name: &str) -> Vec<usize> {
    case.ints(name).iter().map(|v| *v as usize).collect()
}

/// Our scores are higher for what is further out: the case's confidences, but for their sign.
fn detection(case: &Case) {
    let scores = |name: &str| -> Vec<f64> {
        case.floats(name).iter().map(|confidence| -f64::from(*confidence)).collect()
    };
    let (outside, inside) = (scores("input/outside"), scores("input/inside"));
    for (side, positive) in
        [("inside", OodPositive::InDistribution), ("outside", OodPositive::OutOfDistribution)]
    {
        let OodRecord { auroc, aupr, fpr95, .. } =
            OodRecord::new(&outside, &inside, positive).unwrap();
        for (name, value) in [("auroc", auroc), ("aupr", aupr), ("fpr95", fpr95)] {
            case.expect_values(&format!("output/{side}_positive.{name}"), &[value as f32]);
        }
    }
    assert_eq!(OodPositive::default(), OodPositive::InDistribution, "as in paper 000");
}

fn metrics(case: &Case) {
    let labels = indices(case, "input/labels");
    let predictions = by_input(case, "input/member_probs");
    let (members, bins) = (case.size("M"), case.size("ece_bins"));
    let mut own = vec![Scores::new(bins); members];
    let mut ensemble = Scores::new(bins);
    let mut diversity = Diversity::new(members).unwrap();
    for (members, label) in predictions.iter().zip(&labels) {
        let members: Vec<&[f64]> = members.iter().map(Vec::as_slice).collect();
        for (scores, member) in own.iter_mut().zip(&members) {
            scores.add(member, *label);
        }
        ensemble.add(&mean_of_members(members.iter().copied()), *label);
        diversity.add(&members);
    }
    let each = |of: fn(&Scores) -> f64| own.iter().map(|s| of(s) as f32).collect::<Vec<f32>>();
    let one =
        |name: &str, value: f64| case.expect_values(&format!("output/{name}"), &[value as f32]);
    case.expect_values("output/member_nll", &each(Scores::nll));
    case.expect_values("output/member_error", &each(Scores::error));
    case.expect_values("output/member_brier", &each(Scores::brier));
    case.expect_values("output/member_ece", &each(|s| s.calibration().ece()));
    one("ensemble_nll", ensemble.nll());
    one("ensemble_error", ensemble.error());
    one("ensemble_brier", ensemble.brier());
    one("ensemble_ece", ensemble.calibration().ece());
    let counts = ensemble.calibration().bins().iter().map(|bin| bin.samples as i32);
    case.expect_ints("output/ensemble_ece_bin_counts", counts);
    one("kl_diversity", diversity.kl());
    one("cosine_similarity", diversity.cosine());
    one("disagreement", diversity.disagreement());
    one("normalised_disagreement_ensemble_error", diversity.disagreement() / ensemble.error());
    let mean_error = own.iter().map(Scores::error).sum::<f64>() / members as f64;
    one("normalised_disagreement_mean_member_error", diversity.disagreement() / mean_error);

    let confidence = |name: &str| -> Vec<f64> {
        let mean = |members: &Vec<Vec<f64>>| mean_of_members(members.iter().map(Vec::as_slice));
        by_input(case, name).iter().map(mean).map(|p| p[largest(&p)]).collect()
    };
    let (known, strange) = (confidence("input/member_probs"), confidence("input/ood_member_probs"));
    let floats = |values: &[f64]| values.iter().map(|v| *v as f32).collect::<Vec<f32>>();
    case.expect_values("output/id_score", &floats(&known));
    case.expect_values("output/ood_score", &floats(&strange));
    let score = |values: &[f64]| values.iter().map(|v| 1.0 - v).collect::<Vec<f64>>();
    for (name, positive) in [
        ("id_positive", OodPositive::InDistribution),
        ("ood_positive", OodPositive::OutOfDistribution),
    ] {
        let found = OodRecord::new(&score(&strange), &score(&known), positive).unwrap();
        one(&format!("{name}.auroc"), found.auroc);
        one(&format!("{name}.aupr"), found.aupr);
        one(&format!("{name}.fpr95"), found.fpr95);
    }

    let classes = case.size("seg_classes");
    let mut segmentation = Segmentation::new(classes);
    let bytes =
        |name| indices(case, name).into_iter().map(|class| class as u8).collect::<Vec<u8>>();
    segmentation.add(&bytes("input/seg_labels"), &bytes("input/seg_pred"));
    case.expect_ints("output/seg_confusion", segmentation.confusion.iter().map(|c| *c as i32));
    let iou: Vec<Option<f64>> = (0..classes).map(|class| segmentation.iou(class)).collect();
    case.expect_values(
        "output/seg_iou",
        &floats(&iou.iter().map(|i| i.unwrap_or(0.0)).collect::<Vec<_>>()),
    );
    case.expect_ints("output/seg_class_present", iou.iter().map(|i| i32::from(i.is_some())));
    one("seg_miou", segmentation.mean_iou());
    one("seg_pixel_accuracy", segmentation.pixel_accuracy());
}

fn fewshot(case: &Case) {
    let classes = case.size("num_classes");
    for problem in ["primal", "dual"] {
        let input = |name: &str| format!("input/{problem}.{name}");
        let output = |name: &str| format!("output/{problem}.{name}");
        let labels = indices(case, &input("y"));
        let support =
            Support::new(case.floats(&input("x")), &labels, classes, &Device::flex()).unwrap();
        let (test, labels) = (case.floats(&input("x_test")), indices(case, &input("y_test")));
        let floats = |values: &[f64]| values.iter().map(|v| *v as f32).collect::<Vec<f32>>();
        case.expect_values(&output("mean"), &floats(support.mean()));
        case.expect_values(&output("std"), &floats(support.deviation()));
        let (mut weights, mut scores, mut accuracy) = (Vec::new(), Vec::new(), Vec::new());
        for l2 in case.floats(&input("l2")) {
            let probe = support.solve(f64::from(*l2)).unwrap();
            weights.extend(floats(&probe.weights()));
            scores.extend(floats(&probe.scores(test)));
            accuracy.push(probe.accuracy(test, &labels) as f32);
        }
        case.expect_values(&output("w"), &weights);
        case.expect_values(&output("scores"), &scores);
        case.expect_values(&output("accuracy"), &accuracy);
    }
}

fn embeddings(case: &Case, name: &str) -> Embeddings {
    Embeddings::new(case.floats(name).to_vec(), *case.shape(name).last().unwrap())
}

fn zero_shot(case: &Case) {
    let device = Device::flex();
    let prompts = embeddings(case, "input/prompt_embeddings");
    let classifier = zero_shot_classifier(&prompts, case.size("prompts")).tensor(&device);
    let classifier = classifier.transpose();
    case.expect("output/classifier", &classifier);
    let logits = embeddings(case, "input/image").tensor(&device).matmul(classifier);
    case.expect("output/logits", &logits);
    let logits = Embeddings::of(logits);
    case.expect_ints("output/predicted", logits.rows().map(|logits| largest(logits) as i32));
}

fn retrieval(case: &Case) {
    let (images, texts) = (embeddings(case, "input/image"), embeddings(case, "input/text"));
    let owners = indices(case, "input/owner");
    let found = Retrieval::of(&images, &texts, &owners, &Device::flex(), &mut ()).unwrap().unwrap();
    for (way, found) in
        [("text_to_image", found.text_to_image), ("image_to_text", found.image_to_text)]
    {
        for (k, share) in found.recall.each() {
            case.expect_values(&format!("output/{way}_recall_at_{k}"), &[*share as f32]);
        }
    }
}
