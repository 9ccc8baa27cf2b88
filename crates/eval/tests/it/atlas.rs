//! The atlas of a model's routes against its literal definition: every visit of every token, written down.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::{Resolution, Seed};
use omma_data::{
    EvalLoader, GeneratedDataset, Picture, Sample, Shared, Split,
    text::{Tokenizer, TokenizerKind},
    world::{Variant, World},
};
use omma_eval::{
    EvalError, Images,
    atlas::{
        AtlasProtocol, LabelSource, LookInput, ModelRoutes, RoutePictures, RoutedModel, Routes,
        Verdict, WordKind, look, look_page, routes, routes_page,
    },
    pixels_for,
    routing::{BatchShape, Visit, visits},
};
use omma_model::{
    Mode, VisionTransformer, apply_settings, preset,
    systems::{KeptExperts, prune},
};
use omma_ranks::World as Ranks;
use omma_routing::PruneMode;

const SMALL: [&str; 6] = ["resolution=16", "patch=8", "width=16", "depth=4", "heads=2", "mlp=32"];
const IMAGES: usize = 30;
const CLASSES: usize = 10;

/// Four patches, and a class token in front of them if the model has one.
fn tokens(model: &VisionTransformer) -> usize {
    model.config().image.tokens(Resolution::square(16))
}

fn model(kind: &str, settings: &[&str]) -> VisionTransformer {
    let config = apply_settings(&preset(kind).unwrap(), &[&SMALL[..], settings].concat()).unwrap();
    config.init(Seed::new(3), &Device::flex()).unwrap()
}

fn world(images: usize) -> Shared {
    Arc::new(World::new(1, Resolution::square(16), images, Split::Test, Variant::Usual))
}

fn found(
    model: &VisionTransformer,
    tokenizer: Option<&Tokenizer>,
    data: Shared,
    batch: usize,
) -> (ModelRoutes, RoutePictures) {
    let device = Device::flex();
    let subject = subject(model, tokenizer, &device);
    let protocol = protocol(LabelSource::Images, batch);
    routes(&subject, &Images::new("world", data), &protocol, &mut ()).unwrap()
}

fn protocol(labels: LabelSource, batch: usize) -> AtlasProtocol {
    AtlasProtocol { labels, data: "world".to_owned(), batch, permutations: 99, seed: 7 }
}

fn subject<'a>(
    model: &'a VisionTransformer,
    tokenizer: Option<&'a Tokenizer>,
    device: &'a Device,
) -> RoutedModel<'a> {
    let (name, path) = ("m".to_owned(), "runs/m".to_owned());
    RoutedModel { name, path, model, tokenizer, device, seed: Seed::new(0), world: Ranks::alone() }
}

fn paged(model: ModelRoutes, pictures: RoutePictures) -> (String, Vec<String>) {
    let classes = world(1).classes().to_vec();
    let all = Routes { data: "world".to_owned(), classes, batch: 8, seed: 7, models: vec![model] };
    let page = routes_page(&all, &[pictures]);
    for (file, svg) in &page.figures {
        assert!(!svg.contains("NaN") && !svg.contains("no data"), "{file}: {svg}");
    }
    (page.html, page.figures.into_iter().map(|(file, _)| file).collect())
}

/// Of every layer, all visits of all images in one batch, in the order of the data.
fn literally(model: &VisionTransformer) -> (Vec<(usize, Vec<Visit>)>, Vec<usize>) {
    let pixels = pixels_for(&model.config().image);
    let batch = EvalLoader::new(world(IMAGES), pixels, IMAGES).next().unwrap().unwrap();
    let labels = batch.labels().to_vec();
    let pixels = TensorData::new(batch.pixels, [IMAGES, 16, 16, 3]);
    let images = Tensor::from_data(pixels, &Device::flex());
    let output = model.forward(images, &Mode::Inference).unwrap();
    let shape = BatchShape { images: IMAGES, tokens: tokens(model) };
    let watched: Vec<usize> = (0..IMAGES).collect();
    let of_layer = |(block, routing): &(usize, omma_routing::Routing)| {
        let mut all = Vec::new();
        visits(routing, shape, &watched, |visit| all.push(visit));
        (*block, all)
    };
    (output.routings.iter().map(of_layer).collect(), labels)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-4 * (1.0 + a.abs())
}

/// `Σ p(c, e) ln (p(c, e) / p(c) p(e))`
fn information(table: &[Vec<f64>]) -> f64 {
    let total: f64 = table.iter().flatten().sum();
    let column = |e: usize| table.iter().map(|row| row[e]).sum::<f64>() / total;
    let cell = |(row, e): (&Vec<f64>, usize)| match row[e] / total {
        p if p > 0.0 => p * (p / (row.iter().sum::<f64>() / total * column(e))).ln(),
        _ => 0.0,
    };
    table.iter().flat_map(|row| (0..row.len()).map(move |e| (row, e))).map(cell).sum()
}

/// By image, member and token, the expert that it is drawn to most.
fn main_experts(visits: &[Visit], soft: bool) -> BTreeMap<(usize, usize, usize), usize> {
    let mut best: BTreeMap<(usize, usize, usize), (f32, usize)> = BTreeMap::new();
    for visit in visits {
        let drawn = if soft { visit.weight } else { visit.gate };
        let entry = best.entry((visit.image, visit.member, visit.token)).or_insert((-1.0, 0));
        if drawn > entry.0 {
            *entry = (drawn, visit.expert);
        }
    }
    best.into_iter().map(|(token, (_, expert))| (token, expert)).collect()
}

const ROUTERS: [(&str, &[&str]); 6] = [
    ("vmoe-tiny", &["moe.experts=5", "moe.placement=every-2"]),
    ("vmoe-tiny", &["moe.router=softmax-expert-choice", "moe.experts=4"]),
    ("vmoe-tiny", &["moe.router=sinkhorn-token-choice", "moe.experts=4"]),
    ("vimoe-tiny", &["moe.experts=4"]),
    ("softmoe-tiny", &["moe.experts=3"]),
    ("e3-tiny", &["moe.experts=6", "moe.members=2"]),
];

#[test]
fn sums_are_those_of_all_visits_written_down() {
    for (kind, settings) in ROUTERS {
        let model = model(kind, settings);
        let (layers, labels) = literally(&model);
        // Routers that look at a whole batch must see the same one.
        let (routes, _) = found(&model, None, world(IMAGES), IMAGES);
        assert_eq!((routes.images, routes.blocks.len()), (IMAGES, layers.len()), "{kind}");
        let mut experts_of_an_image = 0.0;
        for (block, (number, all)) in routes.blocks.iter().zip(&layers) {
            assert_eq!(block.block, *number);
            let count = |wanted: &dyn Fn(&Visit) -> bool| -> f64 {
                all.iter().filter(|visit| wanted(visit)).map(|visit| f64::from(visit.count)).sum()
            };
            let total = count(&|_| true);
            for (expert, load) in block.load.iter().enumerate() {
                assert!(close(*load, count(&|visit| visit.expert == expert) / total), "{kind}");
            }
            let different: BTreeSet<(usize, usize)> =
                all.iter().map(|visit| (visit.image, visit.expert)).collect();
            let per_image = different.len() as f64 / IMAGES as f64;
            assert!(close(block.experts_per_image, per_image), "{kind} {settings:?}");
            experts_of_an_image += per_image;
            for (place, own) in block.classes.iter().enumerate() {
                let member = (!own.part.is_empty()).then_some(place);
                let of = |class: usize, expert: usize| {
                    count(&|visit| {
                        labels[visit.image] == class
                            && visit.expert == expert
                            && member.is_none_or(|member| member == visit.member)
                    })
                };
                let table: Vec<Vec<f64>> = (0..CLASSES)
                    .map(|class| own.experts.iter().map(|expert| of(class, *expert)).collect())
                    .collect();
                for (row, expected) in own.tokens.iter().zip(&table) {
                    assert!(row.iter().zip(expected).all(|(a, b)| close(*a, *b)), "{kind}");
                }
                assert!(close(own.information.nats, information(&table)), "{kind}");
                assert!(close(own.test.unwrap().nats, information(&table)), "all are sampled");
                assert_eq!(own.dispatched.is_some(), block.soft);
                let images: f64 = own.images.iter().flatten().flatten().sum();
                assert_eq!(images, IMAGES as f64, "every image has an expert with most of it");
            }
        }
        assert!(close(routes.image_use.experts, experts_of_an_image), "{kind}");
    }
}

#[test]
fn experts_that_were_pruned_are_neither_idle_nor_to_be_pruned() {
    let whole = model("vmoe-tiny", &["moe.experts=6", "moe.k=1", "moe.placement=1,3"]);
    let keep = [KeptExperts { block: 1, experts: vec![0, 2, 5] }];
    for mode in [PruneMode::Predict, PruneMode::Drop] {
        let pruned = prune(&whole, &keep, mode, &Device::flex()).unwrap();
        let (routes, _) = found(&pruned, None, world(IMAGES), 8);
        let [first, second] = routes.blocks.as_slice() else { panic!("{:?}", routes.blocks) };
        assert_eq!((first.available, second.available), (3, 6));
        assert!(first.idle.iter().all(|expert| [0, 2, 5].contains(expert)), "{:?}", first.idle);
        let most = first.load.iter().copied().fold(0.0, f64::max);
        assert!(close(first.peak_load, most * 3.0), "against three experts in balance");
        assert_eq!(routes.degrees[0].possible, Some(18.0), "3 · 6");
    }
}

#[test]
fn patches_may_have_the_class_of_most_of_their_pixels() {
    // The background and ten shapes.
    const PIXEL_CLASSES: usize = 11;
    let (model, device) = (model("e3-tiny", &["moe.experts=4", "moe.k=1"]), Device::flex());
    let (layers, _) = literally(&model);
    let subject = subject(&model, None, &device);
    let protocol = protocol(LabelSource::Pixels, 7);
    let images = Images::new("world", world(IMAGES));
    let (routes, pictures) = routes(&subject, &images, &protocol, &mut ()).unwrap();
    let masks: Vec<Vec<u8>> =
        (0..IMAGES).map(|index| images.data.get(index).unwrap().mask.unwrap()).collect();
    let label = |image: usize, patch: usize| {
        let mut counts = [0; PIXEL_CLASSES];
        for (y, x) in (0..8).flat_map(|y| (0..8).map(move |x| (y, x))) {
            let pixel = (patch / 2 * 8 + y) * 16 + patch % 2 * 8 + x;
            counts[usize::from(masks[image][pixel])] += 1;
        }
        (0..PIXEL_CLASSES).rev().max_by_key(|class| counts[*class]).unwrap()
    };
    for (block, (_, all)) in routes.blocks.iter().zip(&layers) {
        for (member, own) in block.classes.iter().enumerate() {
            let mut table = vec![vec![0.0; 2]; PIXEL_CLASSES];
            for visit in all.iter().filter(|visit| visit.member == member && visit.token > 0) {
                table[label(visit.image, visit.token - 1)][visit.expert - 2 * member] += 1.0;
            }
            assert_eq!(own.tokens, table);
            assert_eq!(own.images, None, "an image has no class");
            assert!(close(own.test.unwrap().nats, information(&table)));
        }
    }
    let (html, _) = paged(routes, pictures);
    assert!(html.contains("Token by token") && !html.contains("Image by image"));
}

#[test]
fn ways_and_combinations_are_those_of_every_token() {
    for (kind, settings) in ROUTERS {
        let model = model(kind, settings);
        let (layers, _) = literally(&model);
        let (routes, _) = found(&model, None, world(IMAGES), IMAGES);
        let soft = routes.blocks[0].soft;
        let members = if kind.starts_with("e3") { 2 } else { 1 };
        let mains: Vec<_> = layers.iter().map(|(_, all)| main_experts(all, soft)).collect();
        assert_eq!(routes.flows.len(), layers.len() - 1, "{kind}");
        for (flow, pair) in routes.flows.iter().zip(mains.windows(2)) {
            let experts = routes.blocks[0].experts;
            let mut expected = vec![vec![0.0; experts + 1]; experts + 1];
            for image in 0..IMAGES {
                for (member, token) in
                    (0..members).flat_map(|m| (0..tokens(&model)).map(move |t| (m, t)))
                {
                    let at = |main: &BTreeMap<_, usize>| {
                        main.get(&(image, member, token)).copied().unwrap_or(experts)
                    };
                    expected[at(&pair[0])][at(&pair[1])] += 1.0;
                }
            }
            assert_eq!(flow.tokens, expected, "{kind} {settings:?}");
        }
        let mut combinations: BTreeMap<(usize, usize, usize), Vec<(usize, usize)>> =
            BTreeMap::new();
        for image in 0..IMAGES {
            for (member, token) in
                (0..members).flat_map(|m| (0..tokens(&model)).map(move |t| (m, t)))
            {
                combinations.insert((image, member, token), Vec::new());
            }
        }
        for (layer, ((_, all), main)) in layers.iter().zip(&mains).enumerate() {
            match soft {
                true => main.iter().for_each(|(token, expert)| {
                    combinations.get_mut(token).unwrap().push((layer, *expert));
                }),
                false => all.iter().for_each(|visit| {
                    let token = (visit.image, visit.member, visit.token);
                    combinations.get_mut(&token).unwrap().push((layer, visit.expert));
                }),
            }
        }
        let mut counts: BTreeMap<Vec<(usize, usize)>, f64> = BTreeMap::new();
        for (_, mut experts) in combinations {
            experts.sort_unstable();
            *counts.entry(experts).or_default() += 1.0;
        }
        let total: f64 = counts.values().sum();
        let entropy: f64 = counts.values().map(|count| -count / total * (count / total).ln()).sum();
        let degree = &routes.degrees[0];
        assert_eq!((degree.used, degree.left_out), (counts.len(), 0), "{kind} {settings:?}");
        assert!(close(degree.effective, entropy.exp()), "{kind} {settings:?}");
    }
}

#[test]
fn the_degree_is_that_of_the_choices_that_a_token_makes() {
    let possible = |kind: &str, settings: &[&str]| {
        let (routes, _) = found(&model(kind, settings), None, world(8), 8);
        (routes.degrees[0].possible, routes.degrees[0].formula.clone())
    };
    let said = |value: f64, formula: &str| (Some(value), Some(formula.to_owned()));
    assert_eq!(possible("vmoe-tiny", &["moe.experts=5"]), said(100.0, "C(5, 2)^2"));
    assert_eq!(
        possible("vimoe-tiny", &["moe.experts=4", "moe.placement=tail-3"]),
        said(64.0, "C(4, 1)^3")
    );
    assert_eq!(
        possible("e3-tiny", &["moe.experts=6", "moe.members=2", "moe.k=1"]),
        said(18.0, "2 · C(3, 1)^2"),
        "of each member's experts"
    );
    assert_eq!(possible("softmoe-tiny", &[]), (None, None));
}

#[test]
fn batches_of_any_size_give_the_same_atlas_and_the_same_seed_the_same_bits() {
    let model = model("vmoe-tiny", &["moe.experts=4"]);
    let (one, pictures) = found(&model, None, world(IMAGES), 7);
    assert_eq!((&one, &pictures), (&found(&model, None, world(IMAGES), 7).0, &pictures));
    let (whole, _) = found(&model, None, world(IMAGES), IMAGES);
    for (a, b) in one.blocks.iter().zip(&whole.blocks) {
        assert_eq!((&a.load, &a.classes, &a.idle), (&b.load, &b.classes, &b.idle));
        assert_eq!(a.modalities[0].coverage, b.modalities[0].coverage);
    }
    assert_eq!((one.degrees, one.flows), (whole.degrees, whole.flows));
}

#[test]
fn drops_are_what_the_capacity_of_training_has_no_room_for() {
    // One slot for every expert, so that all but one choice of each are dropped in every batch.
    let settings = ["moe.experts=4", "moe.k=1", "moe.capacity_ratio=0.01"];
    let (routes, _) = found(&model("vmoe-tiny", &settings), None, world(IMAGES), 10);
    for block in &routes.blocks {
        let images = &block.modalities[0];
        let dropped = images.dropped_in_training.as_ref().unwrap();
        for (load, dropped) in images.load.iter().zip(dropped) {
            let batches = load - dropped;
            assert!((0.0..=3.0).contains(&batches), "{load} {dropped}");
        }
        assert_eq!(images.unserved, 0, "predictions drop nothing");
        assert!(images.dropped_share().unwrap() > 0.9);
    }
    let ample = ["moe.experts=4", "moe.k=1", "moe.capacity_ratio=4.0"];
    let (routes, _) = found(&model("vmoe-tiny", &ample), None, world(IMAGES), 10);
    assert_eq!(routes.blocks[0].modalities[0].dropped_share(), Some(0.0));
    let choosy = ["moe.router=softmax-expert-choice", "moe.experts=4", "moe.capacity_ratio=0.5"];
    let (routes, _) = found(&model("vmoe-tiny", &choosy), None, world(20), 20);
    let images = &routes.blocks[0].modalities[0];
    assert_eq!(images.dropped_in_training, None, "tokens do not choose");
    assert!(images.unserved > 0, "some are nobody's choice");
}

fn tokenizer() -> Tokenizer {
    let data = world(200);
    let captions = (0..data.len()).map(|index| data.captions(index).unwrap().remove(0));
    Tokenizer::learn(captions, TokenizerKind::Unigram, 300).unwrap()
}

#[test]
fn images_and_texts_are_told_apart() {
    for (settings, padded) in [
        (&[][..], true),
        (&["text.padding=masked"], false),
        (&["moe.router.pool={\"kind\": \"gate-per-modality\", \"modalities\": 2}"], true),
    ] {
        let base = ["moe.experts=4", "embedding=12", "text.vocabulary=300"];
        let model = model("limoe-tiny", &[&base[..], settings].concat());
        let length = model.config().text.as_ref().unwrap().length;
        let tokenizer = tokenizer();
        let (routes, pictures) = found(&model, Some(&tokenizer), world(IMAGES), 8);
        assert_eq!((routes.images, routes.texts), (IMAGES, IMAGES), "{settings:?}");
        for block in &routes.blocks {
            let [images, texts] = &block.modalities[..] else { panic!("{settings:?}") };
            assert_eq!(images.tokens as usize, IMAGES * tokens(&model));
            match padded {
                true => assert_eq!(texts.tokens as usize, IMAGES * length),
                false => assert!((texts.tokens as usize) < IMAGES * length),
            }
            let kinds = |kind: WordKind| -> f64 {
                let all = block.words.iter().flat_map(|own| &own.kinds);
                all.filter(|(own, _)| *own == kind).map(|(_, count)| count).sum()
            };
            let all: f64 = WordKind::ALL.into_iter().map(kinds).sum();
            assert!(close(all, texts.load.iter().sum()), "{settings:?}");
            assert_eq!(kinds(WordKind::Padding) > 0.0, padded);
            assert!(kinds(WordKind::Function) > 0.0 && kinds(WordKind::Content) > 0.0);
            let mut words = block.words.iter().flat_map(|own| &own.surest);
            assert!(words.clone().count() > 3 && words.all(|word| !word.word.contains('▁')));
            assert!(images.queue.iter().any(|bin| bin.tokens > 0.0));
        }
        assert_eq!(routes.degrees.len(), 2);
        assert!(
            routes.notes.iter().any(|note| note.contains("first caption")),
            "{:?}",
            routes.notes
        );
        let (html, figures) = paged(routes, pictures);
        assert!(html.contains("What experts read") && html.contains("function words"));
        assert!(figures.iter().any(|file| file == "coverage-texts"), "{figures:?}");
        assert!(figures.iter().any(|file| file.starts_with("words-block-")), "{figures:?}");
    }
}

#[test]
fn without_a_tokenizer_images_go_alone_and_that_is_said() {
    let settings = ["moe.experts=4", "embedding=12", "text.vocabulary=300"];
    let (routes, _) = found(&model("limoe-tiny", &settings), None, world(12), 8);
    assert_eq!((routes.texts, routes.blocks[0].modalities.len()), (0, 1));
    assert!(routes.notes.iter().any(|note| note.contains("no tokenizer")), "{:?}", routes.notes);
}

#[test]
fn data_without_classes_has_no_figures_of_them_and_that_is_said() {
    for classes in [Vec::new(), vec!["pictures".to_owned()]] {
        let model = model("vmoe-tiny", &["moe.experts=4"]);
        let world = world(12);
        let sample = move |index| Ok(Sample { label: 0, ..world.get(index)? });
        let data = Arc::new(GeneratedDataset::new(&classes, 12, sample));
        let (routes, pictures) = found(&model, None, data, 8);
        assert!(routes.blocks.iter().all(|block| block.classes.is_empty()));
        assert!(routes.advice.blocks.iter().all(|own| own.verdict == Verdict::Unknown));
        assert!(routes.notes[0].contains("no classes"), "{:?}", routes.notes);
        let (html, figures) = paged(routes, pictures);
        assert!(html.contains("has no classes") && !html.contains("Classes and experts"));
        assert!(!figures.iter().any(|file| file.starts_with("classes")), "{figures:?}");
        assert!(figures.contains(&"ways".to_owned()) && figures.contains(&"load".to_owned()));
    }
}

#[test]
fn every_figure_of_every_router_has_a_file_of_its_own() {
    for (kind, settings) in ROUTERS {
        let (routes, pictures) = found(&model(kind, settings), None, world(IMAGES), 8);
        let (html, mut figures) = paged(routes, pictures);
        figures.sort();
        assert!(figures.windows(2).all(|pair| pair[0] != pair[1]), "{kind}: {figures:?}");
        for file in ["information", "load", "ways", "largest-gate"] {
            assert!(figures.iter().any(|own| own == file), "{kind}: {file} in {figures:?}");
        }
        assert!(html.contains("What follows") && html.contains("What experts take"), "{kind}");
        let members = figures.iter().filter(|file| file.starts_with("classes-block-")).count();
        assert_eq!(
            members,
            if kind.starts_with("e3") {
                4
            } else {
                figures.iter().filter(|file| file.starts_with("tokens-block-")).count()
            }
        );
    }
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let (model, _) = found(&model("e3-tiny", &["moe.experts=4"]), None, world(12), 8);
    let all = Routes {
        data: "d".to_owned(),
        classes: Vec::new(),
        batch: 8,
        seed: 7,
        models: vec![model],
    };
    let text = serde_json::to_string(&all).unwrap();
    let back: Routes = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), text);
}

#[test]
fn a_model_without_experts_has_no_routes() {
    let (model, device) = (model("vit-tiny", &[]), Device::flex());
    let subject = subject(&model, None, &device);
    let error = look(&subject, &LookInput::default()).unwrap_err();
    assert!(matches!(error, EvalError::NoExperts { .. }), "{error}");
    assert!(error.to_string().contains("omma upcycle"), "{error}");
}

fn pictures(count: usize) -> Vec<(String, Picture)> {
    let data = world(count);
    (0..count).map(|index| (format!("{index}.png"), data.get(index).unwrap().picture)).collect()
}

#[test]
fn a_look_has_the_experts_of_every_patch() {
    for (kind, settings) in
        ROUTERS.into_iter().filter(|(_, all)| !all.iter().any(|s| s.contains("expert-choice")))
    {
        let (model, device) = (model(kind, settings), Device::flex());
        let (layers, _) = literally(&model);
        let subject = subject(&model, None, &device);
        let input = LookInput { pictures: pictures(IMAGES), texts: Vec::new() };
        let seen = look(&subject, &input).unwrap();
        let soft = kind.starts_with("soft");
        for (image, own) in seen.inputs.iter().enumerate() {
            for block in &own.blocks {
                let (_, all) = layers.iter().find(|(number, _)| *number == block.block).unwrap();
                let mains = main_experts(all, soft);
                assert_eq!(block.tokens.len(), tokens(&model));
                for (token, route) in block.tokens.iter().enumerate() {
                    let main = mains[&(image, block.member.unwrap_or(0), token)];
                    assert_eq!(route.experts[0].0, main, "{kind} {image} {token}");
                    assert!(route.experts.is_sorted_by(|a, b| a.1 >= b.1));
                }
            }
        }
        let page = look_page(&seen);
        assert!(page.html.contains("row 1, column 2: expert ") && page.html.contains("<image"));
        let figures = if kind.starts_with("e3") { 2 } else { 1 } * layers.len() * IMAGES + IMAGES;
        assert_eq!(page.figures.len(), figures, "{kind}");
    }
}

#[test]
fn a_look_at_texts_names_their_words() {
    let settings = ["moe.experts=4", "embedding=12", "text.vocabulary=300"];
    let (model, tokenizer, device) = (model("limoe-tiny", &settings), tokenizer(), Device::flex());
    let texts = vec!["a red circle".to_owned(), String::new()];
    let input = LookInput { pictures: pictures(1), texts };
    let seen = look(&subject(&model, Some(&tokenizer), &device), &input).unwrap();
    let [_, words, nothing] = &seen.inputs[..] else { panic!("{}", seen.inputs.len()) };
    assert_eq!(words.words[0], "a");
    assert!(words.words.concat().starts_with("aredcircle"), "{:?}", words.words);
    assert!(words.blocks.iter().all(|block| block.tokens.len() == words.words.len()));
    assert!(nothing.words.iter().skip(1).all(|word| word == "∅"), "{:?}", nothing.words);
    assert!(look_page(&seen).html.contains("“a”: expert "));
    let deaf = look(&subject(&model, None, &device), &input).unwrap_err();
    assert!(matches!(deaf, EvalError::NoTokenizer { .. }), "{deaf}");
}
