//! Which values a number may have.
//!
//! A configuration lists the range of every number it has, by its key, in one table. The table is checked
//! against the configuration as it is written to a file, so that no number can be forgotten:
//! [`without_range`] names those that were.

use std::fmt;

use serde_json::Value;

/// The values that a number may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    least: f64,
    most: f64,
    least_itself: bool,
    most_itself: bool,
    optional: bool,
}

impl Range {
    /// From `least` to `most`, both included.
    pub const fn of(least: f64, most: f64) -> Self {
        Self { least, most, least_itself: true, most_itself: true, optional: false }
    }

    /// Above `least`, and at most `most`.
    pub const fn above(least: f64, most: f64) -> Self {
        Self { least_itself: false, ..Self::of(least, most) }
    }

    /// At least `least`, and below `most`.
    pub const fn below(least: f64, most: f64) -> Self {
        Self { most_itself: false, ..Self::of(least, most) }
    }

    /// The same for a number that need not be there.
    pub const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Whether a number is one of these.
    pub fn contains(self, value: f64) -> bool {
        let low = if self.least_itself { value >= self.least } else { value > self.least };
        let high = if self.most_itself { value <= self.most } else { value < self.most };
        low && high
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, most, .. } = self;
        match (self.least_itself, self.most_itself) {
            (true, true) => write!(f, "from {least} to {most}"),
            (false, _) => write!(f, "above {least} and at most {most}"),
            (true, false) => write!(f, "at least {least} and below {most}"),
        }
    }
}

/// The range of every number of a configuration, by its key. The numbers of a list have the list's key,
/// and so do the settings of its items.
pub type Ranges = [(&'static str, Range)];

/// A number that a setting cannot have.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{key} cannot be {value}: it is {range}")]
pub struct OutOfRange {
    /// The setting.
    pub key: String,
    /// What it was to be.
    pub value: String,
    /// What it can be.
    pub range: Range,
}

fn range(ranges: &Ranges, key: &str) -> Option<Range> {
    ranges.iter().find(|(known, _)| *known == key).map(|(_, range)| *range)
}

/// Checks one setting; what is no number is not this table's business.
pub fn check_setting(ranges: &Ranges, key: &str, value: &Value) -> Result<(), OutOfRange> {
    let Some(range) = range(ranges, key) else { return Ok(()) };
    let wrong = |value: &Value| OutOfRange { key: key.to_owned(), value: value.to_string(), range };
    match value {
        Value::Array(all) => all.iter().try_for_each(|value| check_setting(ranges, key, value)),
        // JSON has no infinity: a number that is not finite is written as nothing.
        Value::Null if !range.optional => {
            Err(OutOfRange { value: "infinite".to_owned(), ..wrong(value) })
        }
        Value::Number(number) if !number.as_f64().is_some_and(|n| range.contains(n)) => {
            Err(wrong(value))
        }
        _ => Ok(()),
    }
}

/// Checks every number of a configuration, given as it would be written to a file.
pub fn check_all(ranges: &Ranges, tree: &Value) -> Result<(), OutOfRange> {
    let mut result = Ok(());
    visit(tree, "", &mut |key, value| {
        if result.is_ok() {
            result = check_setting(ranges, key, value);
        }
    });
    result
}

/// The keys of numbers that have no range: a slip of whoever wrote the table.
pub fn without_range(ranges: &Ranges, tree: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    visit(tree, "", &mut |key, value| {
        let is_number = match value {
            Value::Array(all) => all.iter().any(Value::is_number),
            other => other.is_number(),
        };
        if is_number && range(ranges, key).is_none() {
            missing.push(key.to_owned());
        }
    });
    missing
}

fn visit(tree: &Value, prefix: &str, see: &mut impl FnMut(&str, &Value)) {
    if let Some(items) = tree.as_array().filter(|items| items.iter().any(Value::is_object)) {
        return items.iter().for_each(|item| visit(item, prefix, see));
    }
    let Some(fields) = tree.as_object() else { return see(prefix, tree) };
    for (key, value) in fields {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        visit(value, &path, see);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RANGES: &Ranges = &[
        ("a", Range::of(1.0, 3.0)),
        ("b.c", Range::below(0.0, 1.0)),
        ("b.d", Range::above(0.0, 1.0).optional()),
    ];

    #[test]
    fn every_number_is_held_to_its_range() {
        let check = |tree| check_all(RANGES, &tree);
        assert_eq!(check(json!({"a": 3, "b": {"c": [0, 0.9], "d": null}, "e": "x"})), Ok(()));
        let message = |tree| check(tree).unwrap_err().to_string();
        assert_eq!(message(json!({"a": 4})), "a cannot be 4: it is from 1 to 3");
        assert_eq!(
            message(json!({"b": {"c": [0, 1]}})),
            "b.c cannot be 1: it is at least 0 and below 1"
        );
        assert_eq!(message(json!({"b": {"d": 0}})), "b.d cannot be 0: it is above 0 and at most 1");
        assert_eq!(message(json!({"a": f64::NAN})), "a cannot be infinite: it is from 1 to 3");
        assert_eq!(without_range(RANGES, &json!({"a": 1, "b": {"e": 2}, "f": [1]})), ["b.e", "f"]);
        assert!(message(json!({"b": [{"c": 0}, {"c": 7}]})).starts_with("b.c cannot be 7"));
    }
}
