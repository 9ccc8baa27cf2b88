//! Text: escaping, estimated widths, and numbers as people read them.

/// Text for XML and HTML, in elements and in attributes. What XML cannot hold becomes `U+FFFD`.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for symbol in text.chars() {
        match symbol {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' | '\r' => escaped.push(symbol),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            _ => escaped.push(symbol),
        }
    }
    escaped
}

/// The width of text in a common sans-serif face, on the generous side.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    let em = |symbol: char| match symbol {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.3,
        'f' | 't' | 'r' | ' ' | '(' | ')' | '-' | '/' => 0.38,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.9,
        'A'..='Z' => 0.7,
        '0'..='9' => 0.64,
        '\u{1100}'..'\u{1200}' | '\u{2e80}'.. => 1.05,
        _ => 0.58,
    };
    size * text.chars().map(em).sum::<f64>()
}

/// Text that fits the room, with an ellipsis for what does not.
pub(crate) fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut kept = String::new();
    for symbol in text.chars() {
        kept.push(symbol);
        if width(&kept, size) + width("…", size) > room {
            kept.pop();
            break;
        }
    }
    format!("{}…", kept.trim_end())
}

/// Words over at most `most` lines that fit the room; the last line takes the ellipsis.
pub(crate) fn wrap(text: &str, size: f64, room: f64, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line, size) + width(" ", size) + width(word, size) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    if lines.len() > most {
        let rest = lines.split_off(most - 1).join(" ");
        lines.push(rest);
    }
    lines.iter().map(|line| fit(line, size, room)).collect()
}

/// A value to four significant digits.
pub(crate) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !(1e-4..1e15).contains(&magnitude) {
        signed(&format!("{value:.2e}"))
    } else if magnitude >= 1000.0 {
        decimals(value, usize::from(magnitude < 1e4 && value.fract() != 0.0))
    } else {
        let digits = 3 - magnitude.log10().floor() as i32;
        let text = decimals(value, digits.max(0) as usize);
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    }
}

/// A value with a fixed number of decimals and a true minus sign.
pub(crate) fn decimals(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let zero = text.trim_start_matches('-').chars().all(|symbol| matches!(symbol, '0' | '.'));
    signed(if zero { text.trim_start_matches('-') } else { &text })
}

/// The text of a number with `−` for every hyphen.
pub(crate) fn signed(text: &str) -> String {
    text.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_escapes_as_markup() {
        assert_eq!(escape("<a href=\"'\">&\0"), "&lt;a href=&quot;&#39;&quot;&gt;&amp;\u{fffd}");
    }

    #[test]
    fn long_text_is_cut_or_wrapped() {
        assert_eq!(fit("short", 10.0, 100.0), "short");
        let cut = fit("a very long label indeed", 10.0, 60.0);
        assert!(cut.ends_with('…') && width(&cut, 10.0) <= 60.0, "{cut}");
        assert_eq!(fit("wide", 10.0, 1.0), "…");
        assert_eq!(wrap("one two", 10.0, 200.0, 2), ["one two"]);
        let lines = wrap("one two three four five six", 10.0, 60.0, 2);
        assert!(lines.len() == 2 && lines[1].ends_with('…'), "{lines:?}");
    }

    #[test]
    fn numbers_are_short() {
        let read = [0.0, 0.93756, 12.0, -1234.5, 250_000.0, 1e-7].map(number);
        assert_eq!(read, ["0", "0.9376", "12", "−1234.5", "250000", "1.00e−7"]);
        assert_eq!(decimals(-0.001, 1), "0.0");
    }
}
