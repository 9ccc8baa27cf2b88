//! Where padding is in a tokenizer's file, and where it is for a model.

use super::PAD;

/// How the ids of a tokenizer's file become those that a model sees, where padding is always [`PAD`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ids {
    /// The file's padding and the file's 0 change places; as they are where padding is 0.
    Swapped(u32),
    /// The file has no padding: every id is one more.
    Shifted,
}

impl Ids {
    /// The model's id.
    pub(super) fn seen(self, own: u32) -> u32 {
        match self {
            Self::Swapped(pad) if own == pad => PAD,
            Self::Swapped(pad) if own == PAD => pad,
            Self::Swapped(_) => own,
            Self::Shifted => own + 1,
        }
    }

    /// The file's id; none for padding that the file does not have.
    pub(super) fn own(self, seen: u32) -> Option<u32> {
        match self {
            Self::Swapped(_) => Some(self.seen(seen)),
            Self::Shifted => seen.checked_sub(1),
        }
    }

    /// The file's padding.
    pub(super) fn padding(self) -> Option<u32> {
        match self {
            Self::Swapped(pad) => Some(pad),
            Self::Shifted => None,
        }
    }

    /// How many ids a model needs for a file with so many.
    pub(super) fn vocabulary(self, own: usize) -> usize {
        match self {
            Self::Swapped(_) => own,
            Self::Shifted => own + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_comes_back_and_none_but_padding_is_zero() {
        for (ids, padding) in [(Ids::Swapped(0), 0), (Ids::Swapped(3), 3)] {
            assert_eq!(ids.seen(padding), PAD);
            assert!((0..6).all(|id| ids.own(ids.seen(id)) == Some(id)));
            assert_eq!((0..6).filter(|&id| ids.seen(id) == PAD).count(), 1);
        }
        assert!((0..6).all(|id| Ids::Shifted.own(Ids::Shifted.seen(id)) == Some(id)));
        assert!((0..6).all(|id| Ids::Shifted.seen(id) != PAD));
        assert_eq!(Ids::Shifted.own(PAD), None);
    }
}
