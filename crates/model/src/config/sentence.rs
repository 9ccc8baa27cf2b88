//! What a model is, in one sentence.

use omma_routing::{Affinity, Allocation, Pool, Scope};

use super::{EncoderConfig, ModelConfig, MoeConfig, Placement, TextConfig, presets::SIZES};

impl ModelConfig {
    /// What the model is, in words: the papers' name of the system, its members and experts and where
    /// they are, the backbone, its images and classes. `an E³ of two members with 8 experts each, K = 1, in
    /// the 10th and 12th block of a ViT-S/14 at 224 px, 10 classes`.
    pub fn in_words(&self) -> String {
        let EncoderConfig { depth, mc_samples, .. } = self.encoder;
        let place = |placement: &Placement| {
            placement.blocks(depth).map_or_else(|_| placement.to_string(), |at| blocks(&at, depth))
        };
        let mut systems = Vec::new();
        if let Some(moe) = self.moe() {
            let experts = match self.text {
                Some(TextConfig { tower: None, .. }) => {
                    experts(moe).replacen("a V-MoE", "a LIMoE", 1)
                }
                _ => experts(moe),
            };
            if self.encoder.is_single_layer() {
                return format!("{experts}, alone on {}{}", self.patches(), self.told_apart());
            }
            systems.push(format!("{experts}, in {}", place(&moe.placement)));
        }
        if let Some(ensemble) = &self.encoder.batch_ensemble {
            let members = count(ensemble.members);
            systems.push(format!(
                "a BatchEnsemble of {members} members in {}",
                place(&ensemble.placement)
            ));
        }
        let mut sentence = match systems.is_empty() {
            true => self.backbone(),
            false => format!("{} of {}", systems.join(" and "), self.backbone()),
        };
        if let Some(mimo) = &self.mimo {
            sentence = format!("a MIMO of {} members: {sentence}", count(mimo.members));
        }
        if mc_samples > 1 {
            sentence += &format!(", {} MC Dropout samples", count(mc_samples));
        }
        if let Some(text) = &self.text {
            let tower = match &text.tower {
                Some(tower) => {
                    format!("a tower of {} blocks of width {}", tower.depth, tower.width)
                }
                None => "the same tower".to_owned(),
            };
            sentence += &format!(", and texts of {} tokens through {tower}", text.length);
        }
        sentence + &self.told_apart()
    }

    fn told_apart(&self) -> String {
        match self.classes() {
            0 if self.text.is_some() => String::new(),
            0 => ", no classifier".to_owned(),
            1 => ", 1 class".to_owned(),
            classes => format!(", {classes} classes"),
        }
    }

    /// `patches of 14 at 28 px`.
    fn patches(&self) -> String {
        format!("patches of {} at {}", self.image.patch, self.pixels())
    }

    /// `28 px`; sides that differ both.
    fn pixels(&self) -> String {
        match self.image.resolution {
            sides if sides.height == sides.width => format!("{} px", sides.height),
            sides => format!("{sides} px"),
        }
    }

    /// `a ViT-S/14 at 224 px`; one of no known size with its blocks.
    fn backbone(&self) -> String {
        let EncoderConfig { width, mlp, depth, heads, .. } = self.encoder;
        let patch = self.image.patch;
        // Paper 002 prints another hidden size of H than paper 000 (Table 4).
        let hidden = if (width, mlp) == (1280, 5120) { 5144 } else { mlp };
        let known = SIZES.iter().find(|(_, size)| *size == (width, hidden, depth, heads));
        let name = match known.map(|(letter, _)| *letter) {
            Some("ti") => format!("ViT-Ti/{patch}"),
            Some("dinos") => format!("ViT-S/{patch}"),
            Some(letter) => format!("ViT-{}/{patch}", letter.to_uppercase()),
            None => format!("ViT of {depth} blocks of width {width} with patches of {patch}"),
        };
        format!("a {name} at {}", self.pixels())
    }
}

/// The system that experts make, without where they are.
fn experts(moe: &MoeConfig) -> String {
    let router = &moe.router;
    let all = router.experts;
    let mut text = match (&router.allocation, &router.pool) {
        (Allocation::Soft(soft), _) => {
            let slots = several(soft.slots, "slot");
            let some = match soft.subset {
                Some(subset) if subset < all => format!(", {subset} of which serve a prediction"),
                _ => String::new(),
            };
            format!("a Soft MoE of {all} experts with {slots} each{some}")
        }
        (Allocation::ExpertChoice(_), _) => {
            format!("a mixture of {all} experts that choose their tokens")
        }
        (_, Pool::Members { members, overlap }) => {
            let own = moe.experts_per_gate();
            let shared = match overlap {
                0 => String::new(),
                overlap => format!(" ({overlap} of them shared by all)"),
            };
            format!("an E³ of {} members with {own} experts each{shared}", count(*members))
        }
        (_, Pool::Partition { subsets }) => {
            format!("a V-MoE of {all} experts in {} subsets", count(*subsets))
        }
        (_, Pool::GatePerModality { .. }) => {
            format!("a mixture of {all} experts with a gate per modality")
        }
        (_, Pool::ExpertsPerModality { .. }) => {
            format!("a mixture of {all} experts, shared out between modalities")
        }
        (_, Pool::All) if moe.shared_expert && router.scope != Scope::Token => {
            format!("a ViMoE of {all} experts")
        }
        (_, Pool::All) => format!("a V-MoE of {all} experts"),
    };
    if moe.shared_expert {
        text += " and a shared one";
    }
    if let Some(k) = moe.k() {
        text += &format!(", K = {k}");
    }
    if router.scope != Scope::Token {
        text += " per image";
    }
    text += match router.affinity {
        Affinity::Softmax => "",
        Affinity::Sinkhorn(_) => ", routed by Sinkhorn's transport",
        Affinity::SparseTransport(_) => ", routed by sparse transport",
    };
    if moe.tiling > 1 {
        text += &format!(", tiled for {} members that share them", count(moe.tiling));
    }
    if moe.multi_pred {
        text += ", every choice a prediction";
    }
    if !moe.residual {
        text += ", without a skip connection";
    }
    let mut lost: Vec<usize> = moe.pruned.iter().map(|block| block.experts.len()).collect();
    lost.dedup();
    let lost: Vec<String> = lost.iter().map(usize::to_string).collect();
    if !lost.is_empty() {
        text += &format!(", {} of {all} gone", lost.join(" and "));
    }
    match router.pruning.experts.len() {
        0 => text,
        pruned => text + &format!(", {pruned} of {all} pruned"),
    }
}

/// `the 10th and 12th block`, `the 7th to 12th block`, `all blocks`; counted from 1.
fn blocks(places: &[usize], depth: usize) -> String {
    if places.len() == depth && depth > 1 {
        return "all blocks".to_owned();
    }
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for place in places {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *place => *last = *place,
            _ => runs.push((*place, *place)),
        }
    }
    let words: Vec<String> = runs
        .into_iter()
        .flat_map(|(first, last)| match last - first {
            0 => vec![ordinal(first + 1)],
            1 => vec![ordinal(first + 1), ordinal(last + 1)],
            _ => vec![format!("{} to {}", ordinal(first + 1), ordinal(last + 1))],
        })
        .collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => {
            format!("the {} and {last} block", rest.join(", "))
        }
        _ => format!("the {} block", words.concat()),
    }
}

fn ordinal(number: usize) -> String {
    let end = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{end}")
}

fn several(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

/// Small numbers as words.
fn count(number: usize) -> String {
    const WORDS: [&str; 11] =
        ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    WORDS.get(number).map_or_else(|| number.to_string(), |word| (*word).to_owned())
}

#[cfg(test)]
mod tests {

    use crate::config::{apply_settings, preset, presets};

    fn said(name: &str, settings: &[&str]) -> String {
        apply_settings(&preset(name).unwrap(), settings).unwrap().in_words()
    }

    #[test]
    fn the_papers_systems_have_their_names() {
        assert_eq!(said("vit-b16", &[]), "a ViT-B/16 at 384 px, 1000 classes");
        assert_eq!(
            said("vmoe-l16", &["resolution=[224, 320]"]),
            "a V-MoE of 32 experts, K = 2, in the 22nd and 24th block of a ViT-L/16 at 224 × 320 px, 1000 \
             classes"
        );
        assert_eq!(
            said("e3-dinos14", &["moe.experts=16", "classes=10"]),
            "an E³ of two members with 8 experts each, K = 1, in the 10th and 12th block of a ViT-S/14 at \
             224 px, 10 classes"
        );
        assert_eq!(
            said("softmoe-b16", &[]),
            "a Soft MoE of 128 experts with 2 slots each, in the 7th to 12th block of a ViT-B/16 at 224 px, \
             1000 classes"
        );
        assert_eq!(
            said("vimoe-s14", &[]),
            "a ViMoE of 8 experts and a shared one, K = 1 per image, in the 11th and 12th block of a \
             ViT-S/14 at 224 px, no classifier"
        );
        assert_eq!(
            said("vit-s32", &["batch_ensemble.members=3", "classes=1"]),
            "a BatchEnsemble of three members in the 6th and 8th block of a ViT-S/32 at 384 px, 1 class"
        );
        assert_eq!(
            said("vmoe-tiny", &["mimo.members=2"]),
            "a MIMO of two members: a V-MoE of 8 experts, K = 2, in the 4th and 6th block of a ViT of 6 \
             blocks of width 128 with patches of 4 at 32 px, 10 classes"
        );
        assert_eq!(
            said("vit-b16", &["mc_samples=5", "dropout=0.1"]),
            "a ViT-B/16 at 384 px, five MC Dropout samples, 1000 classes"
        );
    }

    #[test]
    fn what_is_unlike_the_papers_is_said_too() {
        let tiny = |settings: &[&str]| {
            let sentence = said("vmoe-tiny", settings);
            sentence.split(" of a ViT").next().unwrap().to_owned()
        };
        let last = ", in the 4th and 6th block";
        for (settings, expected) in [
            (
                &["moe.router.pruning.experts=[0, 3]"][..],
                "a V-MoE of 8 experts, K = 2, 2 of 8 pruned",
            ),
            (
                &[r#"moe.pruned=[{"block": 3, "experts": [1]}, {"block": 5, "experts": [0, 7]}]"#],
                "a V-MoE of 8 experts, K = 2, 1 and 2 of 8 gone",
            ),
            (
                &["moe.members=2", "moe.overlap=2"],
                "an E³ of two members with 5 experts each (2 of them shared by all), K = 2",
            ),
            (
                &["moe.members=2", "moe.own_experts=false"],
                "a V-MoE of 8 experts, K = 2, tiled for two members that share them",
            ),
            (&["moe.partition=2", "moe.k=1"], "a V-MoE of 8 experts in two subsets, K = 1"),
            (&["moe.multi_pred=true"], "a V-MoE of 8 experts, K = 2, every choice a prediction"),
            (&["moe.shared_expert=true"], "a V-MoE of 8 experts and a shared one, K = 2"),
            (
                &["moe.router=softmax-expert-choice"],
                "a mixture of 8 experts that choose their tokens",
            ),
            (
                &["moe.router=sinkhorn-token-choice"],
                "a V-MoE of 8 experts, K = 2, routed by Sinkhorn's transport",
            ),
            (&["moe.router=soft"], "a Soft MoE of 8 experts with 1 slot each"),
            (
                &["moe.router=soft", "moe.residual=false"],
                "a Soft MoE of 8 experts with 1 slot each, without a skip connection",
            ),
            (
                &["moe.router=soft", "moe.subset=2"],
                "a Soft MoE of 8 experts with 1 slot each, 2 of which serve a prediction",
            ),
        ] {
            assert_eq!(tiny(settings), format!("{expected}{last}"));
        }
        assert!(tiny(&["moe.placement=every-1"]).ends_with(", in all blocks"));
        assert!(tiny(&["moe.placement=0,1,2,5"]).ends_with(", in the 1st to 3rd and 6th block"));
        assert!(tiny(&["moe.placement=0,2,3"]).ends_with(", in the 1st, 3rd and 4th block"));
    }

    #[test]
    fn every_preset_says_its_system_its_experts_and_its_images() {
        let kinds = [
            ("vit-", "a ViT"),
            ("vmoe-", "a V-MoE of"),
            ("e3-", "an E³ of two members with"),
            ("softmoe-", "a Soft MoE of"),
            ("softlayer-", "a Soft MoE of"),
            ("vimoe-", "a ViMoE of"),
            ("limoe-", "a LIMoE of"),
        ];
        for name in presets::names() {
            let config = preset(&name).unwrap();
            let sentence = config.in_words();
            let (_, begin) = kinds.iter().find(|(kind, _)| name.starts_with(kind)).unwrap();
            assert!(sentence.starts_with(begin), "{name}: {sentence}");
            let side = config.image.resolution.height;
            assert!(sentence.contains(&format!(" at {side} px, ")), "{name}: {sentence}");
            if let Some(moe) = config.moe() {
                let experts = format!(" {} experts", moe.experts_per_gate());
                assert!(sentence.contains(&experts), "{name}: {sentence}");
            }
            if let Some((letter, patch)) = name.rsplit('-').next().unwrap().split_at_checked(1)
                && letter.chars().all(char::is_alphabetic)
                && let Ok(patch) = patch.parse::<usize>()
            {
                let size = format!("a ViT-{}/{patch} at", letter.to_uppercase());
                assert!(sentence.contains(&size), "{name}: {sentence}");
            }
        }
    }
}
