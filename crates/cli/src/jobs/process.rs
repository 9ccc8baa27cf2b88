//! A job as a process of this program.

use std::{
    fs::File,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use omma_base::files::{FolderLock, LockError};
use omma_train::Stop;

use super::{Job, last_words};
use crate::table::note;

/// How long processes have to save their state after an interruption.
const PATIENCE: Duration = Duration::from_secs(20);

impl Job {
    /// Waits for its process. After an interruption it is asked to save and end, and killed if it does not;
    /// what it has saved stays. Fails with what the process said last.
    pub(super) fn run(&self, threads: usize, stop: &Stop) -> Result<()> {
        self.wait_for_owner(stop)?;
        if self.is_done() || stop.why().is_some() {
            return Ok(());
        }
        if let Some(folder) = self.log.parent() {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let log = File::create(&self.log).with_context(|| self.log.display().to_string())?;
        let mut command = Command::new(std::env::current_exe()?);
        apart(&mut command);
        let mut process = command
            .args(self.words())
            .env("RAYON_NUM_THREADS", threads.to_string())
            .envs(crate::limits::environment())
            .envs(crate::device::environment())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start another process of this program")?;
        let mut stopped = None;
        let status = loop {
            if let Some(status) = process.try_wait()? {
                break status;
            }
            if stop.why().is_some() {
                let since: &mut Instant = stopped.get_or_insert_with(|| {
                    ask_to_end(process.id());
                    Instant::now()
                });
                if since.elapsed() > PATIENCE {
                    process.kill()?;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        match (status.success(), last_words(&self.log)) {
            (true, _) => Ok(()),
            // One that was killed has no last words of its own.
            (false, Some(words)) if status.code().is_some() => bail!(words),
            (false, _) => bail!("it ended with {status}; see {}", self.log.display()),
        }
    }
}

impl Job {
    /// Waits while the training of a command that was killed goes on by itself in the same folder.
    fn wait_for_owner(&self, stop: &Stop) -> Result<()> {
        let Some(run) = self.run.as_ref().filter(|run| run.is_dir()) else { return Ok(()) };
        let mut said = false;
        while stop.why().is_none() {
            match FolderLock::take(run) {
                Err(LockError::Held { owner }) => {
                    if !std::mem::replace(&mut said, true) {
                        note(format!(
                            "{} is still being trained by {owner}; waiting for it",
                            self.what
                        ));
                    }
                    std::thread::sleep(Duration::from_millis(200));
                }
                Err(LockError::Io(error)) => {
                    return Err(error).with_context(|| run.display().to_string());
                }
                Ok(_) => break,
            }
        }
        Ok(())
    }
}

/// Keeps signals of the terminal from a process: it is asked to end once, by us, and a second signal would
/// end it before it has saved.
fn apart(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

fn ask_to_end(process: u32) {
    if cfg!(unix) {
        // Without the program `kill`, patience runs out.
        let _ = Command::new("kill").args(["-TERM", &process.to_string()]).status();
    }
}
