//! An evaluation as it is seen at the terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use omma_eval::Watcher;

/// A bar for what is being looked at; nothing where there is no terminal.
pub(crate) struct Watch {
    bar: Option<ProgressBar>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self { bar: std::io::stderr().is_terminal().then(|| ProgressBar::new(0)) }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Watch {
    fn begins(&mut self, what: &str, images: usize) {
        let Some(bar) = &self.bar else {
            tracing::info!("{what}: {images} images");
            return;
        };
        let style = "{bar:24} {pos}/{len}  {msg}  {per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.reset();
        bar.set_length(images as u64);
        bar.set_message(what.to_owned());
    }

    fn done(&mut self, images: usize) {
        if let Some(bar) = &self.bar {
            bar.inc(images as u64);
        }
    }
}
