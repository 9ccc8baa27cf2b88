//! How tokens lie in their matrix, and which of them are routed together.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Result, RoutingError};

/// How the rows of a token matrix `[images · members · tokens, D]` are arranged: the tokens of an
/// image lie together, the ensemble members' copies of an image lie next to each other, so row
/// `(b·M + m)·T + t` is token `t` of member `m` of image `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Different images, `B`.
    pub images: usize,
    /// Copies of every image, `M`; 1 without an ensemble.
    pub members: usize,
    /// Tokens of one image, `T`.
    pub tokens: usize,
}

impl Layout {
    /// `images` images of `tokens` tokens, each once.
    pub fn new(images: usize, tokens: usize) -> Self {
        Self { images, members: 1, tokens }
    }

    /// Every image `members` times (tiling, paper 000 §4.1).
    pub fn tiled(self, members: usize) -> Self {
        Self { members, ..self }
    }

    /// Rows of the token matrix.
    pub fn rows(&self) -> usize {
        self.images.saturating_mul(self.members).saturating_mul(self.tokens)
    }

    /// The ensemble member a row belongs to.
    pub fn member(&self, row: usize) -> usize {
        row / self.tokens % self.members
    }

    /// Rows in the order in which they are routed: image by image, and inside an image the members'
    /// copies of one token next to each other, so that no member is served before another.
    fn routing_order(&self) -> Vec<u32> {
        let Self { images, members, tokens } = *self;
        let mut order = Vec::with_capacity(self.rows());
        for image in 0..images {
            for token in 0..tokens {
                for member in 0..members {
                    order.push(((image * members + member) * tokens + token) as u32);
                }
            }
        }
        order
    }
}

/// How many tokens are routed together. Groups never compete for an expert's capacity, and every
/// auxiliary loss is taken per group, then averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grouping {
    /// The whole batch is one group.
    #[default]
    Batch,
    /// This many images form a group, with all their members (soft routing counts every member's copy
    /// as an image); 1 makes any router independent of an image's neighbours in the batch.
    Images(usize),
    /// This many consecutive tokens form a group, which may span several images. With one decision
    /// per image, this many deciding tokens.
    Tokens(usize),
}

impl Grouping {
    /// Fails on groups of nothing.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Images(0) => Err(RoutingError::EmptyGroups { unit: "image" }),
            Self::Tokens(0) => Err(RoutingError::EmptyGroups { unit: "token" }),
            _ => Ok(()),
        }
    }

    /// Tokens in a full group.
    pub fn size(&self, layout: &Layout) -> usize {
        match *self {
            Self::Batch => layout.rows(),
            Self::Images(images) => {
                images.saturating_mul(layout.members).saturating_mul(layout.tokens)
            }
            Self::Tokens(tokens) => tokens,
        }
    }
}

/// Who decides: every token for itself, or one token for its whole image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Scope {
    /// Every token is routed by itself.
    #[default]
    Token,
    /// All tokens of an image follow one of them (paper 003 §3.2), usually the class token, 0.
    Image {
        /// The deciding token's place in its image.
        decided_by: usize,
    },
}

/// The tokens of a batch in routing order, cut into groups. The last group may be short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    order: Vec<u32>,
    bounds: Vec<usize>,
}

impl Groups {
    /// Groups of `grouping` over the rows of `layout`.
    pub fn new(layout: &Layout, grouping: &Grouping) -> Self {
        let rows = layout.rows();
        let size = grouping.size(layout).clamp(1, rows.max(1));
        let bounds = (0..rows).step_by(size).chain([rows]).collect();
        Self { order: layout.routing_order(), bounds }
    }

    /// How many groups there are, `G`.
    pub fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Whether there is nothing to route.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The rows of group `group`, in routing order.
    pub fn tokens(&self, group: usize) -> &[u32] {
        &self.order[self.range(group)]
    }

    /// The places of group `group` in [`order`](Self::order).
    pub fn range(&self, group: usize) -> Range<usize> {
        self.bounds[group]..self.bounds[group + 1]
    }

    /// All rows in routing order, group after group.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// The same groups with every row replaced by `span` rows.
    pub(crate) fn expanded(&self, span: usize) -> Self {
        let rows = |row: &u32| row * span as u32..(row + 1) * span as u32;
        Self {
            order: self.order.iter().flat_map(rows).collect(),
            bounds: self.bounds.iter().map(|bound| bound * span).collect(),
        }
    }

    /// The group and the place in it of every row.
    pub fn places(&self) -> Vec<Place> {
        let mut places = vec![Place { group: 0, position: 0 }; self.order.len()];
        for group in 0..self.len() {
            for (position, &row) in self.tokens(group).iter().enumerate() {
                places[row as usize] = Place { group, position };
            }
        }
        places
    }
}

/// Where a token stands in its batch's groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The token's group.
    pub group: usize,
    /// The token's place in its group, in routing order.
    pub position: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_alternate_inside_an_image() {
        // Two images of two tokens, twice each; rows are (image, member, token).
        let layout = Layout::new(2, 2).tiled(2);
        let groups = Groups::new(&layout, &Grouping::Images(1));
        assert_eq!(groups.len(), 2);
        assert_eq!(groups.tokens(0), [0, 2, 1, 3]);
        assert_eq!(groups.tokens(1), [4, 6, 5, 7]);
        assert_eq!(layout.member(6), 1);
        assert_eq!(groups.places()[6], Place { group: 1, position: 1 });
    }

    #[test]
    fn the_last_group_may_be_short() {
        let groups = Groups::new(&Layout::new(1, 10), &Grouping::Tokens(4));
        assert_eq!((0..groups.len()).map(|g| groups.range(g).len()).collect::<Vec<_>>(), [4, 4, 2]);
        let whole = Groups::new(&Layout::new(1, 10), &Grouping::Tokens(64));
        assert_eq!((whole.len(), whole.range(0)), (1, 0..10));
    }
}
