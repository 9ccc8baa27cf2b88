//! What the terminal shows.

use std::{
    collections::HashSet,
    io::{self, IsTerminal, Write},
    sync::{Mutex, PoisonError},
};

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use omma_base::text::visible;
use serde::Serialize;

use crate::screen::{self, Stderr, Stdout};

/// Writes lines to standard output, in which nobody's names can do anything to the terminal; a reader that
/// has gone away is an error like any other.
pub(crate) fn say(text: impl std::fmt::Display) -> anyhow::Result<()> {
    Ok(Stdout.write_all(format!("{}\n", visible(&text.to_string())).as_bytes())?)
}

/// Writes a result to standard output as other programs read it.
pub(crate) fn say_json(result: &impl Serialize) -> anyhow::Result<()> {
    say(serde_json::to_string_pretty(result)?)
}

/// Writes a message to standard error, beside results that another program may be reading; not with
/// --quiet.
pub(crate) fn note(text: impl std::fmt::Display) {
    if !screen::is_quiet() {
        speak(&text.to_string());
    }
}

/// The same, unless it was said before.
pub(crate) fn note_once(text: impl std::fmt::Display) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let text = text.to_string();
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.get_or_insert_default().insert(text.clone()) {
        note(text);
    }
}

fn speak(text: &str) {
    let _ = Stderr.write_all(format!("{}\n", visible(text)).as_bytes());
}

/// Writes the error and its causes in one line, each cause once: many messages have theirs in them.
pub(crate) fn complain(error: &anyhow::Error) {
    let mut line = "omma".to_owned();
    for cause in error.chain().map(ToString::to_string) {
        if !line.ends_with(&cause) {
            line += &format!(": {cause}");
        }
    }
    speak(&line);
}

/// Whether an error is only that nobody reads any more.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let pipe = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(pipe))
}

/// A table whose columns from the `numbers`-th on hold numbers, as wide as the terminal at most.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    numbers: usize,
) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    table_of(&header.map(str::to_owned), &rows, numbers)
}

/// The same with as many columns as there are.
pub(crate) fn table_of(header: &[String], rows: &[Vec<String>], numbers: usize) -> String {
    fitted(header, rows, numbers, width())
}

/// Columns of the terminal; without one, what `COLUMNS` says, or no limit.
fn width() -> Option<usize> {
    let terminal = || terminal_size::terminal_size().map(|(width, _)| width.0.into());
    let said = || std::env::var("COLUMNS").ok()?.trim().parse().ok().filter(|width| *width > 0);
    if io::stdout().is_terminal() { terminal().or_else(said) } else { said() }
}

/// A table that fits: what is too wide becomes several below each other, all with the first column.
fn fitted(header: &[String], rows: &[Vec<String>], numbers: usize, width: Option<usize>) -> String {
    let all: Vec<usize> = (0..header.len()).collect();
    let drawn = |columns: &[usize]| draw(header, rows, numbers, columns);
    let fits = |columns: &[usize]| {
        let widest = |table: &Table| table.lines().map(|line| line.chars().count()).max();
        width.is_none_or(|width| widest(&drawn(columns)) <= Some(width))
    };
    let mut parts: Vec<Vec<usize>> = Vec::new();
    for column in all {
        match parts.last_mut() {
            Some(part) if part.len() < 2 || fits(&[part.as_slice(), &[column]].concat()) => {
                part.push(column);
            }
            Some(_) => parts.push(vec![0, column]),
            None => parts.push(vec![column]),
        }
    }
    let part = |columns: &Vec<usize>| {
        let mut table = drawn(columns);
        if let Some(width) = width.filter(|_| !fits(columns)) {
            // Two columns that are too wide by themselves are wrapped.
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(width.try_into().unwrap_or(u16::MAX));
        }
        table.to_string()
    };
    parts.iter().map(part).collect::<Vec<String>>().join("\n")
}

fn draw(header: &[String], rows: &[Vec<String>], numbers: usize, columns: &[usize]) -> Table {
    let cell = |cells: &[String], column: usize| {
        let side = if column >= numbers { CellAlignment::Right } else { CellAlignment::Left };
        Cell::new(cells.get(column).map_or("", String::as_str)).set_alignment(side)
    };
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(columns.iter().map(|column| cell(header, *column)));
    for row in rows {
        table.add_row(columns.iter().map(|column| cell(row, *column)));
    }
    table
}

/// 1234567 as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut result = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            result.push(',');
        }
        result.push(digit);
    }
    result
}

/// 3725 seconds as `1h02m`, 125 as `2m05s`.
pub(crate) fn clock(seconds: f64) -> String {
    match seconds as u64 {
        seconds if seconds >= 3600 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{}m{:02}s", seconds / 60, seconds % 60),
    }
}

/// `24 images/s`; of what takes longer than a second, `2.5 s per step`.
pub(crate) fn rate(per_second: f64, unit: &str) -> String {
    match per_second {
        fast if fast >= 10.0 => format!("{fast:.0} {unit}s/s"),
        some if some >= 1.0 => format!("{some:.1} {unit}s/s"),
        slow if slow > 0.0 && 1.0 / slow < 100.0 => format!("{:.1} s per {unit}", 1.0 / slow),
        slow if slow > 0.0 => format!("{:.0} s per {unit}", 1.0 / slow),
        _ => format!("no {unit} yet"),
    }
}

/// 22056192 as `22.06 M`.
pub(crate) fn short(number: u64) -> String {
    let number = number as f64;
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")];
    match units.into_iter().find(|(unit, _)| number >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", number / unit),
        None => format!("{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_becomes_several_that_fit() {
        let header: Vec<String> = (0..9).map(|column| format!("column {column}")).collect();
        let row = |name: &str| -> Vec<String> {
            (0..9).map(|column| format!("{name} in {column}")).collect()
        };
        let rows = [row("one"), row("another")];
        let table = fitted(&header, &rows, 1, Some(80));
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert_eq!(
            table.matches("another in 0").count(),
            2,
            "the first column comes again: {table}"
        );
        for column in 1..9 {
            assert_eq!(table.matches(&format!("another in {column}")).count(), 1, "{table}");
        }
        assert_eq!(fitted(&header, &rows, 1, None).matches("another in 0").count(), 1);
        // A name that is too long for any table is wrapped.
        let long = [vec!["a system with a very long name".repeat(5), "0.5".to_owned()]];
        let table = fitted(&header[..2], &long, 1, Some(40));
        assert!(table.lines().all(|line| line.chars().count() <= 40), "{table}");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!([grouped(0), grouped(999), grouped(22_056_192)], ["0", "999", "22,056,192"]);
        assert_eq!([short(12), short(6_124_000_000)], ["12", "6.12 G"]);
        assert_eq!([clock(3725.9), clock(125.0)], ["1h02m", "2m05s"]);
        let rates = [1234.5, 23.7, 3.12, 0.4, 0.002].map(|per_second| rate(per_second, "image"));
        let expected =
            ["1234 images/s", "24 images/s", "3.1 images/s", "2.5 s per image", "500 s per image"];
        assert_eq!(rates, expected);
    }
}
