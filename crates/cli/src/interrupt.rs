//! Ctrl-C and its relatives, for commands that have something to save.

use std::{
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::Result;
use omma_train::Stop;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

/// Lets signals ask the command to stop instead of ending it; a second one ends it at once.
pub(crate) fn on_signals() -> Result<Stop> {
    let stop = Stop::default();
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, code(signal).into(), asked.clone())?;
        flag::register(signal, asked.clone())?;
        flag::register_usize(signal, stop.place(), signal.unsigned_abs() as usize)?;
    }
    Ok(stop)
}

/// As shells have it: 128 and the signal's number, so 130 for Ctrl-C and 143 for SIGTERM.
fn code(signal: i32) -> u8 {
    128 + signal.unsigned_abs() as u8
}

/// A command that was stopped by a signal and says how to go on. `omma train && next` does not go on.
#[derive(Debug)]
pub(crate) struct Interrupted {
    signal: usize,
    how_to_go_on: String,
}

impl Interrupted {
    pub(crate) fn new(stop: &Stop, how_to_go_on: String) -> Self {
        Self { signal: stop.why().unwrap_or(SIGINT.unsigned_abs() as usize), how_to_go_on }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(code(self.signal as i32))
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.how_to_go_on)
    }
}

impl std::error::Error for Interrupted {}
