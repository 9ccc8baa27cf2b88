//! The way of soft routing: two softmaxes of one matrix.

use burn::tensor::{DType, Tensor};

use super::{Context, Router, Routing, check_finite, host, is_finite_on_device};
use crate::{
    allocation::Soft,
    error::{Result, RoutingError},
    losses::AuxiliaryLosses,
    modalities::several,
    plan::{Plan, SoftPlan, indices},
};

impl Router {
    pub(super) fn route_soft(
        &self,
        soft: &Soft,
        tokens: Tensor<2>,
        context: &Context,
    ) -> Result<Routing> {
        let config = self.config();
        let [rows, _] = tokens.dims();
        let Some(kind) = context.layout.only_kind() else {
            let (what, kinds) = ("soft routing", context.layout.kinds().len());
            return Err(RoutingError::SeveralKinds { what, kinds });
        };
        // Every copy of an image counts as an image, so members need no order among each other.
        let images = crate::Layout::new(rows / kind.tokens, kind.tokens);
        let size = config.grouping.size(&images).min(rows);
        if !rows.is_multiple_of(size) {
            return Err(RoutingError::UnevenGroups { tokens: rows, group: size });
        }

        let scale = self.scale.as_ref().map(|scale| scale.val());
        let logits = soft.logits(tokens, self.weight.val(), scale);
        let [_, columns] = logits.dims();
        let logits = if logits.dtype() == DType::F32 { logits } else { logits.cast(DType::F32) };
        let slotted = config.slotted()?;
        if !is_finite_on_device(&logits) {
            let expert = |column: usize| slotted[column / soft.slots];
            check_finite(&host(&logits), columns, |row| row, expert)?;
        }

        let alive = config.pruning.alive(config.experts)?;
        let (places, experts): (Vec<usize>, Vec<usize>) =
            slotted.iter().copied().enumerate().filter(|(_, expert)| alive[*expert]).unzip();
        let kept = |logits: Tensor<3>| {
            if experts.len() == slotted.len() {
                return logits;
            }
            let slots =
                |place: &usize| (place * soft.slots) as u32..((place + 1) * soft.slots) as u32;
            let columns: Vec<u32> = places.iter().flat_map(slots).collect();
            let index = indices(&columns, &logits.device());
            logits.select(2, index)
        };
        let logits = logits.reshape([rows / size, size, columns]);
        let (dispatch, combine) = if config.drops_pruned() {
            soft.weights(kept(logits))
        } else {
            let (dispatch, combine) = soft.weights(logits);
            (kept(dispatch), kept(combine))
        };
        let live = experts.len();
        let plan = SoftPlan::new(dispatch, combine, experts, config.experts);
        let subsets = match context.training {
            true => None,
            false => soft.subsets(&host(plan.combine()), plan.n_groups(), live, context.seed),
        };
        let plan = match subsets {
            Some(subsets) => plan.only(&subsets),
            None => plan,
        };
        Ok(Routing {
            plan: Plan::Soft(plan),
            losses: AuxiliaryLosses::default(),
            tables: Vec::new(),
            coverage: None,
            modality: several(context.modalities()),
        })
    }
}
