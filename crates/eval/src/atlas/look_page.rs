//! The page of a look at single pictures and texts.

use omma_report::{Page, PatchMap, PatchMark};

use super::look::{Look, LookBlock, LookedAt, TokenRoute};
use crate::report::{Draft, Report};

/// Words of a text beside each other.
const WORDS_ACROSS: usize = 8;

/// Every input with the experts of its tokens, layer by layer.
pub fn look_page(look: &Look) -> Report {
    let about = "Which expert takes what; the strength of a colour is the gate, and all gates are said where the \
                 pointer rests";
    let mut draft = Draft::new(Page::new(format!("A look into {}", look.model), about));
    for (number, input) in look.inputs.iter().enumerate() {
        draft = draft.add(|page| page.section(&input.name));
        let front = in_front(input);
        if !front.is_empty() {
            draft = draft.add(|page| {
                page.text("Tokens in front of the patches:")
                    .table(&["block", "token", "experts"], &front)
            });
        }
        let plain = input.picture.as_ref().zip(input.grid).map(|(picture, grid)| PatchMap {
            title: "What the model sees".to_owned(),
            grid,
            picture: Some(picture.clone()),
            patches: vec![None; grid.0 * grid.1],
            legend: Vec::new(),
        });
        let plain = plain.map(|plain| (format!("look-{}", number + 1), plain.svg()));
        let figures = input.blocks.iter().map(|block| {
            let member = block.member.map(|member| format!("-{}", member + 1)).unwrap_or_default();
            (format!("look-{}-block-{}{member}", number + 1, block.block), map(input, block).svg())
        });
        draft = draft.captioned(plain.into_iter().chain(figures).collect(), "");
    }
    draft.finish()
}

/// Gates that are said beside those of the experts that took a token.
const MOST_GATES: usize = 4;

/// `expert 3 (0.910); gates 3: 0.910, 0: 0.052`
fn in_words(route: &TokenRoute) -> String {
    let joined = |all: Vec<String>| all.join(", ");
    let taken = |(expert, gate): &(usize, f32)| format!("expert {expert} ({gate:.3})");
    let gate = |(expert, gate): &(usize, f32)| format!("{expert}: {gate:.3}");
    let taken = match route.experts.is_empty() {
        true => "no expert".to_owned(),
        false => joined(route.experts.iter().map(taken).collect()),
    };
    match route.gates.as_slice() {
        [] => taken,
        gates => {
            let gates = joined(gates.iter().take(MOST_GATES).map(gate).collect());
            format!("{taken}; gates {gates}")
        }
    }
}

/// What class token and registers chose.
fn in_front(input: &LookedAt) -> Vec<Vec<String>> {
    let of_block = |block: &LookBlock| {
        let title = match block.member {
            Some(member) => format!("{}, member {}", block.block, member + 1),
            None => block.block.to_string(),
        };
        let tokens = block.tokens.iter().take(input.prefix).enumerate();
        let row = |(token, route): (usize, &TokenRoute)| {
            vec![title.clone(), token.to_string(), in_words(route)]
        };
        tokens.map(row).collect::<Vec<_>>()
    };
    input.blocks.iter().flat_map(of_block).collect()
}

/// The patches of a picture, or the words of a text.
fn map(input: &LookedAt, block: &LookBlock) -> PatchMap {
    let mark = |(place, route): (usize, &TokenRoute)| {
        let (expert, gate) = *route.experts.first()?;
        let where_at = match input.grid {
            Some((_, columns)) => {
                format!("row {}, column {}", place / columns.max(1) + 1, place % columns.max(1) + 1)
            }
            None => format!("“{}”", input.words.get(place).map_or("", String::as_str)),
        };
        let word = match input.grid {
            Some(_) => expert.to_string(),
            None => format!("{} {expert}", input.words.get(place).map_or("", String::as_str)),
        };
        let (strength, hover) = (f64::from(gate), format!("{where_at}: {}", in_words(route)));
        Some(PatchMark { colour: expert, strength, word, hover })
    };
    let tokens = &block.tokens[input.prefix.min(block.tokens.len())..];
    let patches: Vec<Option<PatchMark>> = tokens.iter().enumerate().map(mark).collect();
    let mut used: Vec<usize> = patches.iter().flatten().map(|mark| mark.colour).collect();
    used.sort_unstable();
    used.dedup();
    let member = block.member.map(|member| format!(", member {}", member + 1)).unwrap_or_default();
    let across = WORDS_ACROSS.min(patches.len().max(1));
    let grid = input.grid.unwrap_or((patches.len().div_ceil(across), across));
    PatchMap {
        title: format!(
            "Block {}{member}: {} of {} experts",
            block.block,
            used.len(),
            block.experts
        ),
        grid,
        picture: input.picture.clone(),
        patches,
        legend: used.into_iter().map(|expert| (expert, format!("expert {expert}"))).collect(),
    }
}
