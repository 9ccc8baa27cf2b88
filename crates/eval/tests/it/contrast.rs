//! Models that compare images with texts: classes by their names, captions, and both in one record.

use std::{cell::Cell, fs, path::Path, sync::Arc};

use burn::tensor::Device;
use omma_base::{Resolution, Seed};
use omma_data::{
    GeneratedDataset, Sample, Shared, Split,
    text::{TextCounts, Tokenizer, TokenizerKind},
    world::{Variant, World},
};
use omma_eval::{
    Binning, ContrastProtocol, Corrupted, EmbeddedData, EvalError, Evaluation, Images, OodPositive,
    OodProtocol, OodScore, Protocol, Reader, ShiftProtocol, System, Templates, Watcher,
    compare::{Alike, Comparison, Subject, read_evaluation},
    contrast, evaluate,
    metrics::Embeddings,
    report::{comparison_page, evaluation_page, write_evaluation},
};
use omma_model::{VisionTransformer, apply_settings, preset, with_values};

const SMALL: [&str; 8] = [
    "resolution=16",
    "patch=8",
    "width=16",
    "depth=2",
    "heads=2",
    "mlp=32",
    "moe.experts=4",
    "embedding=12",
];

fn world(images: usize) -> Shared {
    Arc::new(World::new(1, Resolution::square(16), images, Split::Test, Variant::Usual))
}

fn tokenizer(vocabulary: usize) -> Tokenizer {
    let data = world(200);
    let captions = (0..data.len()).map(|index| data.captions(index).unwrap().remove(0));
    Tokenizer::learn(captions, TokenizerKind::Unigram, vocabulary).unwrap()
}

/// A fresh model for the tokens of [`tokenizer`].
fn model(settings: &[&str], seed: u64) -> VisionTransformer {
    let settings = [&SMALL[..], &["text.vocabulary=300"], settings].concat();
    let config = apply_settings(&preset("limoe-tiny").unwrap(), &settings).unwrap();
    config.init(Seed::new(seed), &Device::flex()).unwrap()
}

/// The world's images without classes, and two captions of every image but the first, which has none.
fn captioned(images: usize) -> Images {
    let world = world(images);
    let data = GeneratedDataset::new(&[], images, move |index| {
        let sample = world.get(index)?;
        let all = [vec![format!("picture {index}")], sample.captions].concat();
        let captions = if index > 0 { all } else { Vec::new() };
        Ok(Sample { label: 0, captions, ..sample })
    });
    Images::new("pairs", Arc::new(data.with_captions()))
}

/// The world's images without captions.
fn classified(images: usize) -> Images {
    let world = world(images);
    let classes = world.classes().to_vec();
    let data = GeneratedDataset::new(&classes, images, move |index| {
        Ok(Sample { captions: Vec::new(), ..world.get(index)? })
    });
    Images::new("classes", Arc::new(data))
}

fn protocol(label: &str, test: Images) -> Protocol {
    Protocol {
        label: label.to_owned(),
        fingerprint: label.to_owned(),
        test,
        validation: None,
        shift: None,
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
    }
}

fn system(seed: u64) -> System {
    let models = vec![(format!("m{seed}"), model(&[], seed))];
    System::new(models, &Device::flex()).unwrap().reading(vec![Some(tokenizer(300))])
}

fn labelled(seed: u64, images: &Images) -> System {
    let classes = images.data.classes().to_vec();
    system(seed).labelled(&classes, &Templates::default(), 32, &mut ()).unwrap()
}

fn judged(system: &System, label: &str, test: Images) -> Evaluation {
    evaluate(system, &protocol(label, test), &mut ()).unwrap().0
}

/// As `omma eval` leaves it.
fn written(folder: &Path, system: &System, test: Images) -> Evaluation {
    let (mut evaluation, gallery) = evaluate(system, &protocol("m", test), &mut ()).unwrap();
    write_evaluation(folder, &mut evaluation, &gallery).unwrap();
    evaluation
}

#[test]
fn classes_are_scored_by_their_scaled_similarity() {
    let images = Embeddings::new(vec![1.0, 0.0, 0.6, 0.8, 0.0, 1.0], 2);
    let data = EmbeddedData { images, labels: vec![0, 0, 1], ..EmbeddedData::default() };
    let classes = Embeddings::new(vec![1.0, 0.0, 0.0, 1.0], 2);
    let found = data.zero_shot(&classes, 10.0, Binning::default());
    assert!((found.error - 1.0 / 3.0).abs() < 1e-12);
    // Differences of the logits are 10, -2 and 10.
    let nll = (2.0 * (-10.0_f64).exp().ln_1p() + 2.0_f64.exp().ln_1p()) / 3.0;
    assert!((found.nll - nll).abs() < 1e-6, "{} {nll}", found.nll);
}

#[test]
fn classes_and_captions_are_judged_together() {
    let images = Images::new("world", world(60));
    let system = labelled(0, &images);
    let found = judged(&system, "m", images.clone());
    let test = found.test.as_ref().unwrap();
    assert_eq!((test.samples, found.samples(), found.classes.len()), (60, 60, 10));
    let record = found.contrast.as_ref().unwrap();
    assert!((record.scale - 10.0).abs() < 1e-4);
    let prompts = record.prompts.as_ref().unwrap();
    assert_eq!((prompts.templates.len(), prompts.texts.texts), (8, 80));
    let captions = record.captions.as_ref().unwrap();
    assert_eq!((captions.images, captions.texts.texts), (60, 60));
    assert_eq!(captions.retrieval.image_to_text.candidates, 60);
    let pairs = captions.accuracy;
    assert_eq!((pairs.batch, pairs.batches, pairs.left_out), (60, 1, 0));

    // The classifier's forward pass and the embeddings have the same scores.
    let (model, tokenizer, device) = (model(&[], 0), tokenizer(300), Device::flex());
    let reader = Reader::new(&model, &tokenizer, &device).unwrap();
    let asked = ContrastProtocol { batch: 16, ..ContrastProtocol::default() };
    let own = contrast(&reader, &images, &asked, &mut ()).unwrap();
    let zero_shot = own.zero_shot.unwrap();
    assert_eq!(zero_shot.error, test.summary.error);
    assert!((zero_shot.nll - test.summary.nll).abs() < 1e-4);
    assert_eq!(own.record.captions.as_ref(), Some(captions));
    let few = ContrastProtocol { limit: Some(7), ..asked };
    let few = contrast(&reader, &images, &few, &mut ()).unwrap();
    assert_eq!(few.record.captions.unwrap().images, 7);
}

#[test]
fn captions_alone_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let found = written(folder.path(), &system(0), captioned(40));
    assert!(found.test.is_none() && found.classes.is_empty() && found.samples() == 40);
    let captions = found.contrast.as_ref().unwrap().captions.as_ref().unwrap();
    let ways = &captions.retrieval;
    // The first image has no captions, and is there to be found all the same.
    assert_eq!((ways.text_to_image.queries, ways.text_to_image.candidates), (78, 40));
    assert_eq!((ways.image_to_text.queries, ways.image_to_text.candidates), (39, 78));
    assert_eq!(captions.accuracy.batch, 39);
    assert_eq!(read_evaluation(folder.path()).unwrap(), found);
    let html = fs::read_to_string(folder.path().join("eval.html")).unwrap();
    for part in ["Retrieval", "Not found first", "its own, number", "Pairs of a batch"] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("Calibration") && !html.contains("Zero-shot classes"));
    assert!(folder.path().join("figures/recall.svg").is_file());
    // A page is made of the record alone, too.
    assert!(evaluation_page(&found).html.contains("text → image"));
}

#[test]
fn classes_alone_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let images = classified(40);
    let found = written(folder.path(), &labelled(0, &images), images);
    let record = found.contrast.as_ref().unwrap();
    assert!(found.test.is_some() && record.captions.is_none() && record.prompts.is_some());
    assert_eq!(read_evaluation(folder.path()).unwrap(), found);
    let html = fs::read_to_string(folder.path().join("eval.html")).unwrap();
    assert!(html.contains("Zero-shot classes") && html.contains("a picture of a {}"));
    assert!(html.contains("Calibration") && !html.contains("Retrieval"));
}

#[test]
fn a_record_whose_test_is_broken_is_not_one_without_classes() {
    let folder = tempfile::tempdir().unwrap();
    let images = classified(20);
    written(folder.path(), &labelled(0, &images), images);
    let file = folder.path().join("eval.json");
    let text = fs::read_to_string(&file).unwrap().replace("\"nll\"", "\"nil\"");
    fs::write(&file, text).unwrap();
    let message = read_evaluation(folder.path()).unwrap_err().to_string();
    assert!(message.contains("missing field `nll`"), "{message}");
}

#[test]
fn contrastive_systems_stand_beside_each_other() {
    let images = Images::new("world", world(40));
    let both: Vec<Evaluation> = (0..2)
        .map(|seed| judged(&labelled(seed, &images), &format!("m{seed}"), images.clone()))
        .collect();
    let found = Comparison::new(&both, None).unwrap();
    let table = &found.tables()[1];
    assert_eq!(
        table.header[..3],
        ["images and texts", "zero-shot accuracy %", "text → image at 1 %"]
    );
    assert_eq!((table.rows.len(), table.rows[0].len()), (2, 10));
    assert!(table.rows[0][0].starts_with("m0") && found.gains.len() == 1);
    let page = comparison_page(&found, "t", "a");
    assert!(page.html.contains("Images and texts") && page.html.contains("Told apart?"));

    let pairs: Vec<Evaluation> =
        (0..2).map(|seed| judged(&system(seed), &format!("m{seed}"), captioned(30))).collect();
    let found = Comparison::new(&pairs, None).unwrap();
    assert_eq!(found.images, 30);
    let headers: Vec<usize> = found.tables().iter().map(|table| table.header.len()).collect();
    assert_eq!(headers, [3, 9]);
    assert!(found.verdicts().is_empty() && found.rows[0].error.is_none());
    let page = comparison_page(&found, "t", "a");
    assert!(page.html.contains("Images and texts") && !page.html.contains("Gains"));

    let mixed = [both[0].clone(), Evaluation { data: "world".to_owned(), ..pairs[1].clone() }];
    let message = Comparison::new(&mixed, None).unwrap_err().to_string();
    assert!(message.contains("captions alone"), "{message}");
    let subject = |name: &str, one: &Evaluation| Subject {
        name: name.to_owned(),
        is_run: true,
        data: None,
        evaluations: vec![one.clone()],
    };
    let subjects = [subject("a", &pairs[0]), subject("b", &pairs[1])];
    assert_eq!(Alike::choose(&subjects).unwrap().evaluations.len(), 2);
}

#[test]
fn other_sentences_are_another_way_to_judge() {
    let images = classified(20);
    let classes = images.data.classes().to_vec();
    let short = Templates::parse("a {}", Path::new("t.txt")).unwrap();
    let one = judged(&labelled(0, &images), "a", images.clone());
    let other = system(0).labelled(&classes, &short, 32, &mut ()).unwrap();
    let other = judged(&other, "b", images);
    assert_ne!(one.test.as_ref().unwrap().summary.nll, other.test.as_ref().unwrap().summary.nll);
    let message = Comparison::new(&[one, other], None).unwrap_err().to_string();
    assert!(message.contains("by names of classes in “a {}”"), "{message}");
}

#[test]
fn what_is_embedded_does_not_depend_on_what_is_beside_it() {
    let (tokenizer, device, images) = (tokenizer(300), Device::flex(), captioned(24));
    let embedded = |settings: &[&str], batch: usize| {
        let model = model(settings, 0);
        Reader::new(&model, &tokenizer, &device).unwrap().data(&images, batch, &mut ()).unwrap()
    };
    let far = |a: &Embeddings, b: &Embeddings| {
        let gaps = a.values().iter().zip(b.values()).map(|(a, b)| (a - b).abs());
        gaps.fold(0.0, f32::max)
    };
    // Dropless by default: in batches of any size, and where the paper's capacity has room for all.
    let (one, all) = (embedded(&[], 1), embedded(&[], 24));
    assert!(far(&one.images, &all.images) < 1e-5 && far(&one.texts, &all.texts) < 1e-5);
    let paper = embedded(&["moe.inference_capacity_ratio=16"], 24);
    assert!(far(&paper.images, &all.images) < 1e-5);
    let tight = embedded(&["moe.inference_capacity_ratio=0.2"], 24);
    assert!(far(&tight.images, &all.images) > 1e-3);
    let norms = all.texts.rows().map(|row| row.iter().map(|v| v * v).sum::<f32>().sqrt());
    assert!(norms.into_iter().all(|norm| (norm - 1.0).abs() < 1e-4));
}

#[test]
fn an_ensemble_is_judged_by_classes() {
    let images = Images::new("world", world(30));
    let models = (0..2).map(|seed| (format!("m{seed}"), model(&[], seed))).collect();
    let system = System::new(models, &Device::flex()).unwrap();
    let system = system.reading(vec![Some(tokenizer(300)); 2]);
    let classes = images.data.classes().to_vec();
    let system = system.labelled(&classes, &Templates::default(), 32, &mut ()).unwrap();
    let found = judged(&system, "both", images);
    assert_eq!(found.test.unwrap().members.len(), 2);
    assert_eq!(found.contrast.as_ref().unwrap().prompts.as_ref().unwrap().texts.texts, 160);
    assert!(found.contrast.unwrap().captions.is_none());
}

#[test]
fn what_is_missing_is_named() {
    let device = Device::flex();
    let judge = |system: &System, protocol: Protocol| {
        evaluate(system, &protocol, &mut ()).err().unwrap().to_string()
    };
    let fresh = || System::new(vec![("fresh".to_owned(), model(&[], 0))], &device).unwrap();
    let message = judge(&fresh(), protocol("m", classified(10)));
    assert!(message.contains("fresh compares images with texts") && message.contains("--labels"));
    let names = ["cat".to_owned(), "dog".to_owned()];
    let error = fresh().labelled(&names, &Templates::default(), 8, &mut ()).unwrap_err();
    assert!(matches!(error, EvalError::NoTokenizer { .. }), "{error}");
    let shift = ShiftProtocol { samples: 5, corrupted: Corrupted::Made { seed: 0 } };
    let asked = Protocol { shift: Some(shift), ..protocol("m", captioned(10)) };
    assert!(judge(&system(0), asked).contains("pairs has no classes, only captions"));

    let (model, large) = (model(&["text.vocabulary=40"], 0), tokenizer(300));
    let error = Reader::new(&model, &large, &device).unwrap_err();
    assert!(matches!(error, EvalError::Vocabulary { vocabulary: 40, .. }), "{error}");
    let small = tokenizer(40);
    let reader = Reader::new(&model, &small, &device).unwrap();
    let numbers: Vec<String> = (0..10).map(|class| class.to_string()).collect();
    let images = classified(10).with_classes(numbers);
    let error = contrast(&reader, &images, &ContrastProtocol::default(), &mut ()).err().unwrap();
    assert!(matches!(error, EvalError::NoTexts { .. }), "{error}");
}

#[test]
fn texts_that_are_cut_empty_or_unknown_are_counted() {
    let (model, tokenizer, device) = (model(&[], 0), tokenizer(300), Device::flex());
    let reader = Reader::new(&model, &tokenizer, &device).unwrap();
    let texts = ["", "a small red circle", &"a red circle ".repeat(30), "☃"].map(str::to_owned);
    let (embedded, counts) = reader.texts(&texts, 3, &mut ()).unwrap();
    assert_eq!(embedded.len(), 4);
    let TextCounts { texts, unknown, empty, cut, .. } = counts;
    assert_eq!((texts, empty, cut), (4, 1, 1));
    assert!(unknown > 0);
}

#[test]
fn text_with_embedding_that_is_not_a_number_is_named() {
    let (tokenizer, device) = (tokenizer(300), Device::flex());
    let texts = ["a small red circle", "a blue star"].map(str::to_owned);
    // The embedding of the first token that the second text alone has.
    let ids = |text: &String| tokenizer.encode(text, 16).ids;
    let own = ids(&texts[1]).into_iter().find(|id| !ids(&texts[0]).contains(id)).unwrap() as usize;
    let broken = with_values(model(&["moe=null"], 0), |parameter| {
        let mut values = vec![0.0; parameter.shape.iter().product()];
        let is_embedding = parameter.name == "text.embedding";
        if is_embedding {
            values[own * parameter.shape[1]] = f32::NAN;
        }
        Ok(is_embedding.then_some(values))
    });
    let model = broken.unwrap();
    let reader = Reader::new(&model, &tokenizer, &device).unwrap();
    assert_eq!(reader.texts(&texts[..1], 1, &mut ()).unwrap().0.len(), 1);
    for batch in [1, 2] {
        let error = reader.texts(&texts, batch, &mut ()).unwrap_err();
        assert!(matches!(&error, EvalError::BrokenText { text } if *text == texts[1]), "{error}");
    }
}

/// Ends after so many questions.
struct Impatient(Cell<usize>);

impl Watcher for Impatient {
    fn begins(&mut self, _: &str, _: usize) {}
    fn done(&mut self, _: usize) {}
    fn stopped(&self) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        self.0.get() == 0
    }
}

#[test]
fn it_stops_wherever_it_is_told() {
    let (model, tokenizer, device) = (model(&[], 0), tokenizer(300), Device::flex());
    let reader = Reader::new(&model, &tokenizer, &device).unwrap();
    let images = Images::new("world", world(20));
    let asked = ContrastProtocol { batch: 8, pairs: 5, ..ContrastProtocol::default() };
    let mut questions = 1;
    let finished = loop {
        let mut watcher = Impatient(Cell::new(questions));
        match contrast(&reader, &images, &asked, &mut watcher) {
            Err(EvalError::Interrupted) => questions += 1,
            other => break other.is_ok(),
        }
    };
    // Batches of images, of captions and of prompts, both ways of the retrieval, and of every batch of pairs.
    assert!(finished && questions > 3 + 3 + 10 + 2 + 8, "{questions}");
}
