//! What a text model is asked about a class: its name in several sentences.

use std::{fs, path::Path};

use crate::error::{EvalError, Result};

/// Sentences with a place for a class's name, `{}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Templates(Vec<String>);

/// The place.
const PLACE: &str = "{}";

/// Plain sentences about one thing in a picture.
const BUILTIN: [&str; 8] = [
    "{}",
    "a {}",
    "a picture of a {}",
    "a picture with a {} in it",
    "an image that shows a {}",
    "here is a {}",
    "a drawing of a {}",
    "one {}, and little else",
];

impl Default for Templates {
    fn default() -> Self {
        Self(BUILTIN.map(str::to_owned).to_vec())
    }
}

impl Templates {
    /// One per line; empty lines are none.
    ///
    /// - `source`: what the text is called in messages
    pub fn parse(text: &str, source: &Path) -> Result<Self> {
        let wrong = |why: String| EvalError::Record { path: source.to_owned(), why };
        let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
        let mut templates = Vec::new();
        for (place, line) in lines {
            if !line.contains(PLACE) {
                let why = format!("line {} has no {PLACE} for the name of a class", place + 1);
                return Err(wrong(why));
            }
            templates.push(line.to_owned());
        }
        match templates.is_empty() {
            true => Err(wrong("has no templates, such as \"a picture of a {}\"".to_owned())),
            false => Ok(Self(templates)),
        }
    }

    /// A file of them.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&fs::read_to_string(path).map_err(EvalError::io(path))?, path)
    }

    /// How many there are, at least one.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them.
    pub fn lines(&self) -> &[String] {
        &self.0
    }

    /// Each with the name of a class in its place, `a` or `an` before it.
    pub fn prompts(&self, class: &str) -> Vec<String> {
        let name = spoken(class);
        self.0.iter().map(|template| filled(template, &name)).collect()
    }
}

/// A class's name in words: `Welsh_springer_spaniel` is `Welsh springer spaniel`.
pub fn spoken(class: &str) -> String {
    class.replace('_', " ").split_whitespace().collect::<Vec<&str>>().join(" ")
}

/// Whether names are nothing but numbers, which say nothing of what they are of.
pub fn are_numbers(classes: &[String]) -> bool {
    let is_number = |name: &String| !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
    classes.iter().all(is_number)
}

/// - `name`: in words
fn filled(template: &str, name: &str) -> String {
    let article = if sounds_open(name) { "an" } else { "a" };
    let mut parts = template.split(PLACE);
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let words = filled.trim_end();
        let last = words.rsplit(char::is_whitespace).next().unwrap_or_default();
        if ["a", "an"].contains(&last) && words.len() < filled.len() {
            filled.truncate(words.len() - last.len());
            filled += article;
            filled.push(' ');
        }
        filled = filled + name + part;
    }
    filled
}

/// Whether a word takes `an`, by its letters: vowels do, but for a `u` that is spoken as in "unit" and an `o` as
/// in "one"; a silent `h` does too.
fn sounds_open(word: &str) -> bool {
    let word = word.to_lowercase();
    let begins = |with: &[&str]| with.iter().any(|start| word.starts_with(start));
    match word.chars().next() {
        Some('a' | 'e' | 'i' | 'o' | 'u') => !begins(&["uni", "use", "uku", "eu", "ewe", "one"]),
        Some('h') => begins(&["hour", "honest", "honour", "honor", "heir"]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_put_into_sentences() {
        let templates = Templates::parse("a photo of a {}\n\n {}, an {} \r\nspa {}", "x".as_ref());
        let templates = templates.unwrap();
        assert_eq!(templates.len(), 3);
        assert_eq!(
            templates.prompts("red__fox "),
            ["a photo of a red fox", "red fox, a red fox", "spa red fox"]
        );
        assert_eq!(templates.prompts("owl")[..2], ["a photo of an owl", "owl, an owl"]);
    }

    #[test]
    fn articles_go_by_the_first_letters() {
        let said = |name: &str| Templates(vec!["a {}".to_owned()]).prompts(name).remove(0);
        assert_eq!(said("Airedale"), "an Airedale");
        assert_eq!(said("hourglass"), "an hourglass");
        for name in ["unicycle", "horse", "ukulele", "dog", "éclair", ""] {
            assert_eq!(said(name), format!("a {name}"));
        }
    }

    #[test]
    fn every_built_in_sentence_has_room_for_a_name() {
        let templates = Templates::default();
        assert_eq!(templates.len(), 8);
        let prompts = templates.prompts("apple");
        assert!(prompts.iter().all(|prompt| prompt.contains("apple") && !prompt.contains(PLACE)));
        assert!(prompts.iter().all(|prompt| !prompt.contains("a apple")), "{prompts:?}");
        let distinct: std::collections::BTreeSet<&String> = prompts.iter().collect();
        assert_eq!(distinct.len(), 8);
    }

    #[test]
    fn a_line_without_a_place_is_named() {
        let wrong = |text: &str| Templates::parse(text, "t.txt".as_ref()).unwrap_err().to_string();
        assert_eq!(wrong("a {}\n\na photo"), "t.txt: line 3 has no {} for the name of a class");
        assert!(wrong(" \n").contains("has no templates"));
    }

    #[test]
    fn numbers_are_no_names() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(are_numbers(&names(&["0", "1", "12"])));
        assert!(!are_numbers(&names(&["0", "one"])) && !are_numbers(&names(&["cat", ""])));
    }
}
