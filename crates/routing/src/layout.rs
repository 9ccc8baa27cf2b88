//! How tokens lie in their matrix, and which of them are routed together.

use std::{fmt, ops::Range, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::error::{Result, RoutingError};

/// Sequences of one kind: all images of a batch, or all its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequences {
    /// Different sequences, `B`.
    pub count: usize,
    /// Tokens of each, `T`.
    pub tokens: usize,
    /// What they are, for routers that tell modalities apart.
    pub modality: Option<usize>,
}

/// How the rows of a token matrix are arranged. Kinds of sequences lie one after the other, each with its
/// own length; the tokens of a sequence lie together, and the ensemble members' copies of a sequence next
/// to each other. So row `(b·M + m)·T + t` of a kind is token `t` of member `m` of its sequence `b`.
///
/// A router sees all kinds together (paper 002 App. F.3): they share the experts' capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    members: usize,
    kinds: Vec<Sequences>,
    /// Rows that hold no token, where there are any.
    absent: Option<Arc<[bool]>>,
}

impl Layout {
    /// `images` images of `tokens` tokens, each once.
    pub fn new(images: usize, tokens: usize) -> Self {
        Self::of(vec![Sequences { count: images, tokens, modality: None }])
    }

    /// Several kinds of sequences, each sequence once.
    pub fn of(kinds: Vec<Sequences>) -> Self {
        Self { members: 1, kinds, absent: None }
    }

    /// The same, with rows that hold no token: padding that is neither attended to nor routed.
    ///
    /// # Panics
    /// If there are not as many as rows.
    pub fn without(self, absent: Vec<bool>) -> Self {
        assert_eq!(absent.len(), self.rows(), "a layout's rows");
        Self { absent: absent.contains(&true).then(|| absent.into()), ..self }
    }

    /// `[N]`: whether a row holds no token; nothing where all of them do.
    pub fn absent(&self) -> Option<&[bool]> {
        self.absent.as_deref()
    }

    /// Where some rows hold no token, the rows that do, and how they lie by themselves: each a sequence of
    /// its own.
    pub fn present(&self) -> Option<(Vec<u32>, Self)> {
        let absent = self.absent()?;
        let (mut all, mut kinds) = (Vec::new(), Vec::new());
        for (kind, rows) in self.parts() {
            let before = all.len();
            all.extend(rows.filter(|row| !absent[*row]).map(|row| row as u32));
            kinds.push(Sequences { count: all.len() - before, tokens: 1, ..kind });
        }
        Some((all, Self::of(kinds)))
    }

    /// Every sequence `members` times (tiling, paper 000 §4.1).
    pub fn tiled(self, members: usize) -> Self {
        Self { members, ..self }
    }

    /// Copies of every sequence, `M`; 1 without an ensemble.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The kinds of sequences, in the order of their rows.
    pub fn kinds(&self) -> &[Sequences] {
        &self.kinds
    }

    /// The only kind there is; nothing where there are several.
    pub fn only_kind(&self) -> Option<Sequences> {
        match self.kinds.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// Rows of the token matrix.
    pub fn rows(&self) -> usize {
        self.kinds.iter().map(|kind| self.rows_of(kind)).fold(0, usize::saturating_add)
    }

    /// Every kind with its rows.
    pub fn parts(&self) -> impl Iterator<Item = (Sequences, Range<usize>)> {
        let mut next = 0;
        self.kinds.iter().map(move |kind| {
            let rows = next..next + self.rows_of(kind);
            next = rows.end;
            (*kind, rows)
        })
    }

    /// The ensemble member a row belongs to.
    pub fn member(&self, row: usize) -> usize {
        let (kind, rows) = self.part(row);
        (row - rows.start) / kind.tokens % self.members
    }

    /// `[N]`: the modality of every row; nothing where a kind does not say its own.
    pub fn modalities(&self) -> Option<Vec<usize>> {
        let mut all = Vec::with_capacity(self.rows());
        for (kind, rows) in self.parts() {
            all.extend(std::iter::repeat_n(kind.modality?, rows.len()));
        }
        Some(all)
    }

    fn rows_of(&self, kind: &Sequences) -> usize {
        kind.count.saturating_mul(self.members).saturating_mul(kind.tokens)
    }

    fn part(&self, row: usize) -> (Sequences, Range<usize>) {
        self.parts().find(|(_, rows)| rows.contains(&row)).expect("the row is one of the layout's")
    }

    /// Rows of some sequences of every kind, in the order in which they are routed: kind by kind,
    /// sequence by sequence, and inside a sequence the members' copies of one token next to each other,
    /// so that no member is served before another.
    fn routing_order(&self, sequences: Range<usize>) -> Vec<u32> {
        let mut order = Vec::new();
        for (kind, rows) in self.parts() {
            let Sequences { count, tokens, .. } = kind;
            for sequence in sequences.start.min(count)..sequences.end.min(count) {
                for token in 0..tokens {
                    for member in 0..self.members {
                        let row = (sequence * self.members + member) * tokens + token;
                        order.push((rows.start + row) as u32);
                    }
                }
            }
        }
        order
    }
}

/// How many tokens are routed together. Groups never compete for an expert's capacity, and every
/// auxiliary loss is taken per group, then averaged. In files: `batch`, `images-1`, `tokens-64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Grouping {
    /// The whole batch is one group.
    #[default]
    Batch,
    /// This many images form a group, with all their members (soft routing counts every member's copy
    /// as an image); 1 makes any router independent of an image's neighbours in the batch. Where there
    /// are several kinds of sequences, this many of each.
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
                let per_image: usize = layout.kinds.iter().map(|kind| kind.tokens).sum();
                images.saturating_mul(layout.members).saturating_mul(per_image)
            }
            Self::Tokens(tokens) => tokens,
        }
    }
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch => f.write_str("batch"),
            Self::Images(images) => write!(f, "images-{images}"),
            Self::Tokens(tokens) => write!(f, "tokens-{tokens}"),
        }
    }
}

impl FromStr for Grouping {
    type Err = RoutingError;

    fn from_str(text: &str) -> Result<Self> {
        let size = |digits: &str| digits.parse::<usize>().ok();
        let found = match text.split_once('-') {
            None if text == "batch" => Some(Self::Batch),
            Some(("images", digits)) => size(digits).map(Self::Images),
            Some(("tokens", digits)) => size(digits).map(Self::Tokens),
            _ => None,
        };
        found.ok_or_else(|| RoutingError::Unreadable {
            what: "a grouping",
            text: text.to_owned(),
            forms: "batch, images-1 or tokens-64",
        })
    }
}

impl From<Grouping> for String {
    fn from(grouping: Grouping) -> Self {
        grouping.to_string()
    }
}

impl TryFrom<String> for Grouping {
    type Error = RoutingError;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

/// Who decides: every token for itself, or one token for its whole image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Scope {
    /// Every token is routed by itself.
    #[default]
    Token,
    /// All tokens of an image follow one of them (paper 003 §3.2), usually the class token, 0.
    Image {
        /// The deciding token's place in its image.
        #[serde(default)]
        decided_by: usize,
    },
}

/// The tokens of a batch in routing order, cut into groups. The last group may be short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    order: Vec<u32>,
    bounds: Vec<usize>,
}

impl Groups {
    /// Groups of `grouping` over the rows of `layout`.
    pub fn new(layout: &Layout, grouping: &Grouping) -> Self {
        if let (Grouping::Images(images), None) = (grouping, layout.only_kind()) {
            return Self::of_sequences(layout, (*images).max(1));
        }
        let rows = layout.rows();
        let size = grouping.size(layout).clamp(1, rows.max(1));
        let bounds = (0..rows).step_by(size).chain([rows]).collect();
        Self { order: layout.routing_order(0..usize::MAX), bounds }
    }

    /// So many sequences of every kind together.
    fn of_sequences(layout: &Layout, together: usize) -> Self {
        let most = layout.kinds.iter().map(|kind| kind.count).max().unwrap_or(0);
        let (mut order, mut bounds) = (Vec::with_capacity(layout.rows()), vec![0]);
        for first in (0..most).step_by(together) {
            order.extend(layout.routing_order(first..first.saturating_add(together)));
            bounds.push(order.len());
        }
        Self { order, bounds }
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
    fn kinds_of_sequences_share_a_batch_or_a_group_of_pairs() {
        // Three images of two tokens, then two texts of one.
        let kind = |count, tokens, modality| Sequences { count, tokens, modality: Some(modality) };
        let layout = Layout::of(vec![kind(3, 2, 0), kind(2, 1, 1)]);
        assert_eq!((layout.rows(), layout.member(7)), (8, 0));
        assert_eq!(layout.modalities(), Some(vec![0, 0, 0, 0, 0, 0, 1, 1]));
        let all = Groups::new(&layout, &Grouping::Batch);
        assert_eq!((all.len(), all.tokens(0)), (1, &[0, 1, 2, 3, 4, 5, 6, 7][..]));
        let pairs = Groups::new(&layout, &Grouping::Images(2));
        assert_eq!(pairs.tokens(0), [0, 1, 2, 3, 6, 7]);
        assert_eq!(pairs.tokens(1), [4, 5]);
        let tiled = layout.tiled(2);
        assert_eq!((tiled.rows(), tiled.member(3), tiled.member(13)), (16, 1, 1));
        assert_eq!(Groups::new(&tiled, &Grouping::Images(3)).tokens(0)[12..], [12, 13, 14, 15]);
        assert_eq!(Layout::new(1, 2).modalities(), None);
    }

    #[test]
    fn a_grouping_is_written_as_it_is_read() {
        for grouping in [Grouping::Batch, Grouping::Images(3), Grouping::Tokens(64)] {
            assert_eq!(grouping.to_string().parse(), Ok(grouping));
        }
        for text in ["", "image-1", "images-", "tokens--1", "batch-2"] {
            assert!(text.parse::<Grouping>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_group_may_be_short() {
        let groups = Groups::new(&Layout::new(1, 10), &Grouping::Tokens(4));
        assert_eq!((0..groups.len()).map(|g| groups.range(g).len()).collect::<Vec<_>>(), [4, 4, 2]);
        let whole = Groups::new(&Layout::new(1, 10), &Grouping::Tokens(64));
        assert_eq!((whole.len(), whole.range(0)), (1, 0..10));
    }
}
