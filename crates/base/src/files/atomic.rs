//! A file that is either the old one or the new one.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

/// Letters of a temporary name that are drawn at random.
const RANDOM: usize = 6;

/// Writes a file by way of a temporary one in the same folder: written, flushed to the disk, then
/// renamed over the old one. Whoever looks, and whatever is killed, sees the old file or the new one.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!(".{name}.");
    let temporary = tempfile::Builder::new()
        .prefix(&prefix)
        .rand_bytes(RANDOM)
        .tempfile_in(folder)?
        .into_temp_path();
    write(&temporary)?;
    File::open(&temporary)?.sync_all()?;
    share_permissions(&temporary)?;
    temporary.persist(path).map_err(|error| error.error)?;
    // The rename itself must survive a power cut; not every system lets a folder be opened.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Temporary files are private; what is written is as readable as any other file.
#[cfg(unix)]
fn share_permissions(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn share_permissions(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Removes temporary files of [`write_atomically`] that a killed process left in a folder. Only the
/// folder's owner may do so: another process may be writing one.
pub fn remove_leftovers(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(is_leftover) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// `.NAME.ENDING.XXXXXX`, as temporary files are called.
fn is_leftover(name: &str) -> bool {
    let parts = name.strip_prefix('.').and_then(|rest| rest.rsplit_once('.'));
    parts.is_some_and(|(name, random)| {
        let drawn = random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric());
        drawn && name.contains('.') && !name.starts_with('.')
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
        let stay = ["metrics.jsonl", ".lock", ".hidden.json", ".a.toolong1", "x.json.Ab3dE6"];
        let names = [&stay[..], &[".environment.json.Ab3dE6", ".best.json.000000"]].concat();
        names.iter().for_each(|name| fs::write(folder.path().join(name), "x").unwrap());
        fs::create_dir(folder.path().join(".folder.json.Ab3dE6")).unwrap();
        remove_leftovers(folder.path()).unwrap();
        for name in stay.iter().chain(&[".folder.json.Ab3dE6"]) {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), stay.len() + 1);
    }
}
