//! What the atlas says, as `routes.json` holds it.

use std::ops::Range;

use omma_base::Seed;
use omma_model::{cost::Counted, parameters};
use omma_routing::Allocation;
use serde::{Deserialize, Serialize};

use super::{
    advice::Advice,
    combinations::{Degree, possible},
    coverage::needed,
    flow::Flow,
    gates::ModalityRoutes,
    information::{Information, entropy},
    layer::LayerTally,
    permutation::PermutationTest,
    subject::RoutedModel,
    tally::ModelTally,
    words::{ExpertWords, Pieces},
};
use crate::error::Result;

/// The atlas of some models: where the tokens of a data set go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Routes {
    /// What was looked at.
    pub data: String,
    /// Names of the classes; empty where there are less than two.
    pub classes: Vec<String>,
    /// Images per forward pass. They come in an order that is drawn, as in training; capacities, and routers whose
    /// choices depend on a batch, depend on it.
    pub batch: usize,
    /// Where that order and the permutations come from.
    pub seed: u64,
    /// One after the other.
    pub models: Vec<ModelRoutes>,
}

/// Where the tokens of one model go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelRoutes {
    /// What it is called.
    pub name: String,
    /// How it was named.
    pub path: String,
    /// What it is.
    pub model: String,
    /// Images that were looked at.
    pub images: usize,
    /// Texts that were routed together with them.
    pub texts: usize,
    /// What is not there, and why; what was bounded.
    pub notes: Vec<String>,
    /// Layer by layer.
    pub blocks: Vec<BlockRoutes>,
    /// Combinations of experts, of every modality.
    pub degrees: Vec<Degree>,
    /// What an image takes of the model.
    pub image_use: ImageUse,
    /// From layer to layer.
    pub flows: Vec<Flow>,
    /// What follows from it.
    pub advice: Advice,
}

/// What an image takes of a model (paper 003 Table 5).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ImageUse {
    /// Different routed experts that the tokens of an image go to, of all layers together, on average.
    pub experts: f64,
    /// Shared experts beside these.
    pub shared_experts: usize,
    /// Parameters that an image passes, on average.
    pub active_parameters: f64,
    /// Parameters that images can pass.
    pub parameters: u64,
}

/// One layer with experts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockRoutes {
    /// Which block, from 0. Those of a texts' own encoder are counted on.
    pub block: usize,
    /// Experts, `E`.
    pub experts: usize,
    /// Those that can be chosen: all but the pruned ones.
    pub available: usize,
    /// Whether every expert gets some of every token.
    pub soft: bool,
    /// Whether an image is routed as a whole.
    pub whole_images: bool,
    /// `[E]`: share of the load that each expert has (paper 003 Fig. 7).
    pub load: Vec<f64>,
    /// The busiest expert's load relative to a balanced one.
    pub peak_load: f64,
    /// `e^H` of the load: as many experts of equal load would be as balanced.
    pub effective_experts: f64,
    /// Experts that could be chosen and got nothing.
    pub idle: Vec<usize>,
    /// Different experts that an image goes to, on average.
    pub experts_per_image: f64,
    /// Slots of an expert in training, relative to a balanced load.
    pub capacity_factor: Option<f64>,
    /// Images and texts, each by themselves.
    pub modalities: Vec<ModalityRoutes>,
    /// What experts know of classes: all of them, or part by part.
    pub classes: Vec<ClassRoutes>,
    /// `[T]`: mean of the largest gate at every place of an image; first the tokens that are no patches.
    pub gates_by_place: Vec<f64>,
    /// `[E, T]`: tokens that each expert took from every place of an image; for soft routing, dispatch mass. Empty where
    /// images are routed as a whole, or there are too many experts and places to be looked at.
    pub experts_by_place: Vec<Vec<f64>>,
    /// Rows and columns of patches.
    pub grid: (usize, usize),
    /// What experts read; empty without texts.
    pub words: Vec<ExpertWords>,
}

/// Classes and experts of a layer, or of one of its parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassRoutes {
    /// `Member 2`; empty where all experts are one part.
    pub part: String,
    /// The experts of the columns.
    pub experts: Vec<usize>,
    /// Classes in an order to read (paper 003 Fig. 4): by the expert that has most of them, then by its share.
    pub order: Vec<usize>,
    /// `[classes, experts]`: tokens of images; for soft routing, combine mass.
    pub tokens: Vec<Vec<f64>>,
    /// `[classes, experts]`: for soft routing, dispatch mass.
    pub dispatched: Option<Vec<Vec<f64>>>,
    /// `[classes, experts]`: images by the expert that took most of their tokens; nothing where tokens have classes of
    /// their own.
    pub images: Option<Vec<Vec<f64>>>,
    /// What class and expert of a token know of each other.
    pub information: Information,
    /// The same of images and the expert that took most of each.
    pub image_information: Option<Information>,
    /// Whether that is more than chance.
    pub test: Option<PermutationTest>,
}

/// Numbers of experts by place that a record holds of a layer.
const MOST_PLACES: usize = 20_000;

/// What a record is made with beside the sums.
pub(super) struct RecordOptions {
    pub(super) permutations: usize,
    pub(super) seed: Seed,
}

impl ModelTally {
    pub(super) fn record(
        &self,
        subject: &RoutedModel,
        pieces: Option<&Pieces>,
        notes: Vec<String>,
        options: &RecordOptions,
    ) -> Result<ModelRoutes> {
        let config = subject.model.config();
        let grid = config.image.grid(config.image.resolution);
        let block = |layer: &LayerTally| layer.record(grid, pieces, options);
        let mut routes = ModelRoutes {
            name: subject.name.clone(),
            path: subject.path.clone(),
            model: config.in_words(),
            images: self.images,
            texts: self.texts,
            notes,
            blocks: self.layers.iter().map(block).collect(),
            degrees: self.degrees(),
            image_use: self.image_use(subject)?,
            flows: self.transitions().flat_map(|between| between.record()).collect(),
            advice: Advice::default(),
        };
        self.note_bounds(&mut routes);
        Ok(routes)
    }

    /// Says what was bounded.
    fn note_bounds(&self, routes: &mut ModelRoutes) {
        let tests = || routes.blocks.iter().flat_map(|block| &block.classes);
        if let Some(images) = tests().find_map(|own| own.test.map(|test| test.images))
            && images < self.images
        {
            routes.notes.push(format!(
                "permutation tests are of {images} images, drawn from the {} that were looked at",
                self.images
            ));
        }
        if routes.degrees.iter().any(|degree| degree.left_out > 0) {
            let most = super::combinations::MOST;
            routes.notes.push(format!(
                "the first {most} combinations of experts are told apart; there are more"
            ));
        }
        let words: u64 = self.layers.iter().map(|layer| layer.words.left_out).sum();
        if words > 0 {
            routes.notes.push(format!("{words} words came too late to be told apart"));
        }
    }

    fn degrees(&self) -> Vec<Degree> {
        let layers: [Vec<&LayerTally>; 2] = [self.of_images().collect(), self.of_texts().collect()];
        let seen = [self.images, self.texts];
        let of = |modality: usize| {
            let choices = |layer: &&LayerTally| match &layer.router.allocation {
                Allocation::TokenChoice(choice) => Some((layer.experts_of(modality), choice.k)),
                _ => None,
            };
            // A token that chooses in several subsets does so in each.
            let subsets = |layer: &LayerTally| layer.router.pool.gates_per_token();
            let all: Option<Vec<(usize, usize)>> = layers[modality].iter().map(choices).collect();
            let all = all.map(|all| {
                let each = all.into_iter().zip(&layers[modality]);
                each.flat_map(|(one, layer)| vec![one; subsets(layer)]).collect::<Vec<_>>()
            });
            // Members with experts of their own have combinations of their own.
            let members =
                |layer: &&&LayerTally| layer.parts.all.iter().any(|part| part.member.is_some());
            let members = match layers[modality].first().filter(members) {
                Some(layer) => layer.parts.all.len(),
                None => 1,
            };
            let all = all.map(|all| possible(&all)).map(|(value, formula)| match members {
                1 => (value, formula),
                several => (several as f64 * value, format!("{several} · {formula}")),
            });
            let name = crate::routing::modality_name(modality);
            self.combinations[modality].degree(name, all)
        };
        (0..2).filter(|modality| seen[*modality] > 0).map(of).collect()
    }

    fn image_use(&self, subject: &RoutedModel) -> Result<ImageUse> {
        let config = subject.model.config();
        let cost = config.cost_of(Counted::Images, config.image.resolution)?;
        let all = parameters(subject.model);
        let mut active = cost.params_total as f64;
        let mut experts = 0.0;
        for layer in self.of_images() {
            let own = format!("blocks.{}.feed_forward.experts.", layer.block);
            let (mut each, mut stored) = (0, 0);
            for parameter in all.iter().filter(|parameter| parameter.name.starts_with(&own)) {
                stored = parameter.shape.first().copied().unwrap_or(1).max(1);
                each += parameter.shape.iter().product::<usize>() / stored;
            }
            let used = layer.experts_per_image();
            experts += used;
            active -= each as f64 * (stored as f64 - used).max(0.0);
        }
        let layers = subject.layers();
        let of_images = layers.iter().filter(|(block, _)| *block < subject.depth());
        let shared_experts = of_images.filter(|(_, layer)| layer.shared.is_some()).count();
        let parameters = cost.params_total;
        Ok(ImageUse { experts, shared_experts, active_parameters: active, parameters })
    }
}

impl LayerTally {
    fn experts_per_image(&self) -> f64 {
        self.distinct as f64 / self.images.max(1) as f64
    }

    /// Experts that one choice of a modality's token is among.
    fn experts_of(&self, modality: usize) -> usize {
        let gates = self.router.pool.gates(self.router.experts).unwrap_or_default();
        let calls = |gate: &&omma_routing::Gate| match gate.callers {
            omma_routing::Callers::Modality(own) => own == modality,
            _ => true,
        };
        let alive = self.alive();
        let among = |gate: &omma_routing::Gate| {
            gate.experts.iter().filter(|expert| alive[**expert]).count()
        };
        gates.iter().find(calls).map_or(self.router.experts, among)
    }

    /// `[E]`: whether each expert can be chosen.
    fn alive(&self) -> Vec<bool> {
        let experts = self.router.experts;
        self.router.pruning.alive(experts).unwrap_or_else(|_| vec![true; experts])
    }

    fn record(
        &self,
        grid: (usize, usize),
        pieces: Option<&Pieces>,
        options: &RecordOptions,
    ) -> BlockRoutes {
        let experts = self.router.experts;
        let alive = self.alive();
        let available = alive.iter().filter(|alive| **alive).count();
        let sum = |expert: usize| self.modalities.iter().map(|own| own.load[expert]).sum::<f64>();
        let load: Vec<f64> = (0..experts).map(sum).collect();
        let total: f64 = load.iter().sum();
        let shares: Vec<f64> =
            load.iter().map(|load| load / total.max(f64::MIN_POSITIVE)).collect();
        let whole_images = self.router.scope != omma_routing::Scope::Token;
        let choice = self.router.token_choice();
        let capacity = choice.and_then(|choice| choice.capacity);
        let came = self.modalities.iter().enumerate().filter(|(_, tally)| !tally.is_empty());
        let has_texts = !self.modalities[omma_model::TEXTS].is_empty();
        let mean = |(count, sum): &(u64, f64)| if *count > 0 { sum / *count as f64 } else { 0.0 };
        BlockRoutes {
            block: self.block,
            experts,
            available,
            soft: self.soft,
            whole_images,
            peak_load: shares.iter().copied().fold(0.0, f64::max) * available as f64,
            effective_experts: entropy(&load).exp(),
            idle: (0..experts).filter(|expert| alive[*expert] && load[*expert] <= 0.0).collect(),
            load: shares,
            experts_per_image: self.experts_per_image(),
            capacity_factor: capacity.map(|capacity| capacity.factor),
            modalities: came.map(|(own, tally)| tally.record(own, capacity.is_some())).collect(),
            classes: self.class_routes(options),
            gates_by_place: self.places.iter().map(mean).collect(),
            experts_by_place: match self.by_place.len() <= MOST_PLACES && !whole_images {
                true => self
                    .by_place
                    .chunks_exact(self.places.len().max(1))
                    .map(<[f64]>::to_vec)
                    .collect(),
                false => Vec::new(),
            },
            grid,
            words: match pieces.filter(|_| has_texts) {
                Some(pieces) => self.words.record(pieces),
                None => Vec::new(),
            },
        }
    }

    fn class_routes(&self, options: &RecordOptions) -> Vec<ClassRoutes> {
        let width = self.parts.width();
        let classes = self.by_class.len().checked_div(width).unwrap_or(0);
        if classes < 2 || self.by_class.iter().all(|count| *count <= 0.0) {
            return Vec::new();
        }
        let seed = options.seed.named("permutations").numbered(self.block as u64);
        let one = |(number, (part, range)): (usize, (&crate::routing::Group, Range<usize>))| {
            let cut = |table: &[f64]| -> Vec<Vec<f64>> {
                table.chunks_exact(width).map(|row| row[range.clone()].to_vec()).collect()
            };
            let tokens = cut(&self.by_class);
            let columns = range.len();
            let by_image = self.by_image.iter().any(|count| *count > 0.0);
            let images = by_image.then(|| cut(&self.by_image));
            let test = self.samples.get(number).and_then(|sample| {
                let seed = seed.numbered(number as u64);
                sample.test(columns, classes, options.permutations, seed)
            });
            ClassRoutes {
                part: part.title.clone(),
                experts: part.experts.clone(),
                order: reading_order(&tokens),
                information: Information::of(&tokens.concat(), columns),
                image_information: images
                    .as_ref()
                    .map(|images| Information::of(&images.concat(), columns)),
                dispatched: self.soft.then(|| cut(&self.dispatched)),
                tokens,
                images,
                test,
            }
        };
        self.parts.ranges().enumerate().map(one).collect()
    }
}

/// Classes by the expert that has most of them, then by its share, the largest first; classes that nobody saw come
/// last.
fn reading_order(table: &[Vec<f64>]) -> Vec<usize> {
    let key = |class: &usize| {
        let row = &table[*class];
        let total: f64 = row.iter().sum();
        let most = row.iter().copied().fold(0.0, f64::max);
        match row.iter().position(|count| *count == most).filter(|_| total > 0.0) {
            Some(expert) => (expert, -most / total),
            None => (usize::MAX, 0.0),
        }
    };
    let mut order: Vec<usize> = (0..table.len()).collect();
    order.sort_by(|a, b| {
        let ((a, share), (b, other)) = (key(a), key(b));
        a.cmp(&b).then(share.total_cmp(&other))
    });
    order
}

impl BlockRoutes {
    /// Its images, if any came.
    pub fn of_images(&self) -> Option<&ModalityRoutes> {
        self.modalities.iter().find(|own| own.is_of_images())
    }

    /// The test of the part whose experts know most of classes beyond chance.
    pub fn strongest_test(&self) -> Option<&PermutationTest> {
        let tests = self.classes.iter().filter_map(|own| own.test.as_ref());
        tests.max_by(|a, b| a.effect.total_cmp(&b.effect))
    }

    /// Experts that must be kept so that this share of a modality's tokens has its best expert.
    pub fn experts_for(&self, modality: &ModalityRoutes, coverage: f64) -> usize {
        needed(&modality.coverage, coverage).min(self.available)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_expert_by_expert() {
        let table =
            vec![vec![1.0, 3.0], vec![5.0, 1.0], vec![0.0, 0.0], vec![0.0, 9.0], vec![9.0, 1.0]];
        assert_eq!(reading_order(&table), [4, 1, 3, 0, 2]);
    }
}
