//! `omma`: vision mixtures of experts at the command line.

#![forbid(unsafe_code)]

mod beside;
mod class_subset;
mod commands;
mod device;
mod evals;
mod evaluation_table;
mod help;
mod interrupt;
mod jobs;
mod lighter;
mod limits;
mod names;
mod precision;
mod predict;
mod progress;
mod ranks;
mod resolution;
mod screen;
mod search;
mod serve;
mod study;
mod subject;
mod subset;
mod sweep;
mod table;
mod watch;
mod zero_shot;

use std::{io::IsTerminal, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use omma_kernels::memory::Allocator;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// Tensors come and go in every operation; this keeps their pages.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Vision mixtures of experts: train, evaluate, compare, predict, search, serve, convert, upcycle, adapt, average,
/// prune, thin, inspect.
#[derive(Parser)]
#[command(name = "omma", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// No progress and no notes, only errors and results
    #[arg(long, short, global = true, overrides_with = "quiet")]
    quiet: bool,
    #[command(flatten)]
    device: device::DeviceArguments,
    #[command(flatten)]
    limits: limits::LimitArguments,
}

#[derive(Subcommand)]
enum Command {
    Train(commands::train::Train),
    Recipes(commands::recipes::Recipes),
    Eval(Box<commands::eval::Eval>),
    #[command(name = "fewshot")]
    FewShot(commands::fewshot::FewShot),
    Routes(commands::routes::RoutesCommand),
    Look(commands::look::LookCommand),
    Predict(commands::predict::Predict),
    Embed(commands::embed::Embed),
    Search(commands::search::Search),
    Serve(commands::serve::Serve),
    Probe(commands::probe::Probe),
    Compare(commands::compare::Compare),
    Study(commands::study::StudyCommand),
    Sweep(commands::sweep::Sweep),
    Init(commands::init::Init),
    Cost(commands::cost::Cost),
    Plan(commands::plan::PlanCommand),
    Convert(commands::convert::Convert),
    Upcycle(commands::upcycle::Upcycle),
    Adapt(commands::adapt::Adapt),
    Soup(commands::soup::Soup),
    Prune(commands::prune::Prune),
    Thin(commands::thin::Thin),
    Inspect(commands::inspect::Inspect),
    Devices(commands::devices::Devices),
    Completions(commands::completions::Completions),
    Man(commands::man::ManPages),
}

/// Everything that can be typed.
fn command() -> clap::Command {
    help::flowing(Arguments::command())
}

fn main() -> ExitCode {
    let matches = command().get_matches();
    let name = matches.subcommand_name().unwrap_or_default().to_owned();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    screen::set_quiet(arguments.quiet);
    let usual = if arguments.quiet { tracing::Level::ERROR } else { tracing::Level::WARN };
    // `OMMA_LOG` is a level, or levels by crate: `info`, `omma_train=debug,warn`.
    let asked = std::env::var("OMMA_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| screen::Stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false);
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(usual));
    tracing_subscriber::registry().with(filter).with(lines).init();
    arguments.limits.put();
    arguments.device.put();
    let shares =
        matches!(&arguments.command, Command::Train(_) | Command::Eval(_) | Command::Routes(_));
    let alone = if shares { Ok(()) } else { ranks::expect_one(&name) };
    let result = alone.and_then(|()| run(arguments.command, &arguments.device));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(error) if table::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            table::complain(&error);
            error.downcast_ref().map_or(ExitCode::FAILURE, interrupt::Interrupted::exit_code)
        }
    }
}

/// A device is opened by commands that compute, and by no others.
fn run(command: Command, device: &device::DeviceArguments) -> anyhow::Result<()> {
    match command {
        Command::Train(command) => command.run(&device.open()?),
        Command::Recipes(command) => command.run(),
        Command::Eval(command) => command.run(&device.open()?),
        Command::FewShot(command) => command.run(&device.open()?),
        Command::Routes(command) => command.run(&device.open()?),
        Command::Look(command) => command.run(&device.open()?),
        Command::Predict(command) => command.run(&device.open()?),
        Command::Embed(command) => command.run(&device.open()?),
        Command::Search(command) => command.run(&device.open()?),
        Command::Serve(command) => command.run(&device.open()?),
        Command::Probe(command) => command.run(&device.open()?),
        Command::Compare(command) => command.run(&device.open()?),
        Command::Study(command) => device.check().and_then(|()| command.run()),
        Command::Sweep(command) => device.check().and_then(|()| command.run()),
        Command::Init(command) => command.run(&device.open()?),
        Command::Cost(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Convert(command) => command.run(&device.open()?),
        Command::Upcycle(command) => command.run(&device.open()?),
        Command::Adapt(command) => command.run(&device.open()?),
        Command::Soup(command) => command.run(&device.open()?),
        Command::Prune(command) => command.run(&device.open()?),
        Command::Thin(command) => command.run(&device.open()?),
        Command::Inspect(command) => command.run(),
        Command::Devices(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands whose output is for people or shells alone.
    const WITHOUT_RESULTS: [&str; 1] = ["completions"];

    #[test]
    fn every_command_that_prints_results_prints_them_as_json_too() {
        for command in command().get_subcommands() {
            let json = command.get_arguments().any(|option| option.get_long() == Some("json"));
            let name = command.get_name();
            assert_eq!(json, !WITHOUT_RESULTS.contains(&name), "{name}");
        }
    }

    #[test]
    fn every_command_takes_quiet() {
        let mut all = command();
        all.build();
        for command in all.get_subcommands().filter(|command| command.get_name() != "help") {
            let quiet = command.get_arguments().find(|option| option.get_long() == Some("quiet"));
            assert_eq!(
                quiet.and_then(|quiet| quiet.get_short()),
                Some('q'),
                "{}",
                command.get_name()
            );
        }
    }

    #[test]
    fn every_help_has_an_example_of_its_command_and_fits_eighty_columns() {
        let mut all = command().term_width(80);
        all.build();
        for command in all.get_subcommands_mut() {
            let name = command.get_name().to_owned();
            if name == "help" {
                continue;
            }
            let (_, examples) = help::prose_and_examples(command);
            let own = format!("  omma {name}");
            assert!(examples.iter().any(|line| line.starts_with(&own)), "{name}: {examples:?}");
            let text = command.render_long_help().to_string();
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
            for example in examples {
                assert!(text.lines().any(|line| line == example), "{name}: {example}");
            }
        }
    }
}
