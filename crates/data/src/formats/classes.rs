//! From the labels of a file to classes.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use omma_base::Limits;

use crate::error::{DataError, Result};

/// Numbers above this are names of something, not places in a list.
pub(super) const LARGEST_NUMBER: usize = 99_999;

/// The classes that labels speak of. Numbers keep their value; anything else is sorted.
pub(super) fn classes<'a>(labels: impl Iterator<Item = &'a str>) -> Vec<String> {
    let distinct: BTreeSet<&str> = labels.collect();
    let numbers: Option<Vec<usize>> = distinct.iter().map(|label| number(label)).collect();
    match numbers.and_then(|numbers| numbers.into_iter().max()) {
        Some(largest) => (0..=largest).map(|i| i.to_string()).collect(),
        None => distinct.into_iter().map(str::to_owned).collect(),
    }
}

/// A number as a class may be written; `07` is not one.
fn number(label: &str) -> Option<usize> {
    let number: usize = label.parse().ok()?;
    (number <= LARGEST_NUMBER && number.to_string() == label).then_some(number)
}

/// Refuses more classes than are allowed.
pub(super) fn check_classes(path: &Path, classes: usize) -> Result<()> {
    let fault = |why: String| DataError::Format { path: path.into(), why };
    Limits::current().check_classes(classes).map_err(fault)
}

/// The place of every class.
pub(super) fn places(classes: &[String]) -> HashMap<&str, usize> {
    classes.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(labels: &[&str]) -> Vec<String> {
        classes(labels.iter().copied())
    }

    #[test]
    fn numbers_keep_their_value_and_words_are_sorted() {
        assert_eq!(of(&["2", "0", "2"]), ["0", "1", "2"]);
        assert_eq!(of(&["dog", "cat", "dog"]), ["cat", "dog"]);
        assert_eq!(of(&["1", "dog"]), ["1", "dog"]);
        assert_eq!(of(&["007", "12"]), ["007", "12"]);
        assert_eq!(of(&["18446744073709551615", "3"]).len(), 2);
        assert!(of(&[]).is_empty());
    }
}
