//! The page of an atlas.

use omma_report::Page;

use super::{
    advice::COVERAGE,
    figures,
    pictures::RoutePictures,
    record::{BlockRoutes, ModelRoutes, Routes},
    words::SureWord,
};
use crate::report::{Draft, Fact, Figure, Report, expert_pictures};

/// Everything that was found, to look at: model by model, what follows from it first.
///
/// - `pictures`: of every model; those that are missing are not shown
pub fn routes_page(routes: &Routes, pictures: &[RoutePictures]) -> Report {
    let names: Vec<&str> = routes.models.iter().map(|model| model.name.as_str()).collect();
    let images = routes.models.first().map_or(0, |model| model.images);
    let about = format!("Where the tokens of {images} images of {} go", routes.data);
    let page = Page::new(format!("Routes of {}", names.join(", ")), about);
    let mut draft = Draft::new(match routes.models.as_slice() {
        [one] => page.facts(facts(one)),
        _ => page,
    });
    for (number, model) in routes.models.iter().enumerate() {
        let several = routes.models.len() > 1;
        let context = Context { several, number, classes: &routes.classes };
        draft = of_model(draft, model, pictures.get(number), &context);
    }
    draft.finish()
}

/// Which model a section is of.
struct Context<'a> {
    several: bool,
    number: usize,
    classes: &'a [String],
}

impl Context<'_> {
    /// The title of a section.
    fn title(&self, model: &ModelRoutes, title: &str) -> String {
        match self.several {
            true => format!("{}: {title}", model.name),
            false => title.to_owned(),
        }
    }

    /// A figure with a file of its own.
    fn figure(&self, file: &str, svg: String) -> Figure {
        match self.several {
            true => (format!("{}-{file}", self.number + 1), svg),
            false => (file.to_owned(), svg),
        }
    }
}

fn facts(model: &ModelRoutes) -> Vec<Fact> {
    let specialised = model.advice.keep.len();
    let known = model.blocks.iter().any(|block| !block.classes.is_empty());
    let experts: usize = model.blocks.iter().map(|block| block.available).sum();
    let mut facts = vec![
        (
            "layers with experts",
            model.blocks.len().to_string(),
            format!("{experts} experts in all"),
        ),
        (
            "experts of an image",
            format!("{:.1}", model.image_use.experts),
            match model.image_use.shared_experts {
                0 => "different ones, all layers together".to_owned(),
                shared => {
                    format!("different ones, all layers together; {shared} shared beside them")
                }
            },
        ),
        (
            "active parameters",
            format!("{:.2} M", model.image_use.active_parameters / 1e6),
            format!("of {:.2} M that images can pass", model.image_use.parameters as f64 / 1e6),
        ),
    ];
    if known {
        let of = format!("of {}, by class", model.blocks.len());
        facts.insert(1, ("layers that specialise", specialised.to_string(), of));
    }
    if let Some(degree) = model.degrees.first() {
        let note = match (&degree.formula, degree.possible) {
            (Some(formula), Some(possible)) => {
                format!("of {} possible, {formula}", short(possible))
            }
            _ => "combinations of each token's main experts".to_owned(),
        };
        facts.push(("combinations in use", format!("{:.1}", degree.effective), note));
    }
    facts
}

/// With a capital in front.
fn sentence(text: &str) -> String {
    let mut symbols = text.chars();
    let first = symbols.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    first + symbols.as_str()
}

/// Whole numbers as they are, large ones by their power of ten.
fn short(value: f64) -> String {
    if value < 1e6 { format!("{value:.0}") } else { format!("{value:.1e}") }
}

fn of_model(
    mut draft: Draft,
    model: &ModelRoutes,
    pictures: Option<&RoutePictures>,
    context: &Context,
) -> Draft {
    draft = advice(draft, model, context);
    draft = layers(draft, model, context);
    draft = classes(draft, model, context);
    draft = load(draft, model, context);
    draft = gates(draft, model, context);
    draft = ways(draft, model, context);
    draft = words(draft, model, context);
    match pictures {
        Some(pictures) if context.several => {
            let title = context.title(model, "patches");
            let draft = draft.add(|page| page.section(&title));
            expert_pictures(draft, &pictures.gallery)
        }
        Some(pictures) => expert_pictures(draft, &pictures.gallery),
        None => draft,
    }
}

fn advice(draft: Draft, model: &ModelRoutes, context: &Context) -> Draft {
    let title = context.title(model, "What follows");
    draft.add(|mut page| {
        page = page.section(&title);
        if context.several {
            page = page.facts(facts(model));
        }
        for line in &model.advice.summary {
            page = page.text(line);
        }
        for own in &model.advice.blocks {
            page = page.text(&format!("Block {} ({}): {}.", own.block, own.verdict.name(), own.words));
        }
        if !model.advice.commands.is_empty() {
            page = page.subsection("What could be done");
            for own in &model.advice.commands {
                page = page.text(&format!("{}:", sentence(&own.why))).code(&own.command);
            }
            page = page.text("OUT is a folder for the new checkpoint; compare it with `omma eval` before and after.");
        }
        for note in &model.notes {
            page = page.text(&format!("{}.", sentence(note)));
        }
        page
    })
}

fn layers(draft: Draft, model: &ModelRoutes, context: &Context) -> Draft {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let row = |block: &BlockRoutes| {
        let test = block.strongest_test();
        let images = block.of_images();
        let dash = || "—".to_owned();
        vec![
            block.block.to_string(),
            block.available.to_string(),
            format!("{:.2}", block.peak_load),
            block.idle.len().to_string(),
            test.map_or_else(dash, |test| percent(test.effect.max(0.0))),
            test.map_or_else(dash, |test| format!("{:.3}", test.p_value)),
            format!("{:.2}", block.experts_per_image),
            images.map_or_else(dash, |own| format!("{:.2}", own.largest_gate)),
            images
                .filter(|_| !block.soft)
                .map_or_else(dash, |own| block.experts_for(own, COVERAGE).to_string()),
            images.and_then(|own| own.dropped_share()).map_or_else(dash, percent),
        ]
    };
    let rows: Vec<Vec<String>> = model.blocks.iter().map(row).collect();
    let header = [
        "block",
        "experts",
        "peak load",
        "idle",
        "settled by class",
        "p",
        "experts of an image",
        "largest gate",
        "for 99 % coverage",
        "dropped in training",
    ];
    let title = context.title(model, "Layer by layer");
    draft.add(|page| {
        page.section(&title)
            .text(
                "Peak load is that of the busiest expert against a balanced one. Settled by class is the mutual \
                 information of class and expert beyond chance, as a share of the experts' entropy; p is that of a \
                 permutation test, labels permuted among images. Dropped in training are choices of images' tokens that \
                 would find no room at the capacity of training, without its noise.",
            )
            .table(&header, &rows)
    })
}

fn classes(draft: Draft, model: &ModelRoutes, context: &Context) -> Draft {
    if model.blocks.iter().all(|block| block.classes.is_empty()) {
        return draft;
    }
    let title = context.title(model, "Classes and experts");
    let mut draft = draft.add(|page| page.section(&title));
    if let Some(svg) = figures::information(model) {
        let caption = "The class settles the expert where the first bar reaches 100 %; what the second one has is \
                       there by chance.";
        draft = draft.captioned(vec![context.figure("information", svg)], caption);
    }
    let (mut tokens, mut images, mut dispatched) = (Vec::new(), Vec::new(), Vec::new());
    for block in &model.blocks {
        for (place, own) in block.classes.iter().enumerate() {
            let ending = match own.part.as_str() {
                "" => block.block.to_string(),
                _ => format!("{}-{}", block.block, place + 1),
            };
            let map = |table: &[Vec<f64>], what: &str| {
                figures::class_map(block, own, table, what, context.classes)
            };
            let what = if block.soft { "combine mass of classes" } else { "tokens of classes" };
            let file = format!("classes-block-{ending}");
            tokens.push(context.figure(&file, map(&own.tokens, what)));
            if let Some(table) = own.dispatched.as_ref().filter(|table| !is_flat(table)) {
                let file = format!("classes-dispatch-block-{ending}");
                dispatched.push(context.figure(&file, map(table, "dispatch mass of classes")));
            }
            if let Some(table) = &own.images {
                let file = format!("classes-images-block-{ending}");
                images.push(context.figure(&file, map(table, "images of classes")));
            }
        }
    }
    let by_token = "Where the tokens of a class go, in per cent; classes are ordered by the expert that has most of \
                    them.";
    draft = draft.add(|page| page.subsection("Token by token")).captioned(tokens, by_token);
    if !dispatched.is_empty() {
        let caption =
            "What experts are given: how much of each class is in what their slots are mixed of.";
        draft = draft.captioned(dispatched, caption);
    }
    // With one decision per image both are the same.
    let whole = model.blocks.iter().all(|block| block.whole_images);
    if !images.is_empty() && !whole {
        let caption =
            "Images by the expert that took most of their tokens, in per cent of the class.";
        draft = draft.add(|page| page.subsection("Image by image")).captioned(images, caption);
    }
    draft
}

/// Whether every class has the same share of every expert: slots that take a whole of every image have.
fn is_flat(table: &[Vec<f64>]) -> bool {
    let share = |row: &Vec<f64>| -> Vec<f64> {
        let total: f64 = row.iter().sum();
        row.iter().map(|count| count / total.max(f64::MIN_POSITIVE)).collect()
    };
    let shares: Vec<Vec<f64>> =
        table.iter().filter(|row| row.iter().sum::<f64>() > 0.0).map(share).collect();
    let same = |a: &Vec<f64>, b: &Vec<f64>| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3);
    shares.windows(2).all(|pair| same(&pair[0], &pair[1]))
}

fn load(draft: Draft, model: &ModelRoutes, context: &Context) -> Draft {
    let title = context.title(model, "Load");
    let figure = context.figure("load", figures::load(model));
    let caption = "Share of a layer's tokens that each expert takes, in per cent.";
    let mut draft = draft.add(|page| page.section(&title)).captioned(vec![figure], caption);
    let tokens = model.blocks.iter().filter_map(|block| {
        Some(context.figure(&format!("tokens-block-{}", block.block), figures::tokens(block)?))
    });
    let tokens: Vec<Figure> = tokens.collect();
    if !tokens.is_empty() {
        let caption =
            "Tokens that each expert takes, and those of them that would find no room in training.";
        draft = draft.captioned(tokens, caption);
    }
    draft
}

fn gates(draft: Draft, model: &ModelRoutes, context: &Context) -> Draft {
    let title = context.title(model, "How sure routers are");
    let mut draft = draft.add(|page| page.section(&title));
    if model.blocks.len() > 1 {
        let figures = vec![
            context.figure("largest-gate", figures::largest_gate(model)),
            context.figure("local-entropy", figures::local_entropy(model)),
            context.figure("experts-in-use", figures::experts_in_use(model)),
        ];
        draft = draft.captioned(figures, "");
    }
    let mut places = Vec::new();
    for block in &model.blocks {
        let own = [
            ("queue", figures::queue(block)),
            ("places", figures::gates_by_place(block)),
            ("experts-places", figures::experts_by_place(block)),
        ];
        for (file, svg) in own {
            let file = format!("{file}-block-{}", block.block);
            places.extend(svg.map(|svg| context.figure(&file, svg)));
        }
    }
    match places.is_empty() {
        true => draft,
        false => draft.captioned(places, ""),
    }
}

fn ways(draft: Draft, model: &ModelRoutes, context: &Context) -> Draft {
    let title = context.title(model, "Ways through the layers");
    let rows: Vec<Vec<String>> = model
        .degrees
        .iter()
        .map(|degree| {
            let formula = match (&degree.formula, degree.possible) {
                (Some(formula), Some(possible)) => format!("{} = {formula}", short(possible)),
                _ => "—".to_owned(),
            };
            let used = match degree.left_out {
                0 => degree.used.to_string(),
                _ => format!("more than {}", degree.used),
            };
            vec![degree.modality.clone(), formula, used, format!("{:.1}", degree.effective)]
        })
        .collect();
    let mut draft = draft.add(|page| {
        page.section(&title)
            .text(
                "Combinations of experts that a token can pass in all layers (the routing degree of paper 003), those that \
                 tokens do pass, and as how many that are used alike these are (e to the power of their entropy).",
            )
            .table(&["tokens of", "possible", "in use", "effective"], &rows)
    });
    if let Some(svg) = figures::flow(model) {
        let caption = "From the main expert of a token in one layer to that in the next; as thick as there are tokens.";
        draft = draft.captioned(vec![context.figure("ways", svg)], caption);
    }
    let coverage = ["images", "texts"].into_iter().filter_map(|modality| {
        let svg = figures::coverage(model, modality)?;
        Some(context.figure(&format!("coverage-{modality}"), svg))
    });
    let coverage: Vec<Figure> = coverage.collect();
    if !coverage.is_empty() {
        let caption = "How many of the experts are needed: tokens that lose their best expert have to take another.";
        draft = draft.add(|page| page.subsection("Coverage")).captioned(coverage, caption);
    }
    draft
}

fn words(draft: Draft, model: &ModelRoutes, context: &Context) -> Draft {
    let read: Vec<&BlockRoutes> =
        model.blocks.iter().filter(|block| !block.words.is_empty()).collect();
    if read.is_empty() {
        return draft;
    }
    let title = context.title(model, "What experts read");
    let kinds = read.iter().filter_map(|block| {
        let svg = figures::word_kinds(block)?;
        Some(context.figure(&format!("words-block-{}", block.block), svg))
    });
    let kinds: Vec<Figure> = kinds.collect();
    let mut draft = draft.add(|page| {
        page.section(&title).text(
            "Words by kind: function words are those of a list of English ones (articles, prepositions, pronouns, \
             auxiliaries), all others that have a letter or a digit are content words.",
        )
    });
    draft = draft.captioned(kinds, "What of an expert's share of the texts is of which kind.");
    for block in read {
        let title = format!("Block {}: surest words", block.block);
        draft = draft.add(|mut page| {
            page = page
                .subsection(&title)
                .text("With the mean of their gates, and how often the expert took them.");
            for own in block.words.iter().filter(|own| !own.surest.is_empty()) {
                let word =
                    |word: &SureWord| format!("{} ({:.2}, {}×)", word.word, word.gate, word.count);
                let words: Vec<String> = own.surest.iter().map(word).collect();
                page = page.text(&format!("Expert {}: {}.", own.expert, words.join(", ")));
            }
            page
        });
    }
    draft
}
