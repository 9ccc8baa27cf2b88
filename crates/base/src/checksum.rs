//! Checksums of bytes as they stand in a file.

/// CRC-32 in eight hexadecimal digits. Of bytes as they were written: what is read and written again need not
/// be the same bytes.
pub fn checksum(bytes: impl AsRef<[u8]>) -> String {
    format!("{:08x}", crc32fast::hash(bytes.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_checksum_of_zip_and_png() {
        assert_eq!(checksum("123456789"), "cbf43926");
    }
}
