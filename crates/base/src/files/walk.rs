//! The files below a folder, for every command that takes one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// All files below a folder that `wanted` takes by their names, sorted; an error comes with the folder
/// it is about.
///
/// Hidden entries are left out. A link to a folder is not followed, since it may lead in a circle, and a
/// pipe, socket or device is left out with a warning. A link to a file that is gone is listed, so that
/// whoever reads it can say so.
pub fn files_below(
    folder: &Path,
    wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let fault = |error| (folder.clone(), error);
        for entry in fs::read_dir(&folder).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let (path, kind) = (entry.path(), entry.file_type().map_err(fault)?);
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            let target = if kind.is_symlink() { fs::metadata(&path).ok() } else { None };
            let kind = target.map_or(kind, |target| target.file_type());
            match () {
                _ if kind.is_dir() || !wanted(&path) => {}
                _ if kind.is_file() || kind.is_symlink() => files.push(path),
                _ => tracing::warn!("left out: {} is not a file", path.display()),
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn links_do_not_circle_and_pipes_are_left_out() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("deep/er")).unwrap();
        fs::create_dir(root.join(".hidden")).unwrap();
        for name in ["b.png", "deep/er/a.png", ".hidden/c.png", ".d.png", "notes.txt"] {
            fs::write(root.join(name), "x").unwrap();
        }
        symlink(root, root.join("circle")).unwrap();
        symlink(root, root.join("deep/circle.png")).unwrap();
        symlink("nowhere", root.join("gone.png")).unwrap();
        symlink("b.png", root.join("same.png")).unwrap();
        symlink("/dev/zero", root.join("zero.png")).unwrap();
        let _ = std::process::Command::new("mkfifo").arg(root.join("pipe.png")).status();
        let images = |path: &Path| path.extension().is_some_and(|end| end == "png");
        let found = files_below(root, images).unwrap();
        let names: Vec<&Path> = found.iter().map(|path| path.strip_prefix(root).unwrap()).collect();
        let expected = ["b.png", "deep/er/a.png", "gone.png", "same.png"].map(Path::new);
        assert_eq!(names, expected);
        let (path, _) = files_below(&root.join("no"), images).unwrap_err();
        assert_eq!(path, root.join("no"));
    }
}
