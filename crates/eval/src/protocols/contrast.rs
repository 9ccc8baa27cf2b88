//! How images and texts find each other: zero-shot accuracy, retrieval, pairs of a batch (paper 002).

use std::collections::HashSet;

use burn::tensor::Device;
use omma_data::{Selection, text::TextCounts};
use omma_report::Bars;
use serde::{Deserialize, Serialize};

use crate::{
    digits::{self, share_within},
    error::{EvalError, Result},
    metrics::{ContrastiveAccuracy, Embeddings, Recall, Retrieval, best, softmax},
    prompts::{Templates, are_numbers},
    reader::{EmbeddedData, Reader},
    report::{Draft, Fact},
    stream::{Images, Watcher},
    summary::{Binning, Summary},
    system::PromptRecord,
};

/// What is asked of a model that compares images with texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContrastProtocol {
    /// Sentences for the names of classes; without them, classes are not asked for.
    pub templates: Option<Templates>,
    /// Images, or texts, per forward pass.
    pub batch: usize,
    /// Pairs that are told apart at a time.
    pub pairs: usize,
    /// Images at most, evenly spread over the data.
    pub limit: Option<usize>,
}

impl Default for ContrastProtocol {
    fn default() -> Self {
        let pairs = ContrastiveAccuracy::BATCH;
        Self { templates: Some(Templates::default()), batch: 64, pairs, limit: None }
    }
}

/// The part of `eval.json` that a model which compares images with texts has beside others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContrastRecord {
    /// What similarities are multiplied by, the inverse of a temperature.
    pub scale: f64,
    /// What made the classes; nothing where the data have none.
    pub prompts: Option<PromptRecord>,
    /// By images with captions; nothing where there are none.
    pub captions: Option<CaptionRecord>,
}

/// How images and their captions find each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaptionRecord {
    /// Images, those without captions among them.
    pub images: usize,
    /// What became of the captions on their way to tokens.
    pub texts: TextCounts,
    /// Captions that another one before them equals, which nobody can tell apart.
    pub repeated: usize,
    /// Among all images and all texts.
    pub retrieval: Retrieval,
    /// Among the pairs of a batch, the first caption of every image.
    pub accuracy: ContrastiveAccuracy,
}

/// Everything that one pass over images and texts shows.
#[derive(Clone)]
pub struct Contrast {
    /// What `eval.json` has of it.
    pub record: ContrastRecord,
    /// Scores of the zero-shot classifier; nothing where classes were not asked for, or have no names.
    pub zero_shot: Option<Summary>,
    /// Texts and what they found, to be shown.
    pub(crate) queries: Vec<Query>,
    /// What the places in these are places of.
    pub(crate) images: Images,
}

/// A text and the images that it found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Query {
    pub(crate) text: String,
    /// The image's place in the data.
    pub(crate) image: usize,
    /// Images that come before it.
    pub(crate) rank: usize,
    /// Places in the data and similarities, the largest first.
    pub(crate) best: Vec<(usize, f64)>,
}

/// Texts that are shown, of those whose image came first, and of others.
const SHOWN: (usize, usize) = (4, 8);
/// Images that each is shown with.
const BEST: usize = 5;

/// Judges a model by images with captions, with names of classes, or with both. Images and texts are embedded
/// once, each by itself, so that an MoE layer sees one modality at a time (paper 002 App. D.1).
pub fn contrast(
    reader: &Reader,
    images: &Images,
    protocol: &ContrastProtocol,
    watcher: &mut dyn Watcher,
) -> Result<Contrast> {
    let data = match protocol.limit {
        Some(limit) => Selection::spread(&images.data, limit.max(1)),
        None => images.data.clone(),
    };
    let images = Images { data, ..images.clone() };
    let classes = images.data.classes();
    let templates = protocol.templates.as_ref();
    let templates = templates.filter(|_| classes.len() > 1 && !are_numbers(classes));
    if templates.is_none() && !images.data.has_captions() {
        return Err(EvalError::NoTexts { data: images.name.clone() });
    }
    let embedded = reader.data(&images, protocol.batch, watcher)?;
    let scale = reader.model().scale();
    let (mut zero_shot, mut prompts) = (None, None);
    if let Some(templates) = templates {
        let (classifier, texts) = reader.classifier(classes, templates, protocol.batch, watcher)?;
        zero_shot = Some(embedded.zero_shot(&classifier, scale, Binning::default()));
        prompts = Some(PromptRecord { templates: templates.lines().to_vec(), texts });
    }
    let found = embedded.captions(protocol.pairs, reader.device(), watcher)?;
    let (captions, queries) = found.unzip();
    let record = ContrastRecord { scale, prompts, captions };
    Ok(Contrast { record, zero_shot, queries: queries.unwrap_or_default(), images })
}

impl EmbeddedData {
    /// Scores of a zero-shot classifier on the images.
    ///
    /// - `classifier`: `[C, E]`
    pub fn zero_shot(&self, classifier: &Embeddings, scale: f64, binning: Binning) -> Summary {
        let mut scores = binning.scores();
        for (image, label) in self.images.rows().zip(&self.labels) {
            let logit = |class: &[f32]| {
                let product: f32 = image.iter().zip(class).map(|(a, b)| a * b).sum();
                (scale * f64::from(product)) as f32
            };
            let logits: Vec<f32> = classifier.rows().map(logit).collect();
            scores.add(&softmax(&logits, 1.0), *label);
        }
        binning.summary(&scores, classifier.len())
    }

    /// How images and captions find each other, and texts to show; nothing where there are no captions.
    ///
    /// - `pairs`: pairs that are told apart at a time
    pub(crate) fn captions(
        &self,
        pairs: usize,
        device: &Device,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<(CaptionRecord, Vec<Query>)>> {
        let Self { images, texts, owners, captions, counts, .. } = self;
        let found = Retrieval::with_ranks(images, texts, owners, device, watcher)?;
        let Some((retrieval, ranks)) = found else { return Ok(None) };
        let mut first: Vec<Option<usize>> = vec![None; images.len()];
        for (text, owner) in owners.iter().enumerate() {
            first[*owner].get_or_insert(text);
        }
        let (own, first): (Vec<usize>, Vec<usize>) =
            first.iter().enumerate().filter_map(|(image, text)| Some((image, (*text)?))).unzip();
        let (own, first) = (images.select(&own), texts.select(&first));
        let accuracy = ContrastiveAccuracy::of(&own, &first, pairs, device, watcher)?;
        let Some(accuracy) = accuracy else { return Ok(None) };
        let mut seen = HashSet::new();
        let record = CaptionRecord {
            images: images.len(),
            texts: *counts,
            repeated: captions.iter().filter(|caption| !seen.insert(caption.as_str())).count(),
            retrieval,
            accuracy,
        };
        Ok(Some((record, self.queries(&ranks))))
    }

    /// A few texts whose image came first and a few whose did not, evenly spread over the data.
    fn queries(&self, ranks: &[u32]) -> Vec<Query> {
        let spread = |found: bool, most: usize| {
            let all: Vec<usize> =
                (0..ranks.len()).filter(|text| (ranks[*text] == 0) == found).collect();
            let count = most.min(all.len());
            (0..count).map(|place| all[place * all.len() / count]).collect::<Vec<usize>>()
        };
        let query = |text: usize| Query {
            text: self.captions[text].clone(),
            image: self.indices[self.owners[text]],
            rank: ranks[text] as usize,
            best: best(self.texts.row(text), &self.images, BEST)
                .into_iter()
                .map(|(image, similarity)| (self.indices[image], similarity))
                .collect(),
        };
        let right = spread(true, SHOWN.0);
        right.into_iter().chain(spread(false, SHOWN.1)).map(query).collect()
    }
}

impl CaptionRecord {
    /// Both ways, in words.
    pub fn ways(&self) -> [(&'static str, &Recall); 2] {
        let Retrieval { text_to_image, image_to_text } = &self.retrieval;
        [("text → image", text_to_image), ("image → text", image_to_text)]
    }

    /// Of both ways: queries, candidates, recall at 1, 5 and 10, and the median rank.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |(way, recall): (&str, &Recall)| {
            let depths = recall.recall.each().into_iter().zip(recall.intervals.each());
            let shares = depths.map(|((_, share), (_, interval))| {
                share_within(*share, Some(interval), recall.queries)
            });
            let chance = recall.chance.each().map(|(_, share)| digits::percent(*share, 1));
            let median = format!("{}", recall.median_rank);
            let counted = |count: usize| count.to_string();
            let counts = [way.to_owned(), counted(recall.queries), counted(recall.candidates)];
            let rest = [median, chance.join(", ")];
            counts.into_iter().chain(shares).chain(rest).collect::<Vec<String>>()
        };
        self.ways().map(row).to_vec()
    }

    /// What the columns of these are.
    pub const HEADER: [&'static str; 8] =
        ["", "queries", "among", "at 1", "at 5", "at 10", "median rank", "chance"];

    /// How the batches were made, in words.
    pub fn batches_in_words(&self) -> String {
        let ContrastiveAccuracy { batch, batches, left_out, .. } = self.accuracy;
        let left_out = match left_out {
            0 => String::new(),
            count => format!("; {count} pairs do not fill another and are left out"),
        };
        let several = if batches == 1 { "1 batch" } else { &format!("{batches} batches") };
        format!("{several} of {batch} pairs{left_out}")
    }

    /// What to know about the captions, in words.
    pub fn texts_in_words(&self) -> String {
        match self.repeated {
            0 => self.texts.to_string(),
            count => format!("{}; {count} equal an earlier one", self.texts),
        }
    }

    /// The shares of pairs that are told apart: of images, and of texts.
    pub fn told_apart(&self) -> [String; 2] {
        let found = &self.accuracy;
        let pairs = found.batch * found.batches;
        [(found.images, &found.images_interval), (found.texts, &found.texts_interval)]
            .map(|(share, interval)| share_within(share, Some(interval), pairs))
    }
}

impl ContrastRecord {
    pub(crate) fn facts(&self) -> Vec<Fact> {
        let Some(captions) = &self.captions else { return Vec::new() };
        let recall = |recall: &Recall| {
            let Recall { recall, intervals, queries, .. } = recall;
            split(share_within(recall.at_1, Some(&intervals.at_1), *queries))
        };
        let (text, text_note) = recall(&captions.retrieval.text_to_image);
        let (image, image_note) = recall(&captions.retrieval.image_to_text);
        let [pairs, _] = captions.told_apart();
        let (pairs, pairs_note) = split(pairs);
        vec![
            ("Texts that find their image first", text, text_note),
            ("Images that find a text first", image, image_note),
            ("Pairs told apart", pairs, pairs_note),
        ]
    }

    /// Retrieval and pairs.
    pub(crate) fn section(&self, draft: Draft) -> Draft {
        let draft = match &self.prompts {
            Some(prompts) => draft.add(|page| {
                let text = format!(
                    "Classes are known by their names alone: each name is put into {} sentences, and the mean \
                     of what the model makes of them is compared with images. Similarities are multiplied by \
                     {:.2} before the softmax. {}.",
                    prompts.templates.len(),
                    self.scale,
                    prompts.texts
                );
                let rows: Vec<Vec<String>> =
                    prompts.templates.iter().map(|line| vec![line.clone()]).collect();
                page.section("Zero-shot classes").text(&text).table(&["sentence"], &rows)
            }),
            None => draft,
        };
        let Some(captions) = &self.captions else { return draft };
        let text = format!(
            "A text looks for its image among all {} images, and an image for any of its texts among all: how \
             often it is the first, among the first five, among the first ten, with 95 % intervals by a bootstrap \
             over the images. Of equal ones the first in the data comes first. Chance is what an order that knows \
             nothing finds. {}.",
            captions.images,
            captions.texts_in_words()
        );
        let draft = draft.add(|page| {
            page.section("Retrieval").text(&text).table(&CaptionRecord::HEADER, &captions.rows())
        });
        let draft = draft.figures(vec![("recall".to_owned(), captions.figure())]);
        let text = format!(
            "Pairs of an image and its first text are told apart within a batch (“val acc” of paper 002, \
             Table 5): {}.",
            captions.batches_in_words()
        );
        let [images, texts] = captions.told_apart();
        let rows =
            [("images that find their text", images), ("texts that find their image", texts)]
                .map(|(name, share)| vec![name.to_owned(), share])
                .into_iter()
                .chain([vec!["chance".to_owned(), digits::percent(captions.accuracy.chance(), 2)]]);
        let rows: Vec<Vec<String>> = rows.collect();
        draft.add(|page| page.subsection("Pairs of a batch").text(&text).table(&["", ""], &rows))
    }
}

impl CaptionRecord {
    fn figure(&self) -> String {
        let shares =
            |recall: &Recall| recall.recall.each().map(|(_, share)| 100.0 * share).to_vec();
        Bars {
            title: "Recall".to_owned(),
            x_label: "among the first".to_owned(),
            y_label: "% of the queries".to_owned(),
            labels: self.retrieval.text_to_image.recall.each().map(|(k, _)| k.to_string()).to_vec(),
            groups: self.ways().map(|(way, recall)| (way.to_owned(), shares(recall))).to_vec(),
            reference: None,
            errors: Vec::new(),
        }
        .svg()
    }
}

/// `28 % (20–37)` as a value and a note.
fn split(share: String) -> (String, String) {
    match share.split_once(" (") {
        Some((share, range)) => {
            (share.to_owned(), format!("95 % interval {}", range.trim_end_matches(')')))
        }
        None => (share, String::new()),
    }
}
