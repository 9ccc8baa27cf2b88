//! A file that is either the old one or the new one.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use tempfile::TempPath;

use crate::fault;

/// Letters of a temporary name that are drawn at random.
const RANDOM: usize = 6;

/// A file that is being written under a temporary name in the folder of its own. Whoever looks, and whatever
/// is killed, sees the old file or the new one; dropped before it is finished, it leaves nothing behind.
#[derive(Debug)]
pub struct Unfinished {
    temporary: TempPath,
    path: PathBuf,
}

impl Unfinished {
    /// An empty file that is to become `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        fault::point(&format!("{name}:create"))?;
        let prefix = format!(".{name}.");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).rand_bytes(RANDOM);
        share_permissions(&mut builder);
        let temporary = builder.tempfile_in(folder_of(path))?.into_temp_path();
        Ok(Self { temporary, path: path.to_owned() })
    }

    /// Where it is written.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Flushes it to the disk and renames it over the old one.
    pub fn finish(self) -> io::Result<()> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        fault::point(&format!("{name}:rename"))?;
        File::open(&self.temporary)?.sync_all()?;
        self.temporary.persist(&self.path).map_err(|error| error.error)?;
        // The rename itself must survive a power cut; not every system lets a folder be opened.
        if let Ok(folder) = File::open(folder_of(&self.path)) {
            let _ = folder.sync_all();
        }
        fault::point(&format!("{name}:done"))
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Writes a file in one step, by way of an [`Unfinished`] one.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let file = Unfinished::create(path)?;
    write(file.path())?;
    file.finish()
}

/// Temporary files are private; what is written is as readable as the user's umask makes any other file.
#[cfg(unix)]
fn share_permissions(builder: &mut tempfile::Builder) {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(fs::Permissions::from_mode(0o666));
}

#[cfg(not(unix))]
fn share_permissions(_: &mut tempfile::Builder) {}

/// Removes temporary files of [`write_atomically`] that a killed process left in a folder when it wrote one
/// of these names. Only the folder's owner may do so: another process may be writing one.
pub fn remove_leftovers(folder: &Path, names: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let left = entry.file_name().to_str().is_some_and(|name| is_leftover(name, names));
        if left && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a file is called as temporary ones are: a dot, the name, a dot, and six letters by chance.
fn is_leftover(file: &str, names: &[&str]) -> bool {
    let parts = file.strip_prefix('.').and_then(|rest| rest.rsplit_once('.'));
    parts.is_some_and(|(name, random)| {
        let drawn = random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric());
        drawn && names.contains(&name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write_atomically(&path, |temporary| fs::write(temporary, "old")).unwrap();
        let full = |temporary: &Path| {
            fs::write(temporary, "ne")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        assert_eq!(write_atomically(&path, full).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_temporary_files_are_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let stay =
            ["metrics.jsonl", ".lock", ".notes.txt.backup", ".best.json.old", "best.json.Ab3dE6"];
        let names = [&stay[..], &[".environment.json.Ab3dE6", ".best.json.000000"]].concat();
        names.iter().for_each(|name| fs::write(folder.path().join(name), "x").unwrap());
        fs::create_dir(folder.path().join(".best.json.Ab3dE6")).unwrap();
        remove_leftovers(folder.path(), &["environment.json", "best.json"]).unwrap();
        for name in stay.iter().chain(&[".best.json.Ab3dE6"]) {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), stay.len() + 1);
    }
}
