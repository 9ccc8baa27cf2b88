//! Help as it is read: prose that flows to the width of the terminal, examples line by line.

use clap::Command;

/// Where examples begin.
const EXAMPLES: [&str; 2] = ["Examples:", "Example:"];

/// A command, and all below it, whose paragraphs are lines that the terminal breaks.
pub(crate) fn flowing(command: Command) -> Command {
    let about = command.get_long_about().map(|about| flow(&about.to_string()));
    let command = match about {
        Some(about) => command.long_about(about),
        None => command,
    };
    command.mut_subcommands(flowing)
}

/// Joins the lines of a paragraph; what is indented stays as it is.
fn flow(text: &str) -> String {
    let mut flowing = String::new();
    let mut open = false;
    for line in text.lines() {
        let prose = !line.is_empty() && !line.starts_with(' ');
        if !flowing.is_empty() {
            flowing.push(if open && prose { ' ' } else { '\n' });
        }
        flowing += line;
        open = prose && !EXAMPLES.contains(&line);
    }
    flowing
}

/// What a command says of itself, and the lines of its examples.
pub(crate) fn prose_and_examples(command: &Command) -> (String, Vec<String>) {
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let lines: Vec<&str> = about.lines().collect();
    let cut = lines.iter().position(|line| EXAMPLES.contains(line)).unwrap_or(lines.len());
    let examples = lines.iter().skip(cut + 1).map(|line| line.trim_end().to_owned());
    (lines[..cut].join("\n").trim_end().to_owned(), examples.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_flow_and_examples_do_not() {
        let text =
            "One\n\nA paragraph\nof two lines.\n\nExamples:\n  omma a\n  omma b \\\n      --c";
        let flown =
            "One\n\nA paragraph of two lines.\n\nExamples:\n  omma a\n  omma b \\\n      --c";
        assert_eq!(flow(text), flown);
        let (prose, examples) = prose_and_examples(&Command::new("a").long_about(flown));
        assert_eq!(prose, "One\n\nA paragraph of two lines.");
        assert_eq!(examples, ["  omma a", "  omma b \\", "      --c"]);
    }
}
