//! Configurations as earlier versions wrote them, with everything in one flat table and a router of its
//! own defaults. They are read for as long as there are checkpoints that hold them.

use omma_base::nearest;
use omma_routing::{
    Allocation, Capacity, CombineWeights, ExpertChoice, Grouping, Loss, LossTerm, Order, Pool,
    RouterConfig, RoutingError, Scope,
};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Map, Value};

use super::{
    EncoderConfig, ExpertStart, HeadConfig, ImageConfig, MimoConfig, ModelConfig, MoeConfig,
    Placement, TextConfig, names::full_name,
};

/// A configuration of this version or of an earlier one.
pub(super) struct AnyModelConfig(ModelConfig);

impl From<AnyModelConfig> for ModelConfig {
    fn from(any: AnyModelConfig) -> Self {
        any.0
    }
}

/// A configuration of this version.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Current {
    image: ImageConfig,
    encoder: EncoderConfig,
    head: HeadConfig,
    mimo: Option<MimoConfig>,
    text: Option<TextConfig>,
}

impl<'de> Deserialize<'de> for AnyModelConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tree = Value::deserialize(deserializer)?;
        let tree = upgraded(tree).map_err(D::Error::custom)?;
        let Current { image, encoder, head, mimo, text } =
            Current::deserialize(tree).map_err(D::Error::custom)?;
        Ok(Self(ModelConfig { image, encoder, head, mimo, text }))
    }
}

/// A tree of this version from one of any version. Only flat trees have a width beside everything else.
fn upgraded(tree: Value) -> Result<Value, String> {
    match tree {
        Value::Object(flat) if flat.contains_key("width") => nested(flat).map(Value::Object),
        other => Ok(other),
    }
}

/// A flat table, cut up by the short names that its keys are today.
fn nested(flat: Map<String, Value>) -> Result<Map<String, Value>, String> {
    let head = Value::Object(Map::from_iter([("kind".to_owned(), "classifier".into())]));
    let mut tree = Map::from_iter([("head".to_owned(), head)]);
    for (key, value) in flat {
        let value = match (key.as_str(), value) {
            ("moe", Value::Object(moe)) => upgraded_moe(moe)?,
            (_, value) => value,
        };
        let name = full_name(&key);
        match name.split_once('.') {
            Some((part, inside)) => {
                let part = tree.entry(part).or_insert_with(|| Value::Object(Map::new()));
                let part = part.as_object_mut().expect("parts of a configuration are tables");
                part.insert(inside.to_owned(), value);
            }
            None if key == "mimo" => _ = tree.insert(key, value),
            None => {
                let known = super::names::SHORT.iter().map(|(short, _)| *short);
                return Err(format!("unknown field `{key}`{}", nearest(&key, known)));
            }
        }
    }
    Ok(tree)
}

/// A table of experts of this version from one of any version. Earlier ones say by name which router they
/// have, and have its settings beside that.
pub(super) fn upgraded_moe(moe: Map<String, Value>) -> Result<Value, String> {
    let current = serde_json::from_value::<MoeConfig>(Value::Object(moe.clone())).is_ok();
    if current || moe.get("router").is_some_and(Value::is_object) {
        return Ok(Value::Object(moe));
    }
    let earlier: EarlierMoe =
        serde_json::from_value(Value::Object(moe)).map_err(|error| error.to_string())?;
    let moe = MoeConfig::try_from(earlier).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(moe).expect("a configuration can be written"))
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum EarlierScope {
    Token,
    Image,
}

/// Mixtures of experts as they were written, with settings that their router may not use.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EarlierMoe {
    placement: Placement,
    experts: usize,
    k: usize,
    router: String,
    slots: usize,
    members: usize,
    own_experts: bool,
    overlap: usize,
    partition: usize,
    multi_pred: bool,
    shared_expert: bool,
    scope: EarlierScope,
    capacity_ratio: f64,
    inference_capacity_ratio: Option<f64>,
    capacity_multiple: usize,
    order: Order,
    combine: CombineWeights,
    images_per_group: usize,
    noise: f64,
    importance_loss: f64,
    load_loss: f64,
    balance_loss: f64,
    z_loss: f64,
    hidden: Option<usize>,
    dropout: f32,
}

impl Default for EarlierMoe {
    fn default() -> Self {
        Self {
            placement: Placement::Last(2),
            experts: 32,
            k: 2,
            router: "softmax-token-choice".to_owned(),
            slots: 1,
            members: 1,
            own_experts: true,
            overlap: 0,
            partition: 1,
            multi_pred: false,
            shared_expert: false,
            scope: EarlierScope::Token,
            capacity_ratio: 1.5,
            inference_capacity_ratio: None,
            capacity_multiple: 1,
            order: Order::MaxGate,
            combine: CombineWeights::Gates,
            images_per_group: 0,
            noise: 1.0,
            importance_loss: 0.005,
            load_loss: 0.005,
            balance_loss: 0.0,
            z_loss: 0.0,
            hidden: None,
            dropout: 0.0,
        }
    }
}

impl TryFrom<EarlierMoe> for MoeConfig {
    type Error = RoutingError;

    /// What the earlier version made of these settings; fails on a router that it did not have.
    fn try_from(earlier: EarlierMoe) -> Result<Self, RoutingError> {
        let EarlierMoe { members, overlap, partition, own_experts, .. } = earlier;
        let router = earlier.router()?;
        let pool = match () {
            _ if members > 1 && own_experts => Pool::Members { members, overlap },
            _ if partition > 1 => Pool::Partition { subsets: partition },
            _ => Pool::All,
        };
        Ok(Self {
            placement: earlier.placement,
            tiling: if pool.members().is_some() { 1 } else { members },
            router: RouterConfig { pool, ..router },
            multi_pred: earlier.multi_pred,
            shared_expert: earlier.shared_expert,
            residual: true,
            bias: true,
            hidden: earlier.hidden,
            dropout: earlier.dropout,
            start: ExpertStart { shared: false, noise: 0.0 },
            pruned: Vec::new(),
        })
    }
}

impl EarlierMoe {
    fn router(&self) -> Result<RouterConfig, RoutingError> {
        let base = RouterConfig::named(&self.router, self.experts, self.k)?;
        let limit = |factor: f64, base: Capacity| Capacity {
            factor,
            multiple_of: self.capacity_multiple,
            ..base
        };
        let mut router = RouterConfig { noise: 0.0, losses: Vec::new(), ..base };
        match &mut router.allocation {
            Allocation::TokenChoice(choice) => {
                choice.order = self.order;
                let capacity = |ratio| limit(ratio, Capacity::factor(ratio));
                choice.capacity = Some(capacity(self.capacity_ratio));
                choice.inference_capacity = self.inference_capacity_ratio.map(capacity);
                router.losses = self.losses(self.router == "softmax-token-choice");
                if self.router == "softmax-token-choice" {
                    router.noise = self.noise;
                }
            }
            Allocation::ExpertChoice(ExpertChoice { capacity }) => {
                *capacity = limit(self.capacity_ratio, *capacity);
            }
            Allocation::Soft(soft) => soft.slots = self.slots,
        }
        let soft = matches!(router.allocation, Allocation::Soft(_));
        let grouping = match self.images_per_group {
            _ if soft => Grouping::Images(1),
            0 => Grouping::Batch,
            images => Grouping::Images(images),
        };
        let scope = match self.scope {
            EarlierScope::Image if !soft => Scope::Image { decided_by: 0 },
            _ => Scope::Token,
        };
        let combine = if soft { CombineWeights::Gates } else { self.combine };
        Ok(RouterConfig { grouping, scope, combine, ..router })
    }

    fn losses(&self, noisy: bool) -> Vec<LossTerm> {
        let terms = [
            (Loss::Importance, self.importance_loss),
            (Loss::Balance, self.balance_loss),
            (Loss::Z, self.z_loss),
            (Loss::Load, if noisy { self.load_loss } else { 0.0 }),
        ];
        let terms = terms.into_iter().filter(|(_, weight)| *weight != 0.0);
        terms.map(|(loss, weight)| LossTerm::new(loss, weight)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{apply_settings, preset};

    /// As `config.json` beside a checkpoint of the first version.
    const FLAT: &str = r#"{
        "resolution": 32, "patch": 4, "width": 128, "depth": 6, "heads": 4, "mlp": 512, "classes": 10,
        "pooling": "token", "normalisation": {"mean": [0.5, 0.5, 0.5], "deviation": [0.5, 0.5, 0.5]},
        "moe": {"placement": "last-2", "experts": 8, "k": 1, "router": "softmax-token-choice",
                "slots": 1, "members": 2, "own_experts": true, "scope": "token", "order": "max-gate"}
    }"#;

    #[test]
    fn a_flat_configuration_is_the_preset_it_was_written_from() {
        let config: ModelConfig = serde_json::from_str(FLAT).unwrap();
        // That version served by batch priority, and drew every expert by itself.
        let settings = ["moe.order=max-gate", "moe.start.shared=false"];
        assert_eq!(config, apply_settings(&preset("e3-tiny").unwrap(), &settings).unwrap());
        let written = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ModelConfig>(&written).unwrap(), config);
    }

    #[test]
    fn what_an_earlier_router_ignored_is_left_behind() {
        let soft =
            FLAT.replace("softmax-token-choice", "soft").replace("\"slots\": 1", "\"slots\": 4");
        let soft = soft.replace("\"members\": 2", "\"members\": 1");
        let config: ModelConfig = serde_json::from_str(&soft).unwrap();
        let moe = config.moe().unwrap();
        assert_eq!((moe.slots(), moe.router.losses.len(), moe.members()), (Some(4), 0, 1));
    }

    #[test]
    fn a_key_that_never_was_is_an_error() {
        for (right, wrong) in
            [("softmax-token", "softmax-tokens"), ("\"scope\": \"token\"", "\"scope\": \"batch\"")]
        {
            assert!(serde_json::from_str::<ModelConfig>(&FLAT.replace(right, wrong)).is_err());
        }
        let wrong = FLAT.replace("\"patch\"", "\"pach\"");
        let message = serde_json::from_str::<ModelConfig>(&wrong).unwrap_err().to_string();
        assert!(message.contains("`pach`") && message.contains("\"patch\""), "{message}");
    }
}
