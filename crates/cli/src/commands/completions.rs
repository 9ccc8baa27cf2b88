//! `omma completions`

use std::io::Write;

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;

use crate::screen::Stdout;

/// Write the words that a shell completes after `omma`.
///
/// Where a shell looks for them is in docs/commands.md.
///
/// Examples:
///   omma completions bash > ~/.local/share/bash-completion/completions/omma
///   omma completions zsh > ~/.zfunc/_omma
///   omma completions fish > ~/.config/fish/completions/omma.fish
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<()> {
        Ok(Stdout.write_all(&script(self.shell))?)
    }
}

/// What a shell reads.
fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::command(), "omma", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_command_and_its_options_are_in_every_shells_words() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            for command in crate::command().get_subcommands() {
                let name = command.get_name();
                assert!(script.contains(name), "{shell}: {name}");
                for option in command.get_arguments().filter_map(|option| option.get_long()) {
                    assert!(script.contains(option), "{shell}: {name} --{option}");
                }
            }
        }
    }
}
