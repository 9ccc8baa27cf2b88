//! Which parameters do not learn, and how much of the model that leaves without gradients.

use std::{collections::BTreeSet, fmt, ops::RangeInclusive};

use omma_model::{ModelConfig, Parameter, VisionTransformer, frozen, parameters};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::error::{Result, TrainError};

/// What a recipe freezes: `["embed", "0-9", "blocks.10.attention"]`, `"embed,0-9"`, `"all-but-2"`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Freeze(Vec<Item>);

/// One item of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// All but the linear classifier.
    Backbone,
    /// The embedding and all blocks but the last so many.
    AllBut(usize),
    /// Blocks by their numbers, from 0.
    Blocks(RangeInclusive<usize>),
    /// The beginning of parameters' names.
    Named(String),
}

const BACKBONE: &str = "backbone";
const ALL_BUT: &str = "all-but-";

impl Item {
    fn parse(text: &str) -> Self {
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let range = match text.split_once('-') {
            Some((first, last)) => number(first).zip(number(last)),
            None => number(text).map(|block| (block, block)),
        };
        let all_but = text.strip_prefix(ALL_BUT).and_then(number);
        match (all_but, range) {
            _ if text == BACKBONE => Self::Backbone,
            (Some(last), _) => Self::AllBut(last),
            (_, Some((first, last))) => Self::Blocks(first..=last),
            _ => Self::Named(text.to_owned()),
        }
    }

    /// Whether a parameter of a model of `depth` blocks is meant.
    fn covers(&self, parameter: &str, depth: usize) -> bool {
        match self {
            Self::Backbone => !parameter.starts_with("head."),
            Self::AllBut(last) => match block_of(parameter) {
                Some(block) => block + last < depth,
                None => parameter.starts_with("embed."),
            },
            Self::Blocks(blocks) => {
                block_of(parameter).is_some_and(|block| blocks.contains(&block))
            }
            Self::Named(name) => parameter
                .strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backbone => f.write_str(BACKBONE),
            Self::AllBut(last) => write!(f, "{ALL_BUT}{last}"),
            Self::Blocks(blocks) if blocks.start() == blocks.end() => {
                write!(f, "{}", blocks.start())
            }
            Self::Blocks(blocks) => write!(f, "{}-{}", blocks.start(), blocks.end()),
            Self::Named(name) => f.write_str(name),
        }
    }
}

impl Freeze {
    fn parse<'a>(items: impl IntoIterator<Item = &'a str>) -> Self {
        let items = items.into_iter().flat_map(|item| item.split(','));
        Self(items.map(str::trim).filter(|item| !item.is_empty()).map(Item::parse).collect())
    }

    /// Whether nothing is frozen.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn covers(&self, parameter: &str, depth: usize) -> bool {
        self.0.iter().any(|item| item.covers(parameter, depth))
    }

    /// What that means for a model. Fails where an item is none of its parts, or nothing is left to learn.
    pub(crate) fn of(&self, model: &VisionTransformer) -> Result<Freezing> {
        let (parameters, depth) = (parameters(model), model.config().encoder.depth);
        let fault = |value: String, why: String| TrainError::BadSetting {
            key: "train.freeze".to_owned(),
            value,
            why,
        };
        for item in &self.0 {
            if !parameters.iter().any(|parameter| item.covers(&parameter.name, depth)) {
                let why = format!("the model has no such part; {}", parts(&parameters));
                return Err(fault(item.to_string(), why));
            }
        }
        let learns = |parameter: &&Parameter| !self.covers(&parameter.name, depth);
        if !parameters.iter().any(|parameter| learns(&parameter)) {
            let items: Vec<String> = self.0.iter().map(Item::to_string).collect();
            return Err(fault(items.join(","), "nothing would be left to learn".to_owned()));
        }
        let trunk = trunk(parameters.iter().filter(learns), model.config())?;
        Ok(Freezing { freeze: self.clone(), depth, trunk })
    }
}

/// Blocks from the first on that nothing learns in or below, as far as members of an ensemble share them;
/// nothing where the embedding learns, and in a model that reads.
fn trunk<'a>(
    learning: impl Iterator<Item = &'a Parameter>,
    model: &ModelConfig,
) -> Result<Option<usize>> {
    // Texts would have to be kept as well.
    if model.text.is_some() {
        return Ok(None);
    }
    let mut first = model.encoder.shared_blocks()?;
    for parameter in learning {
        if parameter.name.starts_with("embed.") {
            return Ok(None);
        }
        first = first.min(block_of(&parameter.name).unwrap_or(first));
    }
    Ok(Some(first))
}

/// `3` of `blocks.3.attention.qkv`.
fn block_of(parameter: &str) -> Option<usize> {
    parameter.strip_prefix("blocks.")?.split('.').next()?.parse().ok()
}

/// What a model has, for a message.
fn parts(parameters: &[Parameter]) -> String {
    let last = parameters.iter().filter_map(|parameter| block_of(&parameter.name)).max();
    let named = parameters.iter().filter(|parameter| block_of(&parameter.name).is_none());
    let named: BTreeSet<&str> =
        named.filter_map(|parameter| parameter.name.split('.').next()).collect();
    let named = named.into_iter().collect::<Vec<_>>().join(", ");
    let blocks = last.map_or(String::new(), |last| format!(", blocks 0-{last}"));
    format!(
        "there are {BACKBONE}, {ALL_BUT}N, {named}{blocks}, and beginnings of the names of parameters"
    )
}

impl Serialize for Freeze {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Item::to_string))
    }
}

impl<'de> Deserialize<'de> for Freeze {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum One {
            Number(u64),
            Text(String),
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            One(One),
            Several(Vec<One>),
        }
        let text = |one: One| match one {
            One::Number(number) => number.to_string(),
            One::Text(text) => text,
        };
        let items = match Written::deserialize(deserializer) {
            Ok(Written::One(one)) => vec![text(one)],
            Ok(Written::Several(all)) => all.into_iter().map(text).collect(),
            Err(_) => {
                return Err(D::Error::custom("it is a list of parts, such as embed,0-9"));
            }
        };
        Ok(Self::parse(items.iter().map(String::as_str)))
    }
}

/// What of a model learns and what does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Freezing {
    freeze: Freeze,
    depth: usize,
    /// How many blocks, from the first on, are run without gradients, the embedding below them; nothing
    /// where even that learns.
    pub(crate) trunk: Option<usize>,
}

impl Freezing {
    pub(crate) fn learns(&self, parameter: &Parameter) -> bool {
        !self.freeze.covers(&parameter.name, self.depth)
    }

    /// The model, with gradients for what learns alone.
    pub(crate) fn apply(&self, model: VisionTransformer) -> VisionTransformer {
        match self.freeze.is_empty() {
            true => model,
            false => frozen(model, |parameter| !self.learns(parameter)),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use omma_base::Seed;
    use omma_model::{apply_settings, preset};

    use super::*;

    fn freezing(settings: &[&str], items: &str) -> Result<Freezing> {
        let config = apply_settings(&preset("vit-tiny").unwrap(), settings).unwrap();
        let model = config.init(Seed::new(0), &Device::flex()).unwrap();
        Freeze::parse([items]).of(&model)
    }

    #[test]
    fn what_lies_below_all_that_learns_is_the_trunk() {
        let trunk = |items: &str| freezing(&["depth=6"], items).unwrap().trunk;
        assert_eq!(trunk(""), None);
        assert_eq!(trunk("0-3"), None, "the embedding learns");
        assert_eq!(trunk("embed"), Some(0));
        assert_eq!(trunk("embed,0-3"), Some(4));
        assert_eq!(trunk("embed, blocks.0, 1,3-5"), Some(2), "block 2 learns");
        assert_eq!(trunk("embed,blocks.0.attention"), Some(0));
        assert_eq!(trunk("embed,blocks"), Some(6));
        assert_eq!(trunk("backbone"), Some(6));
        assert_eq!((trunk("all-but-2"), trunk("all-but-9")), (Some(4), Some(0)));
        // Members of an ensemble have copies of their own from their first experts on.
        let e3 = ["depth=6", "moe.experts=4", "moe.members=2", "moe.placement=2,4"];
        assert_eq!(freezing(&e3, "backbone").unwrap().trunk, Some(2));
    }

    #[test]
    fn names_are_whole_words() {
        let one = freezing(&["depth=12"], "blocks.1,norm").unwrap();
        let learns =
            |name: &str| one.learns(&Parameter { name: name.to_owned(), shape: Vec::new() });
        assert!(learns("blocks.10.attention.qkv") && learns("blocks.0.norm1.gamma"));
        assert!(!learns("blocks.1.attention.qkv") && !learns("norm.gamma"));
    }

    #[test]
    fn what_is_not_there_and_what_leaves_nothing_are_errors() {
        let message = |items: &str| freezing(&["depth=6"], items).unwrap_err().to_string();
        let unknown = message("embed,block.3");
        assert!(unknown.starts_with("train.freeze cannot be block.3"), "{unknown}");
        assert!(unknown.contains("embed, head, norm, blocks 0-5"), "{unknown}");
        assert!(message("6-9").contains("blocks 0-5"));
        assert!(message("backbone,head").contains("nothing would be left"));
    }

    #[test]
    fn a_list_a_text_and_a_number_are_read_alike() {
        let read = |text: &str| serde_json::from_str::<Freeze>(text);
        let expected = Freeze::parse(["embed", "0-9"]);
        for text in ["[\"embed\", \"0-9\"]", "\"embed,0-9\"", "[\"embed,0-9\"]"] {
            assert_eq!(read(text).unwrap(), expected);
        }
        assert_eq!(read("3").unwrap(), Freeze::parse(["3"]));
        assert_eq!(read("[0, 1]").unwrap(), Freeze::parse(["0", "1"]));
        assert!(read("{}").is_err() && read("-1").is_err());
        assert_eq!(serde_json::to_string(&expected).unwrap(), "[\"embed\",\"0-9\"]");
    }
}
