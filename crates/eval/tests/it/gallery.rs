//! Pictures of an evaluation: what is shown of which model, how much that is to hold, and a page without them.

use std::sync::Arc;

use burn::tensor::Device;
use omma_base::{Resolution, Seed};
use omma_data::{
    GeneratedDataset, Picture, Sample, Shared, Split,
    world::{Variant, World},
};
use omma_eval::{
    Binning, Corrupted, Evaluation, Gallery, Images, OodPositive, OodProtocol, OodScore, Protocol,
    ShiftProtocol, System, evaluate,
    report::{evaluation_page, evaluation_page_with},
};
use omma_model::{VisionTransformer, apply_settings, preset, with_values};
use rand::RngExt;

const SMALL: [&str; 6] = ["resolution=16", "patch=8", "width=16", "depth=4", "heads=2", "mlp=32"];

/// A small model whose classifier tells images apart.
fn model(kind: &str, settings: &[&str]) -> (String, VisionTransformer) {
    let config = preset(kind).unwrap();
    let config = apply_settings(&config, &[&SMALL[..], settings].concat()).unwrap();
    let model = config.init(Seed::new(0), &Device::flex()).unwrap();
    let model = with_values(model, |parameter| {
        let values = (0..parameter.shape.iter().product()).map(|place: usize| (place as f32).sin());
        Ok((parameter.name == "head.weight").then(|| values.collect()))
    });
    (kind.to_owned(), model.unwrap())
}

fn world(images: usize) -> Shared {
    Arc::new(World::new(1, Resolution::square(16), images, Split::Test, Variant::Usual))
}

fn evaluated(
    models: Vec<(String, VisionTransformer)>,
    data: Shared,
    shifted: Option<usize>,
) -> (Evaluation, Gallery) {
    let corrupted = Corrupted::Made { seed: 0 };
    let protocol = Protocol {
        label: "m".to_owned(),
        fingerprint: String::new(),
        test: Images::new("images", data),
        validation: None,
        shift: shifted.map(|samples| ShiftProtocol { samples, corrupted }),
        subsets: None,
        few_shot: Default::default(),
        ood: OodProtocol {
            sets: Vec::new(),
            score: OodScore::MaxProbability,
            positive: OodPositive::InDistribution,
        },
        binning: Binning::default(),
        batch: 16,
        windows: Default::default(),
        predictions: None,
        options: Vec::new(),
    };
    let system = System::new(models, &Device::flex()).unwrap();
    evaluate(&system, &protocol, &mut ()).unwrap()
}

fn page(kind: &str, settings: &[&str]) -> String {
    let (evaluation, gallery) = evaluated(vec![model(kind, settings)], world(40), None);
    evaluation_page_with(&evaluation, &gallery).html
}

#[test]
fn a_page_is_made_of_its_record_alone_and_pictures_are_added_to_it() {
    let (evaluation, gallery) = evaluated(vec![model("vmoe-tiny", &[])], world(40), Some(4));
    let plain = evaluation_page(&evaluation).html;
    assert!(!plain.contains("<img") && !plain.contains("Predictions</h2>"));
    let with = evaluation_page_with(&evaluation, &gallery).html;
    let sections = |html: &str| -> Vec<String> {
        html.split("<section>\n<h2>").skip(1).map(|part| part.to_owned()).collect()
    };
    let (plain, with) = (sections(&plain), sections(&with));
    let title = |section: &String| section.split("</h2>").next().unwrap().to_owned();
    let titles: Vec<String> = plain.iter().map(title).collect();
    let added = with.iter().filter(|section| !titles.contains(&title(section)));
    let images = |section: &String| (title(section), section.matches("<img").count());
    let added: Vec<(String, usize)> = added.map(images).collect();
    let expected = [("Predictions", 84), ("What experts take", 16)];
    assert_eq!(added, expected.map(|(title, images)| (title.to_owned(), images)));
    let kept: Vec<String> = with.iter().map(title).filter(|own| titles.contains(own)).collect();
    assert_eq!(kept, titles, "the record's sections are in their order");
    // Three images of the worst corruption, clean and at every severity, are the only others.
    assert_eq!(with.iter().map(|section| images(section).1).sum::<usize>(), 84 + 16 + 3 * 6);
    for section in &plain {
        let body = section.split("</section>").next().unwrap();
        assert!(with.iter().any(|other| other.starts_with(body)), "{body}");
    }
}

#[test]
fn mistakes_unsure_predictions_confusions_and_classes_are_shown() {
    let html = page("vit-tiny", &[]);
    let part = |title: &str| -> String {
        let start = html.find(&format!("<h3>{title}</h3>")).unwrap_or_else(|| panic!("{title}"));
        let end = html[start + 4..].find("<h3>").map_or(html.len(), |end| start + 4 + end);
        html[start..end].to_owned()
    };
    let (mistakes, unsure) = (part("Surest mistakes"), part("Least sure"));
    assert_eq!((mistakes.matches("<img").count(), unsure.matches("<img").count()), (12, 12));
    assert!(mistakes.matches("✗").count() == 12 && mistakes.matches("it is ").count() == 12);
    let pairs = part("What is taken for what");
    let titles: Vec<&str> = pairs.split("<h4>").skip(1).collect();
    assert!(titles.len() == 8 && titles.iter().all(|title| title.contains(" → ")), "{pairs}");
    assert!(pairs.contains("it is ") && pairs.contains("for comparison"));
    let classes = part("Class by class");
    assert_eq!(classes.matches("<h4>").count(), 10, "the world's classes");
    assert!(classes.contains("% wrong"));
    assert!(!html.contains("What experts take"), "a dense model has none");
}

#[test]
fn every_router_shows_what_its_experts_take() {
    for (kind, settings, what) in [
        ("vmoe-tiny", &[][..], "patches that each expert takes"),
        ("vmoe-tiny", &["moe.router=softmax-expert-choice"], "patches that each expert takes"),
        ("vmoe-tiny", &["moe.router=sinkhorn-token-choice"], "patches that each expert takes"),
        ("vimoe-tiny", &[], "images that each expert takes"),
        ("softmoe-tiny", &[], "patches that weigh most"),
    ] {
        let html = page(kind, settings);
        let experts = html.split("<h2>What experts take</h2>").nth(1);
        let experts = experts.unwrap_or_else(|| panic!("{kind} {settings:?}"));
        assert!(experts.contains(what), "{kind} {settings:?}");
        assert!(experts.contains("by all 40 test images"), "{kind} {settings:?}");
        assert!(experts.contains("Experts by class: Block"), "{kind} {settings:?}");
        assert!(experts.contains("Expert ") && experts.contains("% of the tokens"));
        assert!(!experts.contains("Member "), "{kind} has one");
    }
}

#[test]
fn experts_of_members_are_apart() {
    let html = page("e3-tiny", &["moe.experts=4"]);
    let layers: Vec<&str> = html.split("<h3>Block").skip(1).collect();
    assert_eq!(layers.len(), 2);
    for layer in layers {
        let (first, second) =
            (layer.find("<h4>Member 1").unwrap(), layer.find("<h4>Member 2").unwrap());
        let (one, two) = (&layer[first..second], &layer[second..]);
        assert!(!one.contains("Expert 2") && !one.contains("Expert 3"), "experts of member 2");
        assert!(!two.contains("Expert 0") && !two.contains("Expert 1"), "experts of member 1");
        assert!(layer.contains(", member 1") && layer.contains(", member 2"), "two heat maps");
    }
}

#[test]
fn each_model_of_an_ensemble_has_its_layers() {
    let models = vec![model("vmoe-tiny", &[]), model("vit-tiny", &[]), model("vmoe-tiny", &[])];
    let (evaluation, gallery) = evaluated(models, world(30), None);
    let report = evaluation_page_with(&evaluation, &gallery);
    assert_eq!(report.html.matches("<h3>vmoe-tiny, block ").count(), 4);
    let mut files: Vec<String> = report.figures.into_iter().map(|(file, _)| file).collect();
    files.sort();
    assert!(files.windows(2).all(|pair| pair[0] != pair[1]), "a file of its own: {files:?}");
}

#[test]
fn the_worst_corruption_is_shown_clean_and_at_every_severity() {
    let (evaluation, gallery) = evaluated(vec![model("vit-tiny", &[])], world(40), Some(10));
    let shift = evaluation.shift.as_ref().unwrap();
    let error = |name: &String| shift.corruptions[name].overall.summary.error;
    let worst = shift.corruptions.keys().map(error).fold(0.0, f64::max);
    let html = evaluation_page_with(&evaluation, &gallery).html;
    let part = html.split("<h3>The worst: ").nth(1).unwrap();
    let (name, part) = part.split_once("</h3>").unwrap();
    assert_eq!(error(&name.replace(' ', "_")), worst);
    let part = part.split("</section>").next().unwrap();
    assert_eq!(part.matches("<img").count(), 3 * 6);
    for form in ["as it is", "severity 1", "severity 5"] {
        assert_eq!(part.matches(&format!("{form}\n")).count(), 3, "{form}");
    }
}

#[test]
fn every_figure_says_how_to_read_it_and_every_picture_what_it_shows() {
    let (evaluation, gallery) = evaluated(vec![model("e3-tiny", &[])], world(40), Some(4));
    let report = evaluation_page_with(&evaluation, &gallery);
    for figure in report.html.split("<figure").skip(1) {
        let figure = figure.split("</figure>").next().unwrap();
        let names: Vec<&String> = report.figures.iter().map(|(name, _)| name).collect();
        assert!(figure.contains("<figcaption>"), "{figure}: no caption in {names:?}");
    }
    assert!(!report.html.contains(r#"alt="""#) && report.html.contains("<img"));
}

#[test]
fn a_page_of_noise_with_many_classes_and_experts_is_small() {
    let classes: Vec<String> = (0..60).map(|class| format!("class {class}")).collect();
    let many = ["classes=60", "moe.experts=64", "moe.placement=every-1", "resolution=32"];
    let models = vec![model("vmoe-tiny", &many)];
    // Noise is what thumbnails are hardest to make small of.
    let noise = GeneratedDataset::new(&classes, 600, |index| {
        let mut picture = Picture::filled(100, 100, [0; 3]);
        let mut rng = Seed::new(3).numbered(index as u64).rng();
        picture.pixels.iter_mut().for_each(|value| *value = rng.random());
        Ok(Sample::new(picture, index % 60))
    });
    let data = Arc::new(noise.with_labels(|index| index % 60));
    let (evaluation, gallery) = evaluated(models, data, Some(8));
    let html = evaluation_page_with(&evaluation, &gallery).html;
    assert!(html.len() < 1_500_000, "{} bytes", html.len());
    assert!(html.contains("of the 12 classes with the largest error"));
    assert!(html.contains("300 test images, evenly spread over all"), "every second of 600");
    assert!(html.contains("busiest are shown"));
}
