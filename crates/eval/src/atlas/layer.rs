//! One layer with experts, as batches come: counts and the surest of everything, nothing that grows with the data.

use omma_model::{IMAGES, TEXTS};
use omma_routing::{Allocation, Plan, RouterConfig, Routing, Scope, SparsePlan};

use super::{
    combinations::part,
    gates::{ModalityTally, sums_gates},
    labels::TokenLabels,
    parts::Parts,
    permutation::{NOWHERE, Sample},
    rows::RowPlace,
    words::{WordKind, Words},
};
use crate::{
    gallery::{Patch, keep_strongest},
    routing::row_visits,
};

/// What a batch brings beside its routings.
pub(super) struct BatchFacts<'a> {
    /// `[B]`: which sample of the data every image is.
    pub(super) indices: &'a [usize],
    pub(super) labels: &'a TokenLabels,
    /// `[texts, L]`: ids of the texts' tokens, and their kinds.
    pub(super) ids: &'a [u32],
    pub(super) kinds: &'a [WordKind],
    pub(super) text_length: usize,
}

/// What does not change while batches come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LayerOptions {
    /// Classes that are told apart; none where that is less than two.
    pub(super) classes: usize,
    /// Tokens of an image, and those of them in front of the patches.
    pub(super) tokens: usize,
    pub(super) prefix: usize,
    /// Images that a permutation test may keep.
    pub(super) sampled: usize,
}

/// Sums of one layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LayerTally {
    pub(super) block: usize,
    pub(super) router: RouterConfig,
    pub(super) parts: Parts,
    options: LayerOptions,
    pub(super) soft: bool,
    /// Images, texts.
    pub(super) modalities: [ModalityTally; 2],
    /// `[classes, columns]`: tokens of images; for soft routing, combine mass.
    pub(super) by_class: Vec<f64>,
    /// `[classes, columns]`: for soft routing, dispatch mass.
    pub(super) dispatched: Vec<f64>,
    /// `[classes, columns]`: images, by the expert that took most of each.
    pub(super) by_image: Vec<f64>,
    /// Images, and the sum of their different experts.
    pub(super) images: u64,
    pub(super) distinct: u64,
    /// One of every part.
    pub(super) samples: Vec<Sample>,
    /// `[T]`: by place in an image, tokens and the sum of their largest gates.
    pub(super) places: Vec<(u64, f64)>,
    /// `[E, T]`: by expert and place in an image, tokens; for soft routing, dispatch mass.
    pub(super) by_place: Vec<f64>,
    /// `[columns]`: what each expert is drawn to most, the strongest first.
    pub(super) surest: Vec<Vec<Patch>>,
    pub(super) words: Words,
}

/// Room for numbers about the rows of a batch, which all layers share.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// `[N]`: the expert that a row is drawn to most, of those that took it, or [`NOWHERE`].
    pub(super) main: Vec<u16>,
    /// `[N]`: how much.
    score: Vec<f32>,
    /// `[N]`: the sum of its gates; for soft routing, the entropy of its weights.
    sum: Vec<f32>,
    /// `[B, columns]`: tokens of every image.
    histogram: Vec<f32>,
    /// `[E]`: the last image that an expert took something of.
    stamps: Vec<usize>,
    queue: Vec<(f32, u8)>,
}

impl LayerTally {
    pub(super) fn new(block: usize, router: &RouterConfig, options: LayerOptions) -> Self {
        let parts = Parts::of(router);
        let (width, experts) = (parts.width(), router.experts);
        let soft = matches!(router.allocation, Allocation::Soft(_));
        let table = || vec![0.0; options.classes * width];
        Self {
            block,
            router: router.clone(),
            options,
            soft,
            modalities: [ModalityTally::new(experts), ModalityTally::new(experts)],
            by_class: table(),
            dispatched: if soft { table() } else { Vec::new() },
            by_image: table(),
            images: 0,
            distinct: 0,
            samples: Vec::new(),
            places: vec![(0, 0.0); options.tokens],
            by_place: vec![0.0; experts * options.tokens],
            surest: vec![Vec::new(); width],
            words: Words::new(experts),
            parts,
        }
    }

    /// - `places`: `[N]`, what every row of the layer is
    /// - `paths`: `[N]`, what stands for the experts of earlier layers; this one's are added
    pub(super) fn add(
        &mut self,
        number: usize,
        routing: &Routing,
        facts: &BatchFacts,
        places: &[RowPlace],
        paths: &mut [u64],
        scratch: &mut Scratch,
    ) {
        let members = places.iter().map(|place| usize::from(place.member) + 1).max().unwrap_or(1);
        self.parts.prepare(members);
        self.visit(number, routing, facts, places, paths, scratch);
        self.add_gates(routing, places, scratch);
        if let Plan::Sparse(plan) = &routing.plan {
            self.add_drops(plan, places);
            self.add_queue(plan, places, scratch);
        }
        for (place, (main, score)) in places.iter().zip(scratch.main.iter().zip(&scratch.score)) {
            let tally = &mut self.modalities[usize::from(place.modality)];
            tally.tokens += 1;
            if *main == NOWHERE {
                tally.unserved += 1;
            } else if usize::from(place.modality) == IMAGES {
                let (count, sum) = &mut self.places[place.token as usize];
                *count += 1;
                *sum += f64::from(*score);
            }
        }
        self.add_images(facts, places, scratch);
    }

    /// Counts every visit.
    fn visit(
        &mut self,
        number: usize,
        routing: &Routing,
        facts: &BatchFacts,
        places: &[RowPlace],
        paths: &mut [u64],
        scratch: &mut Scratch,
    ) {
        let (soft, width) = (self.soft, self.parts.width());
        let whole = self.router.scope != Scope::Token;
        let Scratch { main, score, sum, histogram, .. } = scratch;
        renewed(main, places.len(), NOWHERE);
        renewed(score, places.len(), f32::NEG_INFINITY);
        renewed(sum, places.len(), 0.0);
        renewed(histogram, facts.indices.len() * width, 0.0);
        let Self {
            parts, modalities, by_class, dispatched, by_place, surest, words, options, ..
        } = self;
        row_visits(routing, |visit| {
            let (row, place) = (visit.row, places[visit.row]);
            let drawn = if soft { visit.weight } else { visit.gate };
            if drawn > score[row] {
                (score[row], main[row]) = (drawn, visit.expert as u16);
            }
            let modality = usize::from(place.modality);
            modalities[modality].load[visit.expert] += f64::from(visit.count);
            if soft {
                modalities[modality].add_gate(visit.expert, visit.weight);
                sum[row] -= if drawn > 0.0 { drawn * drawn.ln() } else { 0.0 };
            } else {
                sum[row] += visit.gate;
                paths[row] = paths[row].wrapping_add(part(number, visit.expert));
            }
            let (sequence, token) = (place.sequence as usize, place.token as usize);
            if modality == TEXTS {
                let at = sequence * facts.text_length + token;
                let (id, kind) = (facts.ids[at], facts.kinds[at]);
                words.add(visit.expert, id, kind, drawn, visit.count);
                return;
            }
            let Some(column) = parts.column(place.member.into(), visit.expert) else { return };
            histogram[sequence * width + column] += visit.count;
            let taken = if soft { visit.gate } else { visit.count };
            by_place[visit.expert * options.tokens + token] += f64::from(taken);
            let label = match facts.labels {
                TokenLabels::Images(labels) => labels[sequence],
                TokenLabels::Tokens(labels) => labels[sequence * options.tokens + token],
                TokenLabels::None => u32::MAX,
            } as usize;
            if label < options.classes {
                by_class[label * width + column] += f64::from(visit.count);
                if soft {
                    dispatched[label * width + column] += f64::from(visit.gate);
                }
            }
            if token >= options.prefix && (!whole || token == options.prefix) {
                let (index, place) = (facts.indices[sequence], token - options.prefix);
                keep_strongest(&mut surest[column], Patch { index, place, gate: visit.gate });
            }
        });
        if soft {
            for (path, main) in paths.iter_mut().zip(&*main) {
                *path = path.wrapping_add(part(number, (*main).into()));
            }
        }
    }

    /// Largest gates and entropies: of the gates' tables, or of soft routing's weights.
    fn add_gates(&mut self, routing: &Routing, places: &[RowPlace], scratch: &Scratch) {
        let Plan::Sparse(plan) = &routing.plan else {
            for (row, place) in places.iter().enumerate() {
                let tally = &mut self.modalities[usize::from(place.modality)];
                tally.add_row(scratch.main[row].into(), scratch.score[row], scratch.sum[row]);
            }
            return;
        };
        for table in &routing.tables {
            for (row, unit) in table.gates.chunks_exact(table.columns().max(1)).zip(&table.tokens) {
                let place = places[*unit as usize * plan.span()];
                self.modalities[usize::from(place.modality)].add_gates(row, table);
            }
        }
    }

    /// Choices that the capacity of training would have had no room for.
    fn add_drops(&mut self, plan: &SparsePlan, places: &[RowPlace]) {
        let capacities = self.router.training_capacities(plan.groups());
        let (Some(decisions), Some(capacities)) = (plan.decisions(), capacities) else { return };
        for (group, capacity) in capacities.into_iter().enumerate() {
            for unit in plan.groups().tokens(group) {
                let first = *unit as usize * decisions.per_token;
                let modality = places[*unit as usize * plan.span()].modality;
                for choice in first..first + decisions.per_token {
                    if decisions.slots[choice] as usize >= capacity {
                        let expert = decisions.experts[choice] as usize;
                        let dropped = &mut self.modalities[usize::from(modality)].dropped;
                        dropped[expert] += plan.span() as f64;
                    }
                }
            }
        }
    }

    /// Tokens by their priority, where tokens choose.
    fn add_queue(&mut self, plan: &SparsePlan, places: &[RowPlace], scratch: &mut Scratch) {
        if plan.decisions().is_none() {
            return;
        }
        let sums = sums_gates(&self.router);
        let Scratch { queue, score, sum, .. } = scratch;
        for group in 0..plan.groups().len() {
            queue.clear();
            queue.extend(plan.groups().tokens(group).iter().map(|unit| {
                let row = *unit as usize * plan.span();
                let priority = if sums { sum[row] } else { score[row].max(0.0) };
                (priority, places[row].modality)
            }));
            queue.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            for (place, (priority, modality)) in queue.iter().enumerate() {
                let tally = &mut self.modalities[usize::from(*modality)];
                tally.add_queued(place, queue.len(), *priority);
            }
        }
    }

    /// Images one by one: how many experts each has, which has most of it, and what is kept of it for the test.
    fn add_images(&mut self, facts: &BatchFacts, places: &[RowPlace], scratch: &mut Scratch) {
        let width = self.parts.width();
        if width == 0 {
            return;
        }
        let experts = self.parts.column_experts();
        let Scratch { histogram, stamps, main, .. } = scratch;
        renewed(stamps, self.router.experts, 0);
        for (image, counts) in histogram.chunks_exact(width).enumerate() {
            self.images += 1;
            for (expert, count) in experts.iter().zip(counts) {
                if *count > 0.0 && stamps[*expert] != image + 1 {
                    stamps[*expert] = image + 1;
                    self.distinct += 1;
                }
            }
            let TokenLabels::Images(labels) = facts.labels else { continue };
            let label = labels[image] as usize;
            if label >= self.options.classes {
                continue;
            }
            for (_, range) in self.parts.ranges() {
                if let Some(most) = largest(&counts[range.clone()]) {
                    self.by_image[label * width + range.start + most] += 1.0;
                }
            }
            self.sample_image(label as u32, counts);
        }
        if let TokenLabels::Tokens(labels) = facts.labels {
            self.sample_tokens(labels, places, main);
        }
    }

    fn sample_image(&mut self, label: u32, counts: &[f32]) {
        if self.samples.is_empty() {
            let none = || Sample::Images { experts: Vec::new(), labels: Vec::new() };
            self.samples = self.parts.all.iter().map(|_| none()).collect();
        }
        for ((_, range), sample) in self.parts.ranges().zip(&mut self.samples) {
            if let Sample::Images { experts, labels } = sample
                && labels.len() < self.options.sampled
            {
                experts.extend(&counts[range]);
                labels.push(label);
            }
        }
    }

    /// - `labels`: `[B, T]`
    fn sample_tokens(&mut self, labels: &[u32], places: &[RowPlace], main: &[u16]) {
        let tokens = self.options.tokens;
        if self.samples.is_empty() {
            let none = || Sample::Tokens { experts: Vec::new(), labels: Vec::new(), tokens };
            self.samples = self.parts.all.iter().map(|_| none()).collect();
        }
        let images = labels.len() / tokens.max(1);
        for ((part, range), sample) in self.parts.ranges().zip(&mut self.samples) {
            let Sample::Tokens { experts, labels: kept, .. } = sample else { continue };
            let room = self.options.sampled.saturating_sub(kept.len() / tokens.max(1)).min(images);
            let first = experts.len();
            experts.resize(first + room * tokens, NOWHERE);
            kept.extend(&labels[..room * tokens]);
            for (place, main) in places.iter().zip(main) {
                let at = place.sequence as usize * tokens + place.token as usize;
                let member = usize::from(place.member);
                let own = usize::from(place.modality) == IMAGES
                    && member == part.member.unwrap_or(0)
                    && at < room * tokens
                    && *main != NOWHERE;
                if let Some(column) =
                    own.then(|| self.parts.column(member, (*main).into())).flatten()
                    && range.contains(&column)
                {
                    experts[first + at] = (column - range.start) as u16;
                }
            }
        }
    }
}

/// A buffer of so many equal values.
fn renewed<T: Clone>(buffer: &mut Vec<T>, length: usize, value: T) {
    buffer.clear();
    buffer.resize(length, value);
}

/// The first of the largest, if anything is above 0.
fn largest(counts: &[f32]) -> Option<usize> {
    let most = counts.iter().copied().fold(0.0, f32::max);
    counts.iter().position(|count| *count == most).filter(|_| most > 0.0)
}
