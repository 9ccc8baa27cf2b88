//! What a run ran on.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

/// What a run ran on.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// Version of the program.
    pub version: &'static str,
    /// The commit that it was built from, where that is known.
    pub commit: Option<&'static str>,
    /// Where tensors are.
    pub device: String,
    /// Threads.
    pub threads: usize,
    /// Processes that train together.
    pub ranks: usize,
    /// The processor.
    pub processor: Option<String>,
    /// Operating system and architecture.
    pub system: String,
    /// The command line.
    pub command: Vec<String>,
    /// Seconds since 1970.
    pub started: u64,
}

impl Environment {
    /// That of this process, now, which computes on a device.
    pub fn now(device: String) -> Self {
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("OMMA_COMMIT").filter(|commit| !commit.is_empty()),
            device,
            threads: rayon::current_num_threads(),
            ranks: 1,
            processor: processor(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            started: started.map_or(0, |since| since.as_secs()),
        }
    }
}

/// The device that a run was trained on last, by its `environment.json`; nothing where it was not trained yet.
pub(crate) fn last_device(file: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Device {
        device: String,
    }
    let text = fs::read(file).ok()?;
    serde_json::from_slice(&text).ok().map(|Device { device }| device)
}

fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
