//! How much memory there is, and how much was used.

use std::fs;

use crate::Limits;

/// The most memory that this process has held, where the system says it.
pub fn peak() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM:")
}

/// The memory that this process can have: that of the machine, or of its control group, or what it was
/// given ([`Limits::memory`]), whatever is least.
pub fn available() -> Option<u64> {
    let groups = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group = groups
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok())
        .min();
    let machine = kilobytes("/proc/meminfo", "MemTotal:");
    machine.into_iter().chain(group).min().map(|most| most.min(Limits::current().memory))
}

fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_holds_less_than_there_is() {
        let (peak, available) = (peak().unwrap(), available().unwrap());
        assert!(peak > 1 << 16 && peak < available, "{peak} of {available}");
    }
}
