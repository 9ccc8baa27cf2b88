//! What is under way, as it is seen on standard error: a bar on a terminal, plain lines elsewhere.
//!
//! A thread of its own shows it, so that nothing that takes long has to remember to. Everything else that
//! the program writes goes through here too, and so never into the middle of a bar.

use std::{
    io::{self, IsTerminal, Write},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use omma_base::text::visible;

use crate::table::{clock, grouped, rate};

/// What takes longer than this is worth a first line.
const SOON: Duration = Duration::from_secs(2);
/// Between two lines about the same. Nothing is silent for more than five seconds.
const EVERY: Duration = Duration::from_secs(4);
/// What is done before is never seen as a bar.
const FLICKER: Duration = Duration::from_millis(300);
/// Between two looks.
const TICK: Duration = Duration::from_millis(100);

static SCREEN: LazyLock<Mutex<Screen>> = LazyLock::new(|| {
    Mutex::new(Screen {
        quiet: false,
        ticking: false,
        number: 0,
        tasks: Vec::new(),
        bar: None,
        spoke: Instant::now(),
    })
});

struct Screen {
    quiet: bool,
    /// Whether the thread that shows tasks is running.
    ticking: bool,
    /// Of the newest task.
    number: u64,
    /// What is under way; the last one is part of the one before.
    tasks: Vec<Task>,
    bar: Option<ProgressBar>,
    /// When something was last written.
    spoke: Instant,
}

fn screen() -> MutexGuard<'static, Screen> {
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves progress and notes out, or not.
pub(crate) fn set_quiet(quiet: bool) {
    screen().quiet = quiet;
}

/// Whether progress and notes are left out.
pub(crate) fn is_quiet() -> bool {
    screen().quiet
}

/// Writes something without getting into the bar.
pub(crate) fn beside<T>(write: impl FnOnce() -> T) -> T {
    let mut screen = screen();
    screen.spoke = Instant::now();
    match &screen.bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Standard error for messages: where nobody listens or nothing fits, the work goes on without them.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        beside(|| {
            let _ = io::stderr().lock().write_all(bytes);
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard output for results.
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        beside(|| io::stdout().lock().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }
}

/// Something that takes time, from now until it is dropped.
pub(crate) struct Activity {
    number: u64,
}

/// What an activity is at.
struct Task {
    number: u64,
    what: String,
    /// What is counted, in the singular; nothing where nothing is.
    unit: &'static str,
    done: u64,
    total: u64,
    /// How many were done when it began.
    before: u64,
    began: Instant,
    /// What else there is to say.
    detail: String,
    /// Whether a line was written about it.
    shown: bool,
}

impl Activity {
    /// Something that nobody counts, such as "reading small/".
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self::add_task(Task::new(what.into(), "", 0, 0))
    }

    /// Something of so many, with some of them done.
    pub(crate) fn counted(
        what: impl Into<String>,
        unit: &'static str,
        done: u64,
        total: u64,
    ) -> Self {
        Self::add_task(Task::new(what.into(), unit, done, total))
    }

    fn add_task(task: Task) -> Self {
        let mut screen = screen();
        screen.number += 1;
        let number = screen.number;
        screen.tasks.push(Task { number, ..task });
        if !screen.ticking && !screen.quiet {
            screen.ticking = true;
            // Without a thread to spare, nothing is shown.
            let _ = std::thread::Builder::new().name("progress".to_owned()).spawn(tick);
        }
        Self { number }
    }

    /// Goes on with something else.
    pub(crate) fn turn_to(&self, what: &str, unit: &'static str, total: u64) {
        self.change(|task| {
            *task = Task { number: task.number, ..Task::new(what.to_owned(), unit, 0, total) };
        });
    }

    /// So many more are done.
    pub(crate) fn add(&self, done: u64) {
        self.change(|task| task.done += done);
    }

    /// So many are done, and this is how it goes.
    pub(crate) fn reach(&self, done: u64, detail: Option<String>) {
        self.change(|task| {
            task.done = done;
            task.detail = detail.unwrap_or_else(|| std::mem::take(&mut task.detail));
        });
    }

    fn change(&self, change: impl FnOnce(&mut Task)) {
        if let Some(task) = screen().tasks.iter_mut().find(|task| task.number == self.number) {
            change(task);
        }
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        let mut screen = screen();
        screen.tasks.retain(|task| task.number != self.number);
        if screen.tasks.is_empty()
            && let Some(bar) = screen.bar.take()
        {
            bar.finish_and_clear();
        }
    }
}

/// Shows the innermost task again and again.
fn tick() {
    let terminal = io::stderr().is_terminal();
    loop {
        std::thread::sleep(TICK);
        let mut screen = screen();
        let Screen { tasks, bar, spoke, .. } = &mut *screen;
        let Some(task) = tasks.last_mut() else { continue };
        if terminal {
            if bar.is_some() || task.began.elapsed() > FLICKER {
                task.draw(bar.get_or_insert_with(|| ProgressBar::new(0)));
            }
        } else if task.is_due(spoke.elapsed()) {
            task.shown = true;
            let _ = writeln!(io::stderr().lock(), "{}", visible(&task.line()));
            *spoke = Instant::now();
        }
    }
}

impl Task {
    fn new(what: String, unit: &'static str, done: u64, total: u64) -> Self {
        let (began, detail) = (Instant::now(), String::new());
        Self { number: 0, what, unit, done, total, before: done, began, detail, shown: false }
    }

    fn is_due(&self, silent: Duration) -> bool {
        silent >= if self.shown { EVERY } else { SOON }
    }

    /// As a line of its own.
    fn line(&self) -> String {
        match self.total {
            0 => self.uncounted(),
            total => {
                let places = format!("{}/{}", grouped(self.done), grouped(total));
                match self.detail.is_empty() {
                    true => format!("{}: {places}{}", self.what, self.pace()),
                    false => format!("{} {places}  {}", self.what, self.detail),
                }
            }
        }
    }

    fn uncounted(&self) -> String {
        format!("{} … {}", self.what, clock(self.began.elapsed().as_secs_f64()))
    }

    /// `, 24 images/s, 0m37s left`; nothing before the first is done.
    fn pace(&self) -> String {
        let (done, seconds) = (self.done.saturating_sub(self.before), self.began.elapsed());
        if done == 0 || seconds.is_zero() {
            return String::new();
        }
        let pace = done as f64 / seconds.as_secs_f64();
        let left = clock(self.total.saturating_sub(self.done) as f64 / pace);
        format!(", {}, {left} left", rate(pace, self.unit))
    }

    /// The bar's template and its message: without a count there is no bar, but something that turns.
    fn bar(&self) -> (&'static str, String) {
        let counted = "{bar:24} {pos}/{len}  {msg}";
        match self.total {
            0 => ("{spinner} {msg}", self.uncounted()),
            _ if self.detail.is_empty() => (counted, format!("{}{}", self.what, self.pace())),
            _ => (counted, self.detail.clone()),
        }
    }

    fn draw(&self, bar: &ProgressBar) {
        let (template, message) = self.bar();
        // Its look comes last: a bar is never seen without its count.
        bar.set_message(visible(&message).into_owned());
        if self.total > 0 {
            bar.set_length(self.total);
            bar.set_position(self.done);
        }
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.tick();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_silent_for_more_than_five_seconds() {
        assert!(SOON.max(EVERY) + TICK < Duration::from_secs(5));
        let mut task = Task::new("reading small/".to_owned(), "", 0, 0);
        assert!(!task.is_due(Duration::from_secs(1)) && task.is_due(SOON));
        task.shown = true;
        assert!(!task.is_due(SOON) && task.is_due(EVERY));
    }

    #[test]
    fn a_line_says_what_how_far_how_fast_and_how_long() {
        let began = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let images = Task::new("test images".to_owned(), "image", 0, 1_200);
        let none = Task { began, ..images };
        assert_eq!(none.line(), "test images: 0/1,200");
        let some = Task { done: 240, ..none };
        assert_eq!(some.line(), "test images: 240/1,200, 24 images/s, 0m40s left");
        let steps = Task::new("step".to_owned(), "step", 100, 600);
        let steps = Task { began, done: 102, ..steps };
        assert_eq!(steps.line(), "step: 102/600, 5.0 s per step, 41m30s left");
        let steps = Task { detail: "loss 2.303".to_owned(), ..steps };
        assert_eq!(steps.line(), "step 102/600  loss 2.303");
        let reading = Task { began, ..Task::new("reading small/".to_owned(), "", 0, 0) };
        assert_eq!(reading.line(), "reading small/ … 0m10s");
        // No bar of 0/0.
        assert_eq!(reading.bar(), ("{spinner} {msg}", "reading small/ … 0m10s".to_owned()));
    }
}
