//! A file that is either the old one or the new one.

use std::{fs::File, io, path::Path};

use crate::error::{ModelError, Result};

/// Writes a file by way of a temporary one in the same folder: written, flushed to the disk, then
/// renamed over the old one. Whoever looks, and whatever is killed, sees the old file or the new one.
pub fn write_atomically(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!(".{name}.");
    let temporary = tempfile::Builder::new()
        .prefix(&prefix)
        .tempfile_in(folder)
        .map_err(ModelError::io(folder))?
        .into_temp_path();
    write(&temporary)
        .and_then(|()| File::open(&temporary)?.sync_all())
        .and_then(|()| share_permissions(&temporary))
        .map_err(ModelError::io(path))?;
    temporary.persist(path).map_err(|error| ModelError::io(path)(error.error))?;
    // The rename itself must survive a power cut; not every system lets a folder be opened.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Temporary files are private; a checkpoint is as readable as any other file.
#[cfg(unix)]
fn share_permissions(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn share_permissions(_: &Path) -> io::Result<()> {
    Ok(())
}
