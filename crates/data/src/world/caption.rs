//! Scenes in words.

use rand::{RngExt, seq::IndexedRandom};

use super::scene::{Object, Scene};

impl Scene {
    /// What the scene shows. The wording varies, from the scene's own seed.
    pub(super) fn caption(&self) -> String {
        let mut rng = self.seed.named("caption").rng();
        let Some(main) = self.main() else {
            let surface = ["a patterned surface", "nothing but texture", "an empty wall"];
            return (*surface.choose(&mut rng).expect("there are words")).to_owned();
        };
        let openings = ["", "a picture of ", "there is ", "this shows ", "look, "];
        let opening = openings.choose(&mut rng).expect("there are words");
        let subject = main.words(rng.random_bool(0.7), "large");
        let others: Vec<&Object> = self
            .objects
            .iter()
            .enumerate()
            .filter(|(i, _)| Some(*i) != self.main)
            .map(|(_, o)| o)
            .collect();
        let Some(other) = others.choose(&mut rng) else { return format!("{opening}{subject}") };
        let dx = main.centre[0] - other.centre[0];
        let dy = main.centre[1] - other.centre[1];
        let relation = match (dx.abs() > dy.abs(), dx > 0.0, dy > 0.0) {
            (true, true, _) => "to the right of",
            (true, false, _) => "to the left of",
            (false, _, true) => "below",
            (false, _, false) => "above",
        };
        match rng.random_range(0..4) {
            0 => format!("{opening}{subject}"),
            1 => format!("{opening}{subject} among {} small things", count(others.len())),
            2 => format!("{opening}{subject} and {}", other.words(false, "small")),
            _ => format!("{opening}{subject} {relation} {}", other.words(true, "small")),
        }
    }
}

impl Object {
    fn words(&self, texture: bool, size: &str) -> String {
        let texture = if texture { self.texture.name() } else { "" };
        let words = [size, texture, self.colour.name(), self.shape.name()];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        format!("a {}", words.join(" "))
    }
}

fn count(n: usize) -> &'static str {
    ["no", "one", "two", "three", "four", "five", "six"].get(n).copied().unwrap_or("many")
}
