//! `multipart/form-data` (RFC 7578) of a body that is there as a whole.

use axum::body::Bytes;
use memchr::memmem;

/// One field of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// Whether it is a file.
    pub(crate) is_file: bool,
    pub(crate) bytes: Bytes,
}

/// Fields of a form at most.
const MOST_PARTS: usize = 1024;

/// What stands between the parts, by the content type of the whole.
pub(crate) fn boundary(content_type: &str) -> Option<&str> {
    let found = content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    });
    found.filter(|boundary| (1..=70).contains(&boundary.len()))
}

/// The parts of a body, or what is wrong with it.
pub(crate) fn parts(body: &Bytes, boundary: &str) -> Result<Vec<Part>, String> {
    let line = format!("--{boundary}");
    let delimiter = format!("\r\n{line}");
    let first = if body.starts_with(line.as_bytes()) {
        line.len()
    } else {
        let found = memmem::find(body, delimiter.as_bytes());
        found.ok_or("the form has no parts")? + delimiter.len()
    };
    let finder = memmem::Finder::new(&delimiter);
    let (mut parts, mut rest) = (Vec::new(), body.slice(first..));
    loop {
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        if parts.len() >= MOST_PARTS {
            return Err(format!("the form has more than {MOST_PARTS} parts"));
        }
        // Spaces may stand between the boundary and the end of its line.
        let line_end = memmem::find(&rest, b"\r\n").ok_or("the form ends within a part")?;
        let part = rest.slice(line_end + 2..);
        let end = finder.find(&part).ok_or("the form ends within a part")?;
        parts.push(part_of(&part.slice(..end))?);
        rest = part.slice(end + delimiter.len()..);
    }
}

/// Headers, an empty line, bytes.
fn part_of(whole: &Bytes) -> Result<Part, String> {
    let (head, bytes) = match memmem::find(whole, b"\r\n\r\n") {
        Some(end) => (&whole[..end], whole.slice(end + 4..)),
        None if whole.starts_with(b"\r\n") => (&whole[..0], whole.slice(2..)),
        None => return Err("a part of the form has no empty line after its headers".to_owned()),
    };
    let head = std::str::from_utf8(head).map_err(|_| "the headers of a part are not text")?;
    let disposition = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let disposition = disposition.unwrap_or_default();
    let name = parameter(disposition, "name").unwrap_or_default();
    Ok(Part { name, is_file: parameter(disposition, "filename").is_some(), bytes })
}

/// `name="value"` among the parameters of a header.
fn parameter(header: &str, wanted: &str) -> Option<String> {
    header.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_wanted = name.trim().trim_end_matches('*').eq_ignore_ascii_case(wanted);
        is_wanted.then(|| value.trim().trim_matches('"').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_as_curl_writes_it() {
        let body = "--xyz\r\nContent-Disposition: form-data; name=\"top\"\r\n\r\n3\r\n--xyz\r\n\
            Content-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\n\
            Content-Type: image/png\r\n\r\n\x01--xy\r\n\r\n--xyz--\r\n";
        let kind = "multipart/form-data; boundary=\"xyz\"";
        let found = parts(&Bytes::from(body), boundary(kind).unwrap()).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].is_file), ("top", false));
        assert_eq!(found[0].bytes, "3");
        assert_eq!((found[1].name.as_str(), found[1].is_file), ("image", true));
        assert_eq!(found[1].bytes, "\x01--xy\r\n");
    }

    #[test]
    fn forms_that_are_none_are_refused() {
        for body in ["", "--xyz", "--xyz\r\n", "--xyz\r\nno end\r\n\r\nbytes", "\r\n--xyzz"] {
            assert!(parts(&Bytes::from(body), "xyz").is_err(), "{body:?}");
        }
        assert_eq!(parts(&Bytes::from("--xyz--"), "xyz"), Ok(Vec::new()));
        assert_eq!(boundary("multipart/form-data"), None);
        assert_eq!(boundary(&format!("multipart/form-data; boundary={}", "x".repeat(71))), None);
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(pieces in proptest::collection::vec(0..9_usize, 0..40)) {
            const PIECES: [&str; 9] = [
                "--xyz", "\r\n", "--", "Content-Disposition: form-data", "; name=\"", "\"", ":", "\u{e9}", "=",
            ];
            let body: String = pieces.into_iter().map(|piece| PIECES[piece]).collect();
            let length = body.len();
            if let Ok(parts) = parts(&Bytes::from(body), "xyz") {
                assert!(parts.iter().map(|part| part.bytes.len()).sum::<usize>() <= length);
            }
        }
    }
}
