//! How long a parser takes.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, Once, PoisonError},
    time::{Duration, Instant},
};

/// No input may take longer.
pub const SLOWEST: Duration = Duration::from_secs(10);
/// No input may make a parser hold more; the program that runs targets sets its allocator to it.
pub const MOST_MEMORY: usize = 2 << 30;

static ALONE: Mutex<()> = Mutex::new(());
static RUNNING: Mutex<Option<(Instant, PathBuf)>> = Mutex::new(None);
static WATCHDOG: Once = Once::new();

/// Targets run one after the other, so that memory and time are those of one.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn running() -> MutexGuard<'static, Option<(Instant, PathBuf)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A parser at work.
pub(super) struct Watched {
    began: Instant,
}

/// Begins to watch a parser; one that hangs ends the process, with its input kept and named.
pub(super) fn begin(file: &Path) -> Watched {
    WATCHDOG.call_once(|| drop(std::thread::spawn(watch)));
    let began = Instant::now();
    *running() = Some((began, file.to_owned()));
    Watched { began }
}

impl Watched {
    /// It came to an end; whether in time.
    pub(super) fn end(self) -> Result<(), String> {
        *running() = None;
        match self.began.elapsed() {
            spent if spent > SLOWEST => Err(format!("it took {spent:.1?}")),
            _ => Ok(()),
        }
    }
}

#[expect(clippy::print_stderr, reason = "the process is about to end")]
fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let hung = running().clone().filter(|(began, _)| began.elapsed() > 3 * SLOWEST);
        if let Some((_, file)) = hung {
            let kept = super::keep(&file, "hangs");
            eprintln!("a parser hangs: {}", kept.display());
            std::process::abort();
        }
    }
}
