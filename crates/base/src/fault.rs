//! Faults that tests inject into debug builds at named points: the process is killed or asked to
//! stop, or the disk is full.
//!
//! The environment variable `OMMA_FAULT` holds `ACTION:COUNT:POINT`. The action takes place when the
//! point is reached for the `COUNT`th time; `full` lasts from then on. Actions:
//!
//! | action | effect |
//! |---|---|
//! | `kill` | the process ends as if by `kill -9` |
//! | `term` | the process gets `SIGTERM` and continues |
//! | `full` | the point fails with [`io::ErrorKind::StorageFull`] |
//!
//! Files that are written atomically have the points `NAME:create`, `NAME:rename` and `NAME:done`.
//! Release builds ignore the variable.

use std::io;

/// Marks a place where a test can inject a fault.
///
/// Fails only if a test fills the disk here. Does nothing in release builds.
#[cfg(all(debug_assertions, unix))]
pub fn point(name: &str) -> io::Result<()> {
    injected::point(name)
}

/// Marks a place where a test can inject a fault.
#[cfg(not(all(debug_assertions, unix)))]
pub fn point(_: &str) -> io::Result<()> {
    Ok(())
}

#[cfg(all(debug_assertions, unix))]
mod injected {
    use std::{
        io,
        sync::{
            LazyLock,
            atomic::{AtomicU64, Ordering},
        },
    };

    use rustix::process::{Signal, getpid, kill_process};

    enum Action {
        Kill,
        Terminate,
        FillDisk,
    }

    struct Fault {
        action: Action,
        count: u64,
        point: String,
        reached: AtomicU64,
    }

    static FAULT: LazyLock<Option<Fault>> = LazyLock::new(|| {
        let text = std::env::var("OMMA_FAULT").ok()?;
        let fault = parse(&text);
        assert!(fault.is_some(), "OMMA_FAULT must be ACTION:COUNT:POINT, got {text:?}");
        fault
    });

    fn parse(text: &str) -> Option<Fault> {
        let (action, rest) = text.split_once(':')?;
        let (count, point) = rest.split_once(':')?;
        let action = match action {
            "kill" => Action::Kill,
            "term" => Action::Terminate,
            "full" => Action::FillDisk,
            _ => return None,
        };
        let count = count.parse().ok()?;
        Some(Fault { action, count, point: point.to_owned(), reached: AtomicU64::new(0) })
    }

    pub(super) fn point(name: &str) -> io::Result<()> {
        let Some(fault) = FAULT.as_ref().filter(|fault| fault.point == name) else {
            return Ok(());
        };
        let reached = fault.reached.fetch_add(1, Ordering::Relaxed) + 1;
        match fault.action {
            Action::FillDisk if reached >= fault.count => Err(io::ErrorKind::StorageFull.into()),
            Action::Kill if reached == fault.count => Ok(kill_process(getpid(), Signal::KILL)?),
            Action::Terminate if reached == fault.count => {
                Ok(kill_process(getpid(), Signal::TERM)?)
            }
            _ => Ok(()),
        }
    }
}
