//! How long the cores have worked for this process.

/// Seconds that all cores together have spent in this process since it began, its own code and the system's on its
/// behalf, of all its threads; nothing where the system does not say it.
///
/// Beside other work a process is done later, and this stays nearly the same.
#[cfg(unix)]
pub fn of_process() -> Option<f64> {
    use rustix::time::{ClockId, clock_gettime};
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Some(spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9)
}

/// Nothing: this system is not asked.
#[cfg(not(unix))]
pub fn of_process() -> Option<f64> {
    None
}
