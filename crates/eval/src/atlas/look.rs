//! Where the tokens of single pictures and texts go (paper 002 Figs. 26–29).

use omma_data::{Batch, Picture};
use omma_model::{IMAGES, ModelError};
use omma_report::Thumbnail;
use serde::{Deserialize, Serialize};

use super::{
    rows::RowPlace,
    subject::RoutedModel,
    words::{Pieces, WordKind},
};
use crate::{
    error::{EvalError, Result},
    routing::row_visits,
};

/// What is looked at: at least one picture.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LookInput {
    /// Pictures, and what each is called.
    pub pictures: Vec<(String, Picture)>,
    /// Texts, for a model that reads.
    pub texts: Vec<String>,
}

/// Experts of a token that are named.
const MOST_EXPERTS: usize = 8;

/// Where everything went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// The model.
    pub model: String,
    /// One after the other: pictures, then texts.
    pub inputs: Vec<LookedAt>,
}

/// One picture or text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LookedAt {
    /// What it is called; of a text, the text.
    pub name: String,
    /// `images` or `texts`.
    pub modality: String,
    /// Rows and columns of patches; of a picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid: Option<(usize, usize)>,
    /// Tokens in front of the patches.
    pub prefix: usize,
    /// Its tokens as words; of a text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// Layer by layer, member by member.
    pub blocks: Vec<LookBlock>,
    /// What the model sees of it.
    #[serde(skip)]
    pub(super) picture: Option<Thumbnail>,
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LookBlock {
    /// Which block.
    pub block: usize,
    /// Experts that there are.
    pub experts: usize,
    /// The ensemble member whose copy it is, of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<usize>,
    /// Whether every expert gets some of every token; gates are then combine weights.
    pub soft: bool,
    /// Token by token.
    pub tokens: Vec<TokenRoute>,
}

/// A token at its experts, the one that it is drawn to most first, at most eight of them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TokenRoute {
    /// Those that took it, each with its gate; for soft routing, with its combine mass.
    pub experts: Vec<(usize, f32)>,
    /// The largest gates, whether these experts took it or not; empty for soft routing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<(usize, f32)>,
}

/// Runs pictures and texts through a model, together, and says where their tokens went.
pub fn look(subject: &RoutedModel, input: &LookInput) -> Result<Look> {
    subject.check()?;
    if !input.texts.is_empty() {
        if !subject.model.reads() {
            return Err(ModelError::ReadsNoText.into());
        }
        if subject.tokenizer.is_none() {
            return Err(EvalError::NoTokenizer { model: subject.name.clone() });
        }
    }
    let pixels = subject.pixels();
    let image = &subject.model.config().image;
    let cut: Vec<Picture> = input
        .pictures
        .iter()
        .map(|(_, picture)| picture.centre_crop(pixels.resolution, 1.0))
        .collect();
    let mut batch = Batch::unlabelled(&cut, 0, &pixels);
    if batch.is_empty() {
        return Err(EvalError::Empty { data: "what is to be looked at".to_owned() });
    }
    let pieces = subject.tokenizer.filter(|_| !input.texts.is_empty()).map(Pieces::of);
    let texts = match input.texts.is_empty() {
        true => None,
        false => subject.texts(&input.texts, pieces.as_ref()),
    };
    let routed = subject.routed(&mut batch, texts.as_ref())?;
    let (rows, columns) = image.grid(pixels.resolution);
    let covered = omma_base::Resolution::new(rows * image.patch, columns * image.patch);
    let mut inputs: Vec<LookedAt> = input
        .pictures
        .iter()
        .zip(&cut)
        .map(|((name, _), cut)| LookedAt {
            name: name.clone(),
            modality: crate::routing::modality_name(IMAGES),
            grid: Some((rows, columns)),
            prefix: image.prefix_tokens(),
            words: Vec::new(),
            blocks: Vec::new(),
            picture: Some(seen(cut, covered)),
        })
        .collect();
    if let (Some(texts), Some(pieces)) = (&texts, &pieces) {
        let own = texts.ids.chunks_exact(texts.length.max(1));
        let kinds = texts.kinds.chunks_exact(texts.length.max(1));
        inputs.extend(input.texts.iter().zip(own.zip(kinds)).map(|(text, (ids, kinds))| {
            LookedAt {
                name: text.clone(),
                modality: crate::routing::modality_name(omma_model::TEXTS),
                grid: None,
                prefix: 0,
                words: words(ids, kinds, pieces),
                blocks: Vec::new(),
                picture: None,
            }
        }));
    }
    let depth = subject.depth();
    for (block, layer) in subject.layers() {
        let Some((_, routing)) = routed.routings.iter().find(|(own, _)| *own == block) else {
            continue;
        };
        let shape = match &routed.tower {
            Some(tower) if block >= depth => tower,
            _ => &routed.shape,
        };
        let router = layer.router.config();
        let soft = matches!(router.allocation, omma_routing::Allocation::Soft(_));
        let places = shape.places(super::tally::rows(routing));
        let mut routes = vec![TokenRoute::default(); places.len()];
        row_visits(routing, |visit| {
            let gate = if soft { visit.weight } else { visit.gate };
            routes[visit.row].experts.push((visit.expert, gate));
        });
        let span = routing.plan.as_sparse().map_or(1, |plan| plan.span());
        for table in &routing.tables {
            let rows = table.gates.chunks_exact(table.columns().max(1));
            for (gates, unit) in rows.zip(&table.tokens) {
                let first = *unit as usize * span;
                let gates = table.experts.iter().copied().zip(gates.iter().copied());
                routes[first..first + span]
                    .iter_mut()
                    .for_each(|one| one.gates.extend(gates.clone()));
            }
        }
        for route in &mut routes {
            for ranked in [&mut route.experts, &mut route.gates] {
                ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                ranked.truncate(MOST_EXPERTS);
            }
        }
        let members = places.iter().map(|place| place.member).max().unwrap_or(0);
        let base =
            LookBlock { block, experts: router.experts, member: None, soft, tokens: Vec::new() };
        add(&mut inputs, cut.len(), &places, routes, members, &base);
    }
    Ok(Look { model: subject.name.clone(), inputs })
}

/// Gives every input its tokens of one layer.
fn add(
    inputs: &mut [LookedAt],
    pictures: usize,
    places: &[RowPlace],
    routes: Vec<TokenRoute>,
    members: u16,
    base: &LookBlock,
) {
    for (place, route) in places.iter().zip(routes) {
        let sequence = place.sequence as usize;
        let input = match usize::from(place.modality) {
            IMAGES => sequence,
            _ => pictures + sequence,
        };
        let Some(input) = inputs.get_mut(input) else { continue };
        let member = (members > 0).then_some(usize::from(place.member));
        let own = |block: &LookBlock| block.block == base.block && block.member == member;
        let at = input.blocks.iter().position(own).unwrap_or_else(|| {
            input.blocks.push(LookBlock { member, ..base.clone() });
            input.blocks.len() - 1
        });
        let tokens = &mut input.blocks[at].tokens;
        // Places that hold no token have no row.
        tokens.resize(place.token as usize, TokenRoute::default());
        tokens.push(route);
    }
}

fn words(ids: &[u32], kinds: &[WordKind], pieces: &Pieces) -> Vec<String> {
    let word = |(id, kind): (&u32, &WordKind)| match kind {
        WordKind::Padding => "∅".to_owned(),
        _ => pieces.shown(*id).to_owned(),
    };
    ids.iter().zip(kinds).map(word).collect()
}

/// The longest side of a picture on a page.
const LONGEST: usize = 448;

/// What patches cover of a picture that is as large as the model sees it.
fn seen(picture: &Picture, covered: omma_base::Resolution) -> Thumbnail {
    let (width, height) = (covered.width.min(picture.width), covered.height.min(picture.height));
    let mut pixels = Vec::with_capacity(width * height * 3);
    for row in picture.pixels.chunks_exact(picture.width * 3).take(height) {
        pixels.extend_from_slice(&row[..width * 3]);
    }
    let cut = Picture { width, height, pixels };
    let longest = width.max(height);
    if longest <= LONGEST {
        return Thumbnail::new(&cut.pixels, width as u32, height as u32);
    }
    let side = |length: usize| (length * LONGEST / longest).max(1);
    let small = cut.resized(omma_base::Resolution::new(side(height), side(width)));
    Thumbnail::new(&small.pixels, small.width as u32, small.height as u32)
}
