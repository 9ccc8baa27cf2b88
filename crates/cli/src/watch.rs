//! An evaluation as it is seen at the terminal.

use omma_eval::Watcher;

use crate::screen::Activity;

/// Shows what is being looked at, from the reading of the models on.
pub(crate) struct Watch {
    activity: Activity,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self { activity: Activity::new("reading models and data") }
    }

    /// Something that is not about images, such as "writing the report".
    pub(crate) fn turn_to(&self, what: &str) {
        self.activity.turn_to(what, "", 0);
    }
}

impl Watcher for Watch {
    fn begins(&mut self, what: &str, images: usize) {
        self.activity.turn_to(what, "image", images as u64);
    }

    fn done(&mut self, images: usize) {
        self.activity.add(images as u64);
    }
}
