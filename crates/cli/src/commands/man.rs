//! `omma man`

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};
use omma_base::files::write_atomically;

use crate::{
    help::prose_and_examples,
    screen::Stdout,
    table::{note, say_json},
};

/// Write manual pages: omma(1) on standard output, or all of them into a folder.
///
/// Examples:
///   omma man | man -l -
///   omma man ~/.local/share/man/man1
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ManPages {
    /// The folder to write omma.1, omma-train.1 and so on to; it is made if it is not there
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    /// With DIR: print the names of the pages as a JSON list
    #[arg(long, requires = "folder")]
    json: bool,
}

impl ManPages {
    pub(crate) fn run(self) -> Result<()> {
        let pages = pages()?;
        let Some(folder) = self.folder else {
            let first = pages.first().map(|(_, page)| page.as_slice());
            return Ok(Stdout.write_all(first.unwrap_or_default())?);
        };
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut written = Vec::new();
        for (name, page) in &pages {
            let path = folder.join(name);
            write_atomically(&path, |file| fs::write(file, page))
                .with_context(|| path.display().to_string())?;
            written.push(path.display().to_string());
        }
        note(format!("{} pages in {}", written.len(), folder.display()));
        if self.json { say_json(&written) } else { Ok(()) }
    }
}

/// Names of files, and what is in them: that of the program first, then one per command.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut program = crate::command().disable_help_subcommand(true);
    program.build();
    let mut pages = vec![("omma.1".to_owned(), page(program.clone())?)];
    for command in program.get_subcommands() {
        let name = format!("omma-{}", command.get_name());
        pages.push((format!("{name}.1"), page(command.clone().display_name(name))?));
    }
    Ok(pages)
}

/// One page. Examples have a section of their own, whose lines are not joined.
fn page(command: Command) -> io::Result<Vec<u8>> {
    let (prose, examples) = prose_and_examples(&command);
    let commands = command.has_subcommands();
    let man = Man::new(command.long_about(prose));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if commands {
        man.render_subcommands_section(&mut page)?;
    }
    if !examples.is_empty() {
        let mut section = Roff::new();
        section.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in &examples {
            section.text([roman(line)]);
        }
        section.control("fi", []);
        section.to_writer(&mut page)?;
    }
    man.render_version_section(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_options_and_examples_line_by_line() {
        let pages = pages().unwrap();
        // roff writes a dash as \-.
        let text = |name: &str| {
            let (_, page) = pages.iter().find(|(file, _)| file == name).unwrap();
            String::from_utf8(page.clone()).unwrap().replace("\\-", "-").replace("\\*(Aq", "'")
        };
        let first = text("omma.1");
        let program = crate::command();
        assert_eq!(pages.len(), 1 + program.get_subcommands().count());
        for command in program.get_subcommands() {
            let name = format!("omma-{}", command.get_name());
            assert!(first.contains(&name), "{name} is on the first page");
            let page = text(&format!("{name}.1"));
            for option in command.get_arguments().filter_map(|option| option.get_long()) {
                assert!(page.contains(&format!("--{option}")), "{name} --{option}");
            }
            let (_, examples) = prose_and_examples(command);
            assert!(!examples.is_empty(), "{name}");
            for example in examples {
                let escaped = example.replace('\\', "\\\\");
                let lines = page.lines().any(|line| line == example || line == escaped);
                assert!(lines, "{name}: {example}\n{page}");
            }
        }
    }
}
