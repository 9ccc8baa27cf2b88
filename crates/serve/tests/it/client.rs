//! HTTP as bytes.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// What came back.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (own, value) = line.split_once(':')?;
            own.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// Reads what is left of a connection.
    pub(crate) fn read(stream: &mut TcpStream) -> std::io::Result<Self> {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Ok(Self { status, head, body: bytes[end + 4..].to_vec() })
    }
}

/// The head and the body of a request, whose connection then ends.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

pub(crate) fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut stream = TcpStream::connect(address).unwrap();
    // A server that refuses a body may close before it has all of it.
    let _ = stream.write_all(&request(method, path, headers, body));
    Reply::read(&mut stream).unwrap()
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    send(address, "GET", path, &[], b"")
}

pub(crate) fn post(address: SocketAddr, path: &str, kind: &str, body: &[u8]) -> Reply {
    send(address, "POST", path, &[("Content-Type", kind)], body)
}
