//! `omma serve` as a user types it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use omma_data::Picture;
use omma_testing::SMALL_EXPERTS;
use serde_json::Value;

use crate::support::{program, trained_at};

fn omma(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program();
    command.current_dir(folder).args(arguments);
    command
}

fn trained(folder: &Path, name: &str, seed: &str) {
    let seed = format!("seed={seed}");
    trained_at(folder, name, "vmoe", &[SMALL_EXPERTS, &[&seed]].concat());
}

/// A server, and where it is.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = omma(folder, &["serve", "--port", "0", "--json"]);
        let mut process = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let address = said["address"].as_str().unwrap().trim_start_matches("http://").to_owned();
        assert!(address.starts_with("127.0.0.1:"), "only this machine is let in: {address}");
        Self { process, address }
    }

    fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        let end = reply.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let status = String::from_utf8_lossy(&reply[9..12]).parse().unwrap();
        (status, serde_json::from_slice(&reply[end + 4..]).unwrap_or_default())
    }

    fn signal(&self, name: &str) {
        let process = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_run_is_served_as_predict_has_it_and_replaced_and_ended_by_signals() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    trained(folder, "a", "1");
    trained(folder, "b", "2");
    let picture = Picture::filled(40, 30, [120, 10, 10]);
    picture.save_png(&folder.join("red.png")).unwrap();
    let image = fs::read(folder.join("red.png")).unwrap();
    let predicted = |subject: &[&str]| -> Value {
        let arguments = [&["--quiet", "predict"], subject, &["red.png", "--json"]].concat();
        let output = omma(folder, &arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    // A fitted temperature, and the load of the experts.
    let eval = omma(folder, &["--quiet", "eval", "a", "--limit", "20", "--json"]).output().unwrap();
    assert!(eval.status.success(), "{}", String::from_utf8_lossy(&eval.stderr));
    let logs = ["--access-log", "log.jsonl", "--log-routing", "experts.jsonl"];
    let mut server = Server::start(folder, &[&["a", "both=a+b"], &logs[..]].concat());
    let told = |path: &str| server.ask("POST", path, &image).1["predictions"][0].clone();
    assert_eq!(told("/predict")["top"], predicted(&["a"])["top"]);
    let both = told("/predict?model=both");
    assert_eq!(both["members"], 2);
    assert_eq!(both["top"], predicted(&["a", "--with", "b"])["top"]);
    // Another run takes its place.
    fs::rename(folder.join("a"), folder.join("c")).unwrap();
    fs::rename(folder.join("b"), folder.join("a")).unwrap();
    fs::rename(folder.join("c"), folder.join("b")).unwrap();
    server.signal("-HUP");
    let expected = predicted(&["a"])["top"].clone();
    let began = std::time::Instant::now();
    while told("/predict")["top"] != expected {
        assert!(began.elapsed().as_secs() < 60, "it is not replaced");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // A file that is gone changes nothing.
    fs::rename(folder.join("a"), folder.join("gone")).unwrap();
    server.signal("-HUP");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(told("/predict")["top"], expected);
    // Images that warmed it are not counted, and nobody has asked it since.
    assert_eq!(told("/predict?model=both")["members"], 2);
    server.signal("-TERM");
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
    let log = fs::read_to_string(folder.join("log.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(lines.into_iter().all(|line| line["status"] == 200));
    // What the experts did, as omma routes shows it.
    let output = omma(folder, &["routes", "experts.jsonl", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let layers = found[0]["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 3, "one layer of a, and two of both");
    for layer in layers {
        assert_eq!((&layer["experts"], &layer["block"]), (&4.into(), &1.into()));
        let moment = layer["moments"].as_array().unwrap().last().unwrap();
        assert!(moment["images"].as_u64().unwrap() >= 1);
        assert!((0.0..=1.0).contains(&moment["drift"].as_f64().unwrap()), "training is known");
    }
    let output = omma(folder, &["routes", "experts.jsonl"]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("a, block 1") && table.contains("expert 3"), "{table}");
    let output = omma(folder, &["routes", "log.jsonl"]).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && why.contains("line 1"), "{why}");
}

#[test]
fn what_cannot_be_served_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("empty"), "\n").unwrap();
    for (arguments, why) in [
        (&["nothing"][..], "does not exist"),
        (&["a b=nothing"], "cannot be a model's name"),
        (&["x=m", "--token-file", "empty"], "token"),
    ] {
        let output =
            omma(folder, &[&["serve", "--port", "0"], arguments].concat()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
}
