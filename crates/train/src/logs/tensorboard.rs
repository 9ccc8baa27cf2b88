//! TensorBoard's event files: TFRecord frames around hand-made protocol buffers.
//!
//! A frame is the length of its data, the masked CRC-32C of that, the data, and the masked CRC-32C of
//! the data. The data is an `Event` message: field 1 wall time, 2 step, 3 file version, 5 summary; a
//! summary holds in field 1 values with 1 tag and 2 simple value.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::error::{Result, TrainError};

/// An event file that grows.
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// A new file in a folder; TensorBoard joins the files of one folder.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        let stamp = now();
        let name = format!("events.out.tfevents.{:010}.{:06}", stamp as u64, std::process::id());
        let path = folder.join(name);
        let file = File::create(&path).map_err(TrainError::io(&path))?;
        let mut events = Self { path, file };
        let mut event = Vec::new();
        fixed64(&mut event, 1, stamp.to_bits());
        bytes(&mut event, 3, b"brain.Event:2");
        events.write(&event)?;
        Ok(events)
    }

    /// Adds scalars of a step.
    pub(super) fn add(&mut self, step: u64, scalars: &[(String, f64)]) -> Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in scalars {
            let mut entry = Vec::new();
            bytes(&mut entry, 1, tag.as_bytes());
            fixed32(&mut entry, 2, (*value as f32).to_bits());
            bytes(&mut summary, 1, &entry);
        }
        let mut event = Vec::new();
        fixed64(&mut event, 1, now().to_bits());
        key(&mut event, 2, 0);
        varint(&mut event, step);
        bytes(&mut event, 5, &summary);
        self.write(&event)
    }

    fn write(&mut self, event: &[u8]) -> Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let mut frame = length.to_vec();
        frame.extend(masked(&length).to_le_bytes());
        frame.extend(event);
        frame.extend(masked(event).to_le_bytes());
        self.file.write_all(&frame).map_err(TrainError::io(&self.path))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn masked(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn key(to: &mut Vec<u8>, field: u64, wire: u64) {
    varint(to, field << 3 | wire);
}

fn fixed64(to: &mut Vec<u8>, field: u64, bits: u64) {
    key(to, field, 1);
    to.extend(bits.to_le_bytes());
}

fn fixed32(to: &mut Vec<u8>, field: u64, bits: u32) {
    key(to, field, 5);
    to.extend(bits.to_le_bytes());
}

fn bytes(to: &mut Vec<u8>, field: u64, data: &[u8]) {
    key(to, field, 2);
    varint(to, data.len() as u64);
    to.extend(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_tensorflow() {
        // From the tests of TensorFlow's crc32c: 32 zeros.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(&[0; 32]), 0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn frames_can_be_walked_and_hold_their_values() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(folder.path()).unwrap();
        events.add(300, &[("train/loss".to_owned(), 0.5)]).unwrap();
        let file = std::fs::read(&events.path).unwrap();
        let mut rest = file.as_slice();
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(rest[8..12].try_into().unwrap()), masked(&rest[..8]));
            let data = &rest[12..12 + length];
            let crc = u32::from_le_bytes(rest[12 + length..16 + length].try_into().unwrap());
            assert_eq!(crc, masked(data));
            frames.push(data.to_vec());
            rest = &rest[16 + length..];
        }
        assert_eq!(frames.len(), 2);
        assert!(frames[0].ends_with(b"brain.Event:2"));
        // Step 300 as a varint, then the summary: one value with its tag and 0.5.
        let expected = [
            &[0x10, 0xac, 0x02, 0x2a, 19, 0x0a, 17, 0x0a, 10][..],
            b"train/loss",
            &[0x15, 0, 0, 0, 0x3f],
        ];
        assert!(frames[1].ends_with(&expected.concat()));
        // Field 1 is the wall time in seconds.
        for frame in &frames {
            assert_eq!(frame[0], 0x09);
            let seconds = f64::from_le_bytes(frame[1..9].try_into().unwrap());
            assert!((now() - seconds).abs() < 60.0, "{seconds}");
        }
    }
}
