//! What was taken for granted about a data set.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Mutex, PoisonError},
};

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Says what a data set was taken for: once, however often its parts are opened.
pub(super) fn say_assumed(path: &Path, what: &str) {
    let text = format!("{}: {what}", path.display());
    let is_news = SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone());
    if is_news {
        tracing::warn!("{text}");
    }
}
