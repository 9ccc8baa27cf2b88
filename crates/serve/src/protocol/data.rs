//! The values of a tensor in JSON, read straight into what they are: a number costs its own bytes, and no others.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A value as JSON has it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scalar<'a> {
    /// Without a sign, a point or an exponent.
    Whole(u64),
    Number(f64),
    Text(&'a str),
}

/// The values of lists in lists, one after the other.
#[derive(Debug)]
pub(super) struct Flat<T> {
    /// The first of them, as many as there is room for.
    pub(super) values: Vec<T>,
    /// How many there are.
    pub(super) found: usize,
    most: usize,
    read: fn(Scalar<'_>) -> Option<T>,
}

impl<T> Flat<T> {
    /// Reads `data`: flat, or nested as the shape is.
    ///
    /// - `most`: values that are kept; the others are read and counted
    /// - `read`: a value, or nothing if it is none of these
    pub(super) fn of(
        data: &RawValue,
        most: usize,
        read: fn(Scalar<'_>) -> Option<T>,
    ) -> serde_json::Result<Self> {
        // A value and what is between it and the next have at least two bytes.
        let room = most.min(data.get().len() / 2 + 1);
        let mut flat = Self { values: Vec::with_capacity(room), found: 0, most, read };
        let mut source = serde_json::Deserializer::from_str(data.get());
        (&mut flat).deserialize(&mut source)?;
        Ok(flat)
    }

    fn add<E: Error>(&mut self, scalar: Scalar<'_>) -> Result<(), E> {
        let value = (self.read)(scalar).ok_or_else(|| E::custom("a value of another kind"))?;
        self.found += 1;
        if self.found <= self.most {
            self.values.push(value);
        }
        Ok(())
    }
}

impl<'de, T> DeserializeSeed<'de> for &mut Flat<T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de, T> Visitor<'de> for &mut Flat<T> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("values, or lists of them")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(&mut *self)?.is_some() {}
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.add(Scalar::Whole(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.add(Scalar::Number(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.add(Scalar::Number(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.add(Scalar::Text(text))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(scalar: Scalar<'_>) -> Option<f32> {
        match scalar {
            Scalar::Whole(value) => Some(value as f32),
            Scalar::Number(value) => Some(value as f32),
            Scalar::Text(_) => None,
        }
    }

    fn flat(json: &str, most: usize) -> serde_json::Result<Flat<f32>> {
        Flat::of(serde_json::from_str(json).unwrap(), most, number)
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let many = format!("[{}0]", "0,".repeat(999_999));
        let few = flat(&many, 12).unwrap();
        assert_eq!((few.found, few.values.len()), (1_000_000, 12));
        assert!(few.values.capacity() < 20);
        let all = flat(&many, usize::MAX).unwrap();
        assert_eq!(all.values.len(), 1_000_000);
        assert!(all.values.capacity() < 1_100_000, "four bytes for the two of \"0,\"");
    }

    #[test]
    fn lists_in_lists_without_end_are_refused() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(flat(&deep, 1).is_err());
    }

    proptest! {
        #[test]
        fn brackets_change_nothing(rows in proptest::collection::vec(proptest::collection::vec(-1e6_f32..1e6, 0..6), 0..6)) {
            let nested = serde_json::to_string(&rows).unwrap();
            let expected: Vec<f32> = rows.concat();
            let plain = serde_json::to_string(&expected).unwrap();
            prop_assert_eq!(&flat(&nested, 100).unwrap().values, &expected);
            prop_assert_eq!(&flat(&plain, 100).unwrap().values, &expected);
        }
    }
}
