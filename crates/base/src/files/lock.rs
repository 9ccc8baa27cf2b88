//! One owner of a folder at a time.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

const FILE: &str = ".lock";

/// The right to write into a folder. The operating system takes it back when this is dropped or the
/// process ends, however it ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

/// Why a folder cannot be owned.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process owns it.
    #[error("{owner} is writing into it")]
    Held {
        /// Which one, as it has said.
        owner: String,
    },
    /// The lock cannot be made.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl FolderLock {
    /// Owns a folder, which must be there, or says who does.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let path = folder.join(FILE);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LockError::Held { owner: owner(&file) }),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(
                    "{} is on a file system without locks; do not use it from two processes",
                    folder.display()
                );
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // What the last owner left is of no use; on a full disk the lock holds without a name.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = write!(file, "{} {}", std::process::id(), now());
        Ok(Self { _file: file })
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Who owns a folder, from what they have written into its lock: their number, and since when.
fn owner(file: &File) -> String {
    let mut text = String::new();
    let _ = file.take(100).read_to_string(&mut text);
    let mut words = text.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(process)), Some(Ok(since))) = (words.next(), words.next()) else {
        return "another process".to_owned();
    };
    match now().saturating_sub(since) {
        seconds @ 0..120 => format!("process {process} (for {seconds} s)"),
        seconds => format!("process {process} (for {} min)", seconds / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_owner_and_the_second_is_told_who() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::take(folder.path()).unwrap();
        let LockError::Held { owner } = FolderLock::take(folder.path()).unwrap_err() else {
            panic!("it is held");
        };
        assert!(owner.starts_with(&format!("process {}", std::process::id())), "{owner}");
        drop(first);
        FolderLock::take(folder.path()).unwrap();
        assert!(matches!(FolderLock::take(&folder.path().join("no")), Err(LockError::Io(_))));
    }
}
