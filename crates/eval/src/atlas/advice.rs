//! What follows from an atlas: which layers do something that one network would not, which experts could go, and the
//! command that does it (paper 003 §4.2, "Efficient ViMoE"; paper 002 App. E.4).

use serde::{Deserialize, Serialize};

use super::record::{BlockRoutes, ModelRoutes};

/// A layer is said to specialise if the class settles at least so much of the choice of expert beyond chance.
pub const LEAST_EFFECT: f64 = 0.05;
/// And if permuted labels reach as much in no more than this share of the permutations.
pub const LEVEL: f64 = 0.01;
/// The coverage that experts are counted for.
pub const COVERAGE: f64 = 0.99;
/// The busiest expert of a layer in balance has no more than this, relative to a balanced load.
const BALANCED: f64 = 2.0;
/// A collapsed layer has one expert with this share of the tokens.
const COLLAPSED: f64 = 0.8;

/// What a layer's experts know of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// More than chance, and enough of it.
    Specialised,
    /// More than chance, but little.
    Weak,
    /// Not more than chance.
    Chance,
    /// There is nothing to tell by: no classes, too few images, or soft routing.
    Unknown,
}

impl Verdict {
    /// As a table says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Specialised => "specialised",
            Self::Weak => "weak",
            Self::Chance => "no more than chance",
            Self::Unknown => "cannot be said",
        }
    }
}

/// What is said of a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockAdvice {
    /// Which block.
    pub block: usize,
    /// In a word.
    pub verdict: Verdict,
    /// In a sentence, with its numbers.
    pub words: String,
}

/// A command that acts on what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvisedCommand {
    /// Why one would.
    pub why: String,
    /// What to type.
    pub command: String,
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Advice {
    /// Layer by layer.
    pub blocks: Vec<BlockAdvice>,
    /// Blocks whose experts are worth keeping.
    pub keep: Vec<usize>,
    /// What it comes to, in sentences.
    pub summary: Vec<String>,
    /// What could be done.
    pub commands: Vec<AdvisedCommand>,
}

impl Advice {
    /// - `data`: how a command names what was looked at
    pub fn of(routes: &ModelRoutes, data: &str) -> Self {
        let blocks: Vec<BlockAdvice> = routes.blocks.iter().map(of_block).collect();
        let of = |verdict: Verdict| -> Vec<usize> {
            let alike = blocks.iter().filter(|block| block.verdict == verdict);
            alike.map(|block| block.block).collect()
        };
        let keep = of(Verdict::Specialised);
        let mut advice = Self { keep, blocks: blocks.clone(), ..Self::default() };
        let unknown = of(Verdict::Unknown);
        if unknown.len() == blocks.len() {
            let why = match routes.blocks.iter().all(|block| block.soft) {
                true => {
                    "Soft routing gives every expert its slots of every image, so that who gets how much says nothing on \
                     which layers need experts; the patches that weigh most for each expert may."
                }
                false => {
                    "Whether experts specialise cannot be said without classes of images; load and coverage can."
                }
            };
            advice.summary.push(why.to_owned());
        } else {
            advice.on_layers(routes, &unknown);
        }
        advice.on_experts(routes, data);
        advice
    }

    fn on_layers(&mut self, routes: &ModelRoutes, unknown: &[usize]) {
        let all = routes.blocks.len() - unknown.len();
        let kept = list(&self.keep);
        let criterion = format!(
            "the class settles at least {:.0} % of the choice of expert beyond chance, with p ≤ {LEVEL}",
            100.0 * LEAST_EFFECT
        );
        match self.keep.len() {
            count if count == all => self.summary.push(format!(
                "All layers with experts ({all}) specialise ({criterion}): none of them is to be thinned."
            )),
            0 => {
                self.summary.push(format!(
                    "None of the {all} layers with experts specialises by class on these data ({criterion}): one \
                     network in place of the experts may do as well."
                ));
                self.commands.push(AdvisedCommand {
                    why: "all of these layers back to dense ones, to be fine-tuned and compared".to_owned(),
                    command: format!("omma thin {} OUT --keep none", quoted(&routes.path)),
                });
            }
            count => {
                self.summary.push(format!(
                    "{count} of {all} layers with experts specialise: {kept} ({criterion}). The others may do as \
                     well with one network each."
                ));
                let blocks: Vec<String> = self
                    .keep
                    .iter()
                    .chain(unknown)
                    .map(usize::to_string)
                    .collect();
                self.commands.push(AdvisedCommand {
                    why: format!("experts in {kept} only, the other layers dense, to be fine-tuned"),
                    command: format!(
                        "omma thin {} OUT --keep {}",
                        quoted(&routes.path),
                        blocks.join(",")
                    ),
                });
            }
        }
    }

    /// Experts that could go.
    fn on_experts(&mut self, routes: &ModelRoutes, data: &str) {
        // Of soft routing every expert takes something of every token: nothing is covered by fewer.
        let sparse = || routes.blocks.iter().filter(|block| !block.soft);
        let all: usize = sparse().map(|block| block.available).sum();
        let mut names: Vec<&str> = Vec::new();
        for modality in sparse().flat_map(|block| &block.modalities) {
            if !names.contains(&modality.modality.as_str()) {
                names.push(&modality.modality);
            }
        }
        for name in &names {
            let needed = |block: &BlockRoutes| {
                let own = block.modalities.iter().find(|own| own.modality == **name);
                own.map(|own| (block.experts_for(own, COVERAGE), block.available))
            };
            let counts: Vec<(usize, usize)> = sparse().filter_map(needed).collect();
            let (kept, of): (usize, usize) =
                counts.iter().fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
            if kept == of {
                continue;
            }
            let several = names.len() > 1;
            let modality = match several {
                true => format!(" --modality {}", name.trim_end_matches('s')),
                false => String::new(),
            };
            let whose = if several { format!("the {name}'") } else { "all".to_owned() };
            self.commands.push(AdvisedCommand {
                why: format!(
                    "{kept} of {of} experts cover {:.0} % of {whose} tokens; this removes the others",
                    100.0 * COVERAGE
                ),
                command: format!(
                    "omma prune {} OUT --data {}{modality} --coverage {COVERAGE}",
                    quoted(&routes.path),
                    quoted(data)
                ),
            });
        }
        let idle: usize = sparse().map(|block| block.idle.len()).sum();
        if idle > 0 {
            self.summary.push(format!("{idle} of {all} experts got no token at all."));
        }
        let collapsed = routes.blocks.iter().filter(|block| is_collapsed(block));
        let collapsed: Vec<usize> = collapsed.map(|block| block.block).collect();
        if !collapsed.is_empty() {
            self.summary.push(format!(
                "In {} one expert has more than {:.0} % of all tokens: the layer has collapsed; train with a higher \
                 moe.importance_loss or moe.balance_loss.",
                list(&collapsed),
                100.0 * COLLAPSED
            ));
        }
    }
}

fn is_collapsed(block: &BlockRoutes) -> bool {
    block.available > 2 && block.peak_load > COLLAPSED * block.available as f64
}

fn of_block(block: &BlockRoutes) -> BlockAdvice {
    let (verdict, mut words) = match block.strongest_test() {
        Some(test) if block.soft => {
            let words = format!(
                "every expert gets its slots of every image; the class settles {:.1} % of whose outputs tokens are made \
                 of (p = {:.3})",
                100.0 * test.effect.max(0.0),
                test.p_value
            );
            (Verdict::Unknown, words)
        }
        None => (Verdict::Unknown, "no classes to tell by".to_owned()),
        Some(test) => {
            let verdict = match (test.p_value <= LEVEL, test.effect >= LEAST_EFFECT) {
                (true, true) => Verdict::Specialised,
                (true, false) => Verdict::Weak,
                (false, _) => Verdict::Chance,
            };
            let parts = match block.classes.len() {
                1 => "",
                _ => " in the part where it settles most",
            };
            let words = format!(
                "the class settles {:.1} % of the choice of expert beyond chance{parts} (mutual information {:.3} nats, \
                 {:.3} by chance, p = {:.3})",
                100.0 * test.effect.max(0.0),
                test.nats,
                test.chance,
                test.p_value
            );
            (verdict, words)
        }
    };
    let balance = match block.peak_load {
        peak if peak <= BALANCED => "in balance",
        _ if is_collapsed(block) => "collapsed",
        _ => "out of balance",
    };
    words +=
        &format!("; load {balance}, the busiest expert has {:.1} times its share", block.peak_load);
    match block.idle.len() {
        0 => {}
        1 => words += &format!("; expert {} is idle", block.idle[0]),
        idle => words += &format!("; {idle} of {} experts are idle", block.available),
    }
    if !block.soft {
        for own in &block.modalities {
            let whose = match block.modalities.len() {
                1 => String::new(),
                _ => format!(" the {}'", own.modality),
            };
            words += &format!(
                "; {} of {} experts cover {:.0} % of{whose} tokens",
                block.experts_for(own, COVERAGE),
                block.available,
                100.0 * COVERAGE
            );
        }
    }
    BlockAdvice { block: block.block, verdict, words }
}

/// `block 3`, `blocks 3 and 5`.
fn list(blocks: &[usize]) -> String {
    match blocks {
        [] => "no block".to_owned(),
        [one] => format!("block {one}"),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(usize::to_string).collect();
            format!("blocks {} and {last}", most.join(", "))
        }
    }
}

/// A word of a shell's command.
fn quoted(text: &str) -> String {
    let plain = |symbol: char| symbol.is_alphanumeric() || "/._-+=:,@%".contains(symbol);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atlas::{
        coverage::coverage,
        gates::ModalityRoutes,
        information::Information,
        permutation::PermutationTest,
        record::{ClassRoutes, ImageUse},
    };

    fn modality(load: [f64; 4]) -> ModalityRoutes {
        ModalityRoutes {
            modality: "images".to_owned(),
            tokens: 100,
            unserved: 0,
            load: load.to_vec(),
            dropped_in_training: None,
            largest_gate: 0.5,
            largest_gate_deviation: 0.1,
            local_entropy: 1.0,
            global_entropy: 1.0,
            experts: 2.7,
            coverage: coverage(&load, &load),
            queue: Vec::new(),
        }
    }

    fn block(block: usize, test: Option<(f64, f64)>, load: [f64; 4]) -> BlockRoutes {
        let total: f64 = load.iter().sum();
        let classes = test.map(|(effect, p_value)| ClassRoutes {
            part: String::new(),
            experts: vec![0, 1, 2, 3],
            order: vec![0, 1],
            tokens: vec![vec![1.0; 4]; 2],
            dispatched: None,
            images: None,
            information: Information::default(),
            image_information: None,
            test: Some(PermutationTest {
                permutations: 199,
                images: 50,
                nats: 0.4,
                chance: 0.01,
                p_value,
                effect,
            }),
        });
        BlockRoutes {
            block,
            experts: 4,
            available: 4,
            soft: false,
            whole_images: false,
            load: load.iter().map(|load| load / total).collect(),
            peak_load: 4.0 * load.iter().copied().fold(0.0, f64::max) / total,
            effective_experts: 3.0,
            idle: (0..4).filter(|expert| load[*expert] == 0.0).collect(),
            experts_per_image: 2.0,
            capacity_factor: None,
            modalities: vec![modality(load)],
            classes: classes.into_iter().collect(),
            gates_by_place: Vec::new(),
            experts_by_place: Vec::new(),
            grid: (0, 0),
            words: Vec::new(),
        }
    }

    fn advised(blocks: Vec<BlockRoutes>) -> Advice {
        let routes = ModelRoutes {
            name: "m".to_owned(),
            path: "runs/my run".to_owned(),
            model: String::new(),
            images: 50,
            texts: 0,
            notes: Vec::new(),
            blocks,
            degrees: Vec::new(),
            image_use: ImageUse {
                experts: 1.0,
                shared_experts: 0,
                active_parameters: 1.0,
                parameters: 1,
            },
            flows: Vec::new(),
            advice: Advice::default(),
        };
        Advice::of(&routes, "photos")
    }

    const EVEN: [f64; 4] = [25.0; 4];

    #[test]
    fn layers_that_specialise_are_kept_and_the_others_thinned() {
        let advice = advised(vec![
            block(1, Some((0.02, 0.005)), EVEN),
            block(3, Some((0.2, 0.3)), EVEN),
            block(5, Some((0.31, 0.005)), EVEN),
        ]);
        let verdicts: Vec<Verdict> = advice.blocks.iter().map(|block| block.verdict).collect();
        assert_eq!(verdicts, [Verdict::Weak, Verdict::Chance, Verdict::Specialised]);
        assert_eq!(advice.keep, [5]);
        assert_eq!(advice.commands[0].command, "omma thin 'runs/my run' OUT --keep 5");
        assert!(advice.blocks[2].words.contains("31.0 %"), "{:?}", advice.blocks[2]);
        assert_eq!(advice.commands.len(), 1, "experts in balance are all needed");
    }

    #[test]
    fn where_all_specialise_nothing_is_thinned_and_where_none_does_all_may_be() {
        let all = advised(vec![block(1, Some((0.4, 0.005)), EVEN)]);
        assert!(
            all.commands.is_empty() && all.summary[0].starts_with("All layers with experts (1)")
        );
        let none = advised(vec![block(1, Some((0.0, 0.5)), EVEN)]);
        assert!(none.commands[0].command.ends_with("--keep none"), "{none:?}");
    }

    #[test]
    fn experts_that_are_not_needed_are_named_with_the_command_that_removes_them() {
        let advice = advised(vec![
            block(1, Some((0.4, 0.005)), [50.0, 49.5, 0.5, 0.0]),
            block(3, Some((0.4, 0.005)), [97.0, 1.0, 1.0, 1.0]),
        ]);
        assert_eq!(
            advice.commands[0].command,
            "omma prune 'runs/my run' OUT --data photos --coverage 0.99"
        );
        assert!(advice.commands[0].why.starts_with("5 of 8 experts"), "{advice:?}");
        assert!(advice.blocks[0].words.contains("expert 3 is idle"));
        assert!(advice.summary.iter().any(|line| line.starts_with("1 of 8 experts got no token")));
        assert!(advice.summary.iter().any(|line| line.starts_with("In block 3 one expert")));
    }

    #[test]
    fn without_classes_only_load_is_judged() {
        let advice = advised(vec![block(1, None, EVEN)]);
        assert_eq!(advice.blocks[0].verdict, Verdict::Unknown);
        assert!(advice.summary[0].contains("cannot be said without classes"), "{advice:?}");
        assert!(advice.keep.is_empty() && advice.commands.is_empty());
    }
}
