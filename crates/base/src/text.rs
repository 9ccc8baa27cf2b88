//! Names that somebody else chose, as they are shown.

use std::borrow::Cow;

/// A text in which nothing can move the cursor, colour the screen or end the line: control characters
/// but for line breaks and tabs are written as `\u001b`, which is what JSON means by it too.
pub fn visible(text: &str) -> Cow<'_, str> {
    let hidden = |symbol: char| symbol.is_control() && !matches!(symbol, '\n' | '\t');
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for symbol in text.chars() {
        match hidden(symbol) {
            true => shown += &format!("\\u{:04x}", u32::from(symbol)),
            false => shown.push(symbol),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        assert_eq!(visible("a\u{1b}[31mred\u{9b}1m\u{7f}"), "a\\u001b[31mred\\u009b1m\\u007f");
        assert_eq!(visible("é\n\tß"), "é\n\tß");
    }
}
