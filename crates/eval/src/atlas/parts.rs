//! Where the experts of a layer stand in tables, part by part.

use omma_routing::RouterConfig;

use crate::routing::Group;

/// The parts of a layer that images reach. Their experts, one part after the other, are the columns of tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) all: Vec<Group>,
    experts: usize,
    /// `[members, E]`: the column of every expert for a member's tokens; nothing yet for members that never came.
    columns: Vec<Option<u32>>,
}

impl Parts {
    pub(super) fn of(router: &RouterConfig) -> Self {
        let (all, experts) = (Group::of_router(router), router.experts);
        Self { all, experts, columns: Vec::new() }
    }

    /// Columns of tables.
    pub(super) fn width(&self) -> usize {
        self.all.iter().map(|part| part.experts.len()).sum()
    }

    /// The columns of each part.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (&Group, std::ops::Range<usize>)> {
        let mut next = 0;
        self.all.iter().map(move |part| {
            let range = next..next + part.experts.len();
            next = range.end;
            (part, range)
        })
    }

    /// The expert of every column.
    pub(super) fn column_experts(&self) -> Vec<usize> {
        self.all.iter().flat_map(|part| part.experts.iter().copied()).collect()
    }

    /// Makes room for so many members.
    pub(super) fn prepare(&mut self, members: usize) {
        let known = self.columns.len() / self.experts.max(1);
        for member in known..members {
            let mut columns = vec![None; self.experts];
            for (part, range) in self.ranges() {
                if part.member.is_none_or(|own| own == member) {
                    for (expert, column) in part.experts.iter().zip(range) {
                        columns[*expert] = Some(column as u32);
                    }
                }
            }
            self.columns.extend(columns);
        }
    }

    /// The column of an expert for a member's tokens of images.
    pub(super) fn column(&self, member: usize, expert: usize) -> Option<usize> {
        let column = self.columns.get(member * self.experts + expert).copied().flatten();
        column.map(|column| column as usize)
    }
}

#[cfg(test)]
mod tests {
    use omma_routing::Pool;

    use super::*;

    fn parts(pool: Pool) -> Parts {
        let router = RouterConfig { pool, ..RouterConfig::softmax_token_choice(6, 1) };
        let mut parts = Parts::of(&router);
        parts.prepare(2);
        parts
    }

    #[test]
    fn members_have_columns_of_their_own_also_for_experts_that_they_share() {
        let shared = parts(Pool::Members { members: 2, overlap: 2 });
        assert_eq!((shared.all.len(), shared.width()), (2, 8));
        assert_eq!(shared.column_experts(), [0, 1, 4, 5, 2, 3, 4, 5]);
        assert_eq!(
            [shared.column(0, 4), shared.column(1, 4), shared.column(1, 0)],
            [Some(2), Some(6), None]
        );
    }

    #[test]
    fn one_gate_has_one_part_and_that_of_texts_has_none() {
        let all = parts(Pool::All);
        assert_eq!((all.all[0].title.as_str(), all.column(1, 5)), ("", Some(5)));
        let disjoint = parts(Pool::ExpertsPerModality { experts: vec![4, 2] });
        assert_eq!((disjoint.width(), disjoint.column(0, 5)), (4, None));
        let subsets = parts(Pool::Partition { subsets: 2 });
        assert_eq!(subsets.all[1].title, "Subset 2");
        assert_eq!(subsets.column(0, 3), Some(3));
    }
}
