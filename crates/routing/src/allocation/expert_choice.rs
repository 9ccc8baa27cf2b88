//! Expert choice: every expert picks its best tokens (paper 001, Algorithm 2).

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{
    assignments::{Assignment, Assignments},
    top_k::top_positions,
};
use crate::{capacity::Capacity, error::Result, gate::GateTable, layout::Groups};

/// Settings of expert choice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertChoice {
    /// How many tokens every expert takes from its group.
    pub capacity: Capacity,
}

impl ExpertChoice {
    pub(super) fn check(&self) -> Result<()> {
        self.capacity.check()
    }

    /// Algorithm 2 for every group: each expert takes its best tokens in decreasing order, as many
    /// as it has slots, or all that may go to it if they are fewer.
    pub(crate) fn allocate(
        &self,
        tables: &[GateTable],
        experts: usize,
        groups: &Groups,
        capacities: Vec<usize>,
    ) -> Assignments {
        let columns = columns_by_expert(tables, experts);
        let places = groups.places();
        let chosen: Vec<Vec<Assignment>> = (0..experts * groups.len())
            .into_par_iter()
            .map(|task| {
                let (expert, group) = (task / groups.len(), task % groups.len());
                let mut candidates: Vec<Candidate> = Vec::new();
                for column in &columns[expert] {
                    column.candidates(group, &mut candidates);
                }
                if columns[expert].len() > 1 {
                    candidates.sort_by_key(|candidate| places[candidate.token as usize].position);
                }
                let scores = candidates.iter().map(|candidate| candidate.score);
                let best = top_positions(scores, capacities[group].min(candidates.len()));
                let fill = |(slot, position): (u32, u32)| {
                    let Candidate { token, value, .. } = candidates[position as usize];
                    Assignment { token, slot, choice: 0, value }
                };
                (0..).zip(best).map(fill).collect()
            })
            .collect();

        let mut offsets = vec![0];
        for expert in chosen.chunks_exact(groups.len()) {
            let taken: usize = expert.iter().map(Vec::len).sum();
            offsets.push(offsets.last().copied().unwrap_or(0) + taken);
        }
        let list = chosen.into_iter().flatten().collect();
        Assignments { offsets, list, capacities, decisions: None }
    }
}

/// One expert in one gate's table.
struct Column<'a> {
    table: &'a GateTable,
    column: usize,
    first_value: usize,
}

struct Candidate {
    token: u32,
    value: u32,
    score: f32,
}

impl Column<'_> {
    fn candidates(&self, group: usize, candidates: &mut Vec<Candidate>) {
        let (width, scores) = (self.table.columns(), self.table.scores());
        candidates.extend(self.table.rows(group).map(|row| {
            let cell = row * width + self.column;
            let value = (self.first_value + cell) as u32;
            Candidate { token: self.table.tokens[row], value, score: scores[cell] }
        }));
    }
}

/// The columns in which each expert can be chosen.
fn columns_by_expert(tables: &[GateTable], experts: usize) -> Vec<Vec<Column<'_>>> {
    let mut columns: Vec<Vec<Column>> = (0..experts).map(|_| Vec::new()).collect();
    let mut first_value = 0;
    for table in tables {
        for (column, &expert) in table.experts.iter().enumerate() {
            if table.available[column] {
                columns[expert].push(Column { table, column, first_value });
            }
        }
        first_value += table.scores().len();
    }
    columns
}
