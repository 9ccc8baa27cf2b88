//! Names of folders, and words of commands, from what users call things.

/// Letters, digits and dashes.
pub(crate) fn slug(text: &str) -> String {
    let plain = |symbol: char| if symbol.is_ascii_alphanumeric() { symbol } else { '-' };
    let text: String = text.to_lowercase().replace('³', "3").chars().map(plain).collect();
    let parts: Vec<&str> = text.split('-').filter(|part| !part.is_empty()).collect();
    parts.join("-")
}

/// A word as a shell takes it back.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |symbol: char| symbol.is_ascii_alphanumeric() || "-_./=:,+@%".contains(symbol);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A command of this program that can be typed.
pub(crate) fn command(arguments: &[String]) -> String {
    arguments.iter().fold("omma".to_owned(), |line, word| line + " " + &quoted(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_letters_digits_and_dashes() {
        assert_eq!(slug("E³ (K=1, M=2)"), "e3-k-1-m-2");
        assert_eq!(slug("learning_rate=1e-4"), "learning-rate-1e-4");
    }

    #[test]
    fn a_shell_takes_words_back() {
        assert_eq!(quoted("train.steps=5"), "train.steps=5");
        assert_eq!(quoted("my photos"), "'my photos'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("x=[1,2]"), "'x=[1,2]'");
        assert_eq!(quoted(""), "''");
    }
}
