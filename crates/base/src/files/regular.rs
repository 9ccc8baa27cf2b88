//! Reading what ends: regular files, not pipes, devices or folders.

use std::{
    fs::{self, File, FileType},
    io::{self, Read},
    path::Path,
};

/// Opens a file for reading. A pipe would be waited for and a device has no end, so both are refused.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    match kind.is_file() {
        true => File::open(path),
        false => {
            let why = format!("it is {}, not a file", kind_name(kind));
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
    }
}

/// The bytes of a file, if there are at most `most`.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let length = file.metadata()?.len();
    let too_long = |length: u64| {
        let why = format!("it has {length} bytes, and at most {most} are read");
        io::Error::new(io::ErrorKind::FileTooLarge, why)
    };
    if length > most {
        return Err(too_long(length));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // A file may grow while it is read.
    file.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        length if length > most => Err(too_long(length)),
        _ => Ok(bytes),
    }
}

#[cfg(unix)]
fn kind_name(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match () {
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn kind_name(kind: FileType) -> &'static str {
    if kind.is_dir() { "a folder" } else { "a device" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_are_read_and_only_up_to_a_size() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_regular(&file, 5).unwrap(), b"12345");
        assert_eq!(read_regular(&file, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(open_regular(folder.path()).unwrap_err().to_string().contains("folder"));
        assert_eq!(
            open_regular(&folder.path().join("no")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_pipes_are_not_waited_for() {
        let message = read_regular(Path::new("/dev/zero"), 10).unwrap_err().to_string();
        assert!(message.contains("device"), "{message}");
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("x.png");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|status| status.success()) {
            let message = open_regular(&pipe).unwrap_err().to_string();
            assert!(message.contains("pipe"), "{message}");
        }
    }
}
