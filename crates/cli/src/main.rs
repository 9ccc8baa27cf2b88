//! `omma`: vision mixtures of experts at the command line.

#![forbid(unsafe_code)]

mod class_subset;
mod commands;
mod device;
mod evals;
mod interrupt;
mod limits;
mod progress;
mod study;
mod subject;
mod table;
mod watch;

use std::{io::IsTerminal, process::ExitCode};

use clap::{Parser, Subcommand};
use omma_kernels::memory::Allocator;
use tracing_subscriber::EnvFilter;

/// Tensors come and go in every operation; this keeps their pages.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Vision mixtures of experts: train, evaluate, compare, predict, convert, upcycle, adapt, inspect.
#[derive(Parser)]
#[command(name = "omma", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    device: device::DeviceArguments,
    #[command(flatten)]
    limits: limits::LimitArguments,
}

#[derive(Subcommand)]
enum Command {
    Train(commands::train::Train),
    Recipes(commands::recipes::Recipes),
    Eval(commands::eval::Eval),
    #[command(name = "fewshot")]
    FewShot(commands::fewshot::FewShot),
    Predict(commands::predict::Predict),
    Compare(commands::compare::Compare),
    Study(commands::study::StudyCommand),
    Init(commands::init::Init),
    Cost(commands::cost::Cost),
    Convert(commands::convert::Convert),
    Upcycle(commands::upcycle::Upcycle),
    Adapt(commands::adapt::Adapt),
    Inspect(commands::inspect::Inspect),
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("OMMA_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| table::Stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .init();
    let arguments = Arguments::parse();
    arguments.limits.put();
    let device = arguments.device.open();
    let result = match arguments.command {
        Command::Train(command) => command.run(&device),
        Command::Recipes(command) => command.run(),
        Command::Eval(command) => command.run(&device),
        Command::FewShot(command) => command.run(&device),
        Command::Predict(command) => command.run(&device),
        Command::Compare(command) => command.run(&device),
        Command::Study(command) => command.run(),
        Command::Init(command) => command.run(&device),
        Command::Cost(command) => command.run(),
        Command::Convert(command) => command.run(&device),
        Command::Upcycle(command) => command.run(&device),
        Command::Adapt(command) => command.run(&device),
        Command::Inspect(command) => command.run(),
    };
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
