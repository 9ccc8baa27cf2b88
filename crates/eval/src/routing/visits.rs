//! Who went where: every token of an image at every expert that took it.

use burn::tensor::{Int, Tensor};
use omma_routing::{GateTable, Plan, Routing, SoftPlan, SparsePlan};

/// One token at one expert, in one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Visit {
    /// Place of the image in its batch.
    pub image: usize,
    /// The ensemble member whose copy of the image it is; 0 where there is one.
    pub member: usize,
    /// Place of the token in its image.
    pub token: usize,
    /// The expert.
    pub expert: usize,
    /// How much the two are drawn to each other: the router's softmax value. For soft routing, the token's
    /// part of what the expert's slots are mixed of, `Σ_p dispatch[t, e, p]`.
    pub gate: f32,
    /// The expert's part of what the token becomes, `Σ_p combine[t, e, p]`.
    pub weight: f32,
    /// How much of a visit it is: 1 where whole tokens go, the weight where every expert gets some of all.
    pub count: f32,
}

/// The images of a batch as a layer with experts sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Images, `B`.
    pub images: usize,
    /// Tokens of an image, `T`.
    pub tokens: usize,
}

impl BatchShape {
    /// Image, member and token of a row; row `(b·M + m)·T + t` is token `t` of member `m` of image `b`.
    ///
    /// - `rows`: all there are, `B·M·T`
    fn place(self, row: usize, rows: usize) -> (usize, usize, usize) {
        let members = (rows / (self.images * self.tokens)).max(1);
        let copy = row / self.tokens;
        (copy / members, copy % members, row % self.tokens)
    }
}

/// Shows every visit of some images in one layer to `each`, expert by expert where whole tokens go.
///
/// - `watched`: places of these images in the batch, increasing
pub fn visits(routing: &Routing, shape: BatchShape, watched: &[usize], each: impl FnMut(Visit)) {
    if watched.is_empty() {
        return;
    }
    match &routing.plan {
        Plan::Sparse(plan) => of_sparse(plan, &routing.tables, shape, watched, each),
        Plan::Soft(plan) => of_soft(plan, shape, watched, each),
    }
}

/// One row of a layer's token matrix at one expert, whatever the row is of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RowVisit {
    pub(crate) row: usize,
    pub(crate) expert: usize,
    /// As that of a [`Visit`].
    pub(crate) gate: f32,
    /// As that of a [`Visit`].
    pub(crate) weight: f32,
    /// As that of a [`Visit`].
    pub(crate) count: f32,
}

/// Shows every visit of a layer to `each`: expert by expert where whole tokens go, row by row where every expert
/// gets some of each.
pub(crate) fn row_visits(routing: &Routing, each: impl FnMut(RowVisit)) {
    match &routing.plan {
        Plan::Sparse(plan) => rows_of_sparse(plan, &routing.tables, |_| true, each),
        Plan::Soft(plan) => rows_of_soft(plan, each),
    }
}

fn of_sparse(
    plan: &SparsePlan,
    tables: &[GateTable],
    shape: BatchShape,
    watched: &[usize],
    mut each: impl FnMut(Visit),
) {
    let rows = plan.n_tokens() * plan.span();
    let mut is_watched = vec![false; shape.images];
    watched.iter().for_each(|image| is_watched[*image] = true);
    let wanted = |row: usize| is_watched[shape.place(row, rows).0];
    rows_of_sparse(plan, tables, wanted, |RowVisit { row, expert, gate, weight, count }| {
        let (image, member, token) = shape.place(row, rows);
        each(Visit { image, member, token, expert, gate, weight, count });
    });
}

/// - `wanted`: whether a unit is looked at, by its first row
fn rows_of_sparse(
    plan: &SparsePlan,
    tables: &[GateTable],
    wanted: impl Fn(usize) -> bool,
    mut each: impl FnMut(RowVisit),
) {
    if plan.n_assignments() == 0 {
        return;
    }
    let weights: Vec<f32> = plan.weights().clone().try_into_vec_as().expect("weights are floats");
    let (gates, span) = (Gates::new(tables, plan.n_tokens()), plan.span());
    for expert in 0..plan.n_experts() {
        for assignment in plan.of_expert(expert) {
            let unit = plan.tokens()[assignment] as usize;
            if !wanted(unit * span) {
                continue;
            }
            let weight = weights[assignment];
            let gate = gates.of(unit, expert).unwrap_or(weight);
            for row in unit * span..(unit + 1) * span {
                each(RowVisit { row, expert, gate, weight, count: 1.0 });
            }
        }
    }
}

fn rows_of_soft(plan: &SoftPlan, mut each: impl FnMut(RowVisit)) {
    let [groups, size, _] = plan.dispatch().dims();
    let (live, slots) = (plan.experts().len(), plan.n_slots());
    let mass = |weights: &Tensor<3>| -> Vec<f32> {
        let slots = weights.clone().reshape([groups * size * live, slots]);
        slots.sum_dim(1).try_into_vec_as().expect("weights are floats")
    };
    let (dispatch, combine) = (mass(plan.dispatch()), mass(plan.combine()));
    for (place, (gate, weight)) in dispatch.into_iter().zip(combine).enumerate() {
        let (row, expert) = (place / live, plan.experts()[place % live]);
        each(RowVisit { row, expert, gate, weight, count: weight });
    }
}

/// Gates' values by token and expert.
struct Gates<'a> {
    tables: &'a [GateTable],
    /// Per table, the row of every token that called it.
    rows: Vec<Vec<Option<u32>>>,
}

impl<'a> Gates<'a> {
    fn new(tables: &'a [GateTable], tokens: usize) -> Self {
        let rows = tables.iter().map(|table| {
            let mut rows = vec![None; tokens];
            for (row, token) in table.tokens.iter().enumerate() {
                rows[*token as usize] = Some(row as u32);
            }
            rows
        });
        Self { tables, rows: rows.collect() }
    }

    /// Of the one table that the token called and the expert is in.
    fn of(&self, token: usize, expert: usize) -> Option<f32> {
        self.tables.iter().zip(&self.rows).find_map(|(table, rows)| {
            let row = rows[token]? as usize;
            let column = table.experts.binary_search(&expert).ok()?;
            Some(table.gates[row * table.columns() + column])
        })
    }
}

fn of_soft(plan: &SoftPlan, shape: BatchShape, watched: &[usize], mut each: impl FnMut(Visit)) {
    let [groups, size, columns] = plan.dispatch().dims();
    let (rows, live, slots) = (groups * size, plan.experts().len(), plan.n_slots());
    let of_image = rows / shape.images;
    let index: Vec<i32> = watched.iter().map(|image| *image as i32).collect();
    let index = Tensor::<1, Int>::from_data(index.as_slice(), &plan.dispatch().device());
    // [W, rows of an image, L]
    let mass = |weights: &Tensor<3>| -> Vec<f32> {
        let images = weights.clone().reshape([shape.images, of_image, columns]);
        let some = images.select(0, index.clone());
        let slots = some.reshape([watched.len() * of_image * live, slots]);
        slots.sum_dim(1).try_into_vec_as().expect("weights are floats")
    };
    let (dispatch, combine) = (mass(plan.dispatch()), mass(plan.combine()));
    for (place, (gate, weight)) in dispatch.into_iter().zip(combine).enumerate() {
        let (row, column) = (place / live, place % live);
        let row = watched[row / of_image] * of_image + row % of_image;
        let (image, member, token) = shape.place(row, rows);
        let expert = plan.experts()[column];
        each(Visit { image, member, token, expert, gate, weight, count: weight });
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution};
    use omma_routing::{Context, Layout, Pool, RouterConfig, Scope, Seed};

    use super::*;

    const SHAPE: BatchShape = BatchShape { images: 3, tokens: 4 };

    fn routed(config: &RouterConfig, members: usize) -> Routing {
        let device = Device::flex();
        let layout = Layout::new(SHAPE.images, SHAPE.tokens).tiled(members);
        let tokens = Tensor::<2>::random([layout.rows(), 6], Distribution::Default, &device);
        let router = config.init(6, Seed::new(2), &device).unwrap();
        router.route(tokens * 30.0, &Context::inference(layout)).unwrap()
    }

    fn all(routing: &Routing, watched: &[usize]) -> Vec<Visit> {
        let mut all = Vec::new();
        visits(routing, SHAPE, watched, |visit| all.push(visit));
        all
    }

    #[test]
    fn every_choice_of_a_token_is_a_visit_with_its_gate() {
        let routing = routed(&RouterConfig::softmax_token_choice(5, 2), 1);
        let visits = all(&routing, &[0, 1, 2]);
        assert_eq!(visits.len(), 3 * 4 * 2);
        let table = &routing.tables[0];
        for visit in &visits {
            let row = visit.image * 4 + visit.token;
            assert_eq!(visit.gate, table.gates[row * 5 + visit.expert], "{visit:?}");
            assert_eq!((visit.member, visit.count), (0, 1.0));
        }
        let load: Vec<usize> =
            (0..5).map(|e| visits.iter().filter(|visit| visit.expert == e).count()).collect();
        assert_eq!(load, routing.statistics().load);
        let second = all(&routing, &[1]);
        assert!(second.len() == 8 && second.iter().all(|visit| visit.image == 1));
    }

    #[test]
    fn rows_are_the_same_visits_by_the_place_of_their_row() {
        let mut whole = RouterConfig::softmax_token_choice(5, 2);
        whole.scope = Scope::Image { decided_by: 0 };
        let mut members = RouterConfig::softmax_token_choice(6, 1);
        members.pool = Pool::Members { members: 2, overlap: 0 };
        let configs = [
            (RouterConfig::softmax_token_choice(5, 2), 1),
            (RouterConfig::softmax_expert_choice(4, 1.0), 1),
            (RouterConfig::soft(3, 2), 1),
            (whole, 1),
            (members, 2),
        ];
        for (config, copies) in configs {
            let routing = routed(&config, copies);
            let mut by_row = Vec::new();
            row_visits(&routing, |RowVisit { row, expert, gate, weight, count }| {
                let (token, copy) = (row % SHAPE.tokens, row / SHAPE.tokens);
                let (image, member) = (copy / copies, copy % copies);
                by_row.push(Visit { image, member, token, expert, gate, weight, count });
            });
            assert_eq!(by_row, all(&routing, &[0, 1, 2]), "{config:?}");
        }
    }

    #[test]
    fn members_visit_experts_of_their_own() {
        let mut config = RouterConfig::softmax_token_choice(6, 1);
        config.pool = Pool::Members { members: 2, overlap: 0 };
        let visits = all(&routed(&config, 2), &[0, 1, 2]);
        assert_eq!(visits.len(), 3 * 4 * 2);
        assert!(visits.iter().all(|visit| visit.member == visit.expert / 3), "{visits:?}");
        assert!(visits.iter().all(|visit| visit.gate > 1.0 / 3.0), "the largest of three gates");
    }

    #[test]
    fn with_one_decision_per_image_its_tokens_go_together() {
        let mut config = RouterConfig::softmax_token_choice(5, 1);
        config.scope = Scope::Image { decided_by: 0 };
        let visits = all(&routed(&config, 1), &[0, 2]);
        assert_eq!(visits.len(), 2 * 4);
        for image in visits.chunk_by(|a, b| a.image == b.image) {
            assert_eq!(image.iter().map(|visit| visit.token).collect::<Vec<_>>(), [0, 1, 2, 3]);
            assert!(image.iter().all(|visit| visit.gate == image[0].gate));
        }
    }

    #[test]
    fn soft_slots_take_some_of_every_token() {
        let routing = routed(&RouterConfig::soft(3, 2), 1);
        let visits = all(&routing, &[0, 2]);
        assert_eq!(visits.len(), 2 * 4 * 3);
        let tensors = routing.plan.dense(2);
        let dispatch: Vec<f32> = tensors.dispatch.try_into_vec_as().unwrap();
        let combine: Vec<f32> = tensors.combine.try_into_vec_as().unwrap();
        for visit in visits.iter().filter(|visit| visit.image == 2) {
            let first = (visit.token * 3 + visit.expert) * 2;
            let sum = |weights: &[f32]| weights[first] + weights[first + 1];
            assert!((visit.gate - sum(&dispatch)).abs() < 1e-6, "{visit:?}");
            assert!((visit.weight - sum(&combine)).abs() < 1e-6, "{visit:?}");
        }
        let of_image: f32 = visits.iter().filter(|v| v.image == 0).map(|v| v.count).sum();
        assert!((of_image - 4.0).abs() < 1e-5, "a token's weights sum to 1: {of_image}");
    }
}
