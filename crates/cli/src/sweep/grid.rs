//! A grid: every combination of the values that settings are given.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// Points that a sweep trains at most; more is a slip of the fingers.
const MOST: usize = 1000;

/// A setting with one of its values, as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// Settings and the values that each of them takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    axes: Vec<(String, Vec<String>)>,
}

impl Grid {
    /// From `key=value,value`. A comma inside of brackets, braces or quotes belongs to a value, so `[1,2]` is
    /// one, and so is `"a,b"`.
    pub(crate) fn parse(settings: &[String]) -> Result<Self> {
        let mut axes: Vec<(String, Vec<String>)> = Vec::new();
        for setting in settings {
            let Some((key, text)) = setting.split_once('=') else {
                bail!(
                    "\"{setting}\" is not a setting: write key=value,value, as in \
                     optimiser.learning_rate=1e-4,1e-3"
                );
            };
            let key = key.trim().to_owned();
            if axes.iter().any(|(known, _)| *known == key) {
                bail!("{key} is given twice; write all of its values in one --set");
            }
            let mut values: Vec<String> = Vec::new();
            for value in split(text)
                .ok_or_else(|| anyhow::anyhow!("{setting}: a bracket or a quote is not closed"))?
            {
                if value.is_empty() {
                    bail!("{setting}: a value between two commas is missing");
                }
                if values.contains(&value) {
                    bail!("{setting}: {value} is there twice");
                }
                values.push(value);
            }
            axes.push((key, values));
        }
        let points =
            axes.iter().try_fold(1_usize, |points, (_, values)| points.checked_mul(values.len()));
        match points {
            Some(points) if points <= MOST => Ok(Self { axes }),
            _ => bail!("this grid has more than {MOST} points; take fewer values"),
        }
    }

    /// Every combination; the values of the last setting change fastest.
    pub(crate) fn points(&self) -> Vec<Vec<Value>> {
        let mut points: Vec<Vec<Value>> = vec![Vec::new()];
        for (key, values) in &self.axes {
            points = points
                .iter()
                .flat_map(|point| {
                    values.iter().map(|value| {
                        let last = Value { key: key.clone(), value: value.clone() };
                        point.iter().cloned().chain([last]).collect()
                    })
                })
                .collect();
        }
        points
    }

    /// What tells a point from the others, in words.
    pub(crate) fn label(&self, point: &[Value]) -> String {
        let varies = |one: &&Value| {
            self.axes.iter().any(|(key, values)| *key == one.key && values.len() > 1)
        };
        point.iter().filter(varies).map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn sets(&self, key: &str) -> bool {
        self.axes.iter().any(|(known, _)| known == key)
    }
}

/// Cuts at commas that are in nothing; nothing where a bracket or a quote stays open.
fn split(text: &str) -> Option<Vec<String>> {
    let mut values = vec![String::new()];
    let mut open: Vec<char> = Vec::new();
    let mut escaped = false;
    for symbol in text.chars() {
        let quote = open.last().copied().filter(|symbol| matches!(symbol, '"' | '\''));
        match symbol {
            ',' if open.is_empty() => {
                values.push(String::new());
                continue;
            }
            _ if escaped => {}
            _ if Some(symbol) == quote => _ = open.pop(),
            _ if quote.is_some() => {}
            '[' => open.push(']'),
            '{' => open.push('}'),
            '"' | '\'' => open.push(symbol),
            ']' | '}' if open.pop() != Some(symbol) => return None,
            _ => {}
        }
        // A string in single quotes has no escapes.
        escaped = symbol == '\\' && quote == Some('"') && !escaped;
        values.last_mut()?.push(symbol);
    }
    open.is_empty().then(|| values.iter().map(|value| value.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(settings: &[&str]) -> Result<Grid> {
        Grid::parse(&settings.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_grid_is_every_combination_and_the_last_setting_changes_fastest() {
        let grid = parse(&["a=1,2", "b=x", "c=3, 4,5"]).unwrap();
        let points: Vec<String> = grid
            .points()
            .iter()
            .map(|point| point.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(points.len(), 6);
        assert_eq!(points[..4], ["a=1 b=x c=3", "a=1 b=x c=4", "a=1 b=x c=5", "a=2 b=x c=3"]);
        assert_eq!(grid.label(&grid.points()[5]), "a=2, c=5");
        assert_eq!(parse(&[]).unwrap().points(), [vec![]], "the recipe as it is");
    }

    #[test]
    fn commas_inside_of_something_belong_to_a_value() {
        for (text, values) in [
            ("[24,32],[32,32]", vec!["[24,32]", "[32,32]"]),
            (r#""a,b",c"#, vec![r#""a,b""#, "c"]),
            (r#"'a,b',"c\",d""#, vec!["'a,b'", r#""c\",d""#]),
            ("[{ loss = \"z\", weight = 0.5 }],[]", vec!["[{ loss = \"z\", weight = 0.5 }]", "[]"]),
            ("a=b,c", vec!["a=b", "c"]),
        ] {
            assert_eq!(split(text).unwrap(), values);
        }
    }

    #[test]
    fn what_cannot_be_a_grid_says_why() {
        let many = format!("a={}", (0..40).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        let other = many.replacen('a', "b", 1);
        for (settings, part) in [
            (vec!["a"], "key=value"),
            (vec!["a=1,,2"], "missing"),
            (vec!["a="], "missing"),
            (vec!["a=1,2,"], "missing"),
            (vec!["a=1,1"], "twice"),
            (vec!["a=1", "a=2"], "given twice"),
            (vec!["a=[1,2"], "not closed"),
            (vec!["a=1]"], "not closed"),
            (vec!["a=\"x"], "not closed"),
            (vec![&many, &other], "more than 1000"),
        ] {
            let message = parse(&settings).unwrap_err().to_string();
            assert!(message.contains(part), "{settings:?}: {message}");
        }
    }
}
