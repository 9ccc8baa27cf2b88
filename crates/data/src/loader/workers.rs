//! Threads that make things ahead of time.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
};

type Task = Box<dyn FnOnce() + Send>;

/// A fixed number of threads. Tasks are begun in the order in which they come.
pub(super) struct Workers {
    tasks: Option<Sender<Task>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(super) fn new(count: usize) -> std::io::Result<Self> {
        let (tasks, queue) = mpsc::channel::<Task>();
        let (queue, stop) = (Arc::new(Mutex::new(queue)), Arc::new(AtomicBool::new(false)));
        let threads = (0..count.max(1)).map(|number| {
            let (queue, stop) = (queue.clone(), stop.clone());
            let name = format!("data-{number}");
            thread::Builder::new().name(name).spawn(move || work(&queue, &stop))
        });
        let threads = threads.collect::<std::io::Result<_>>()?;
        Ok(Self { tasks: Some(tasks), stop, threads })
    }

    /// What the task returns arrives in the receiver, or nothing if it panics.
    pub(super) fn start<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (result, receiver) = mpsc::sync_channel(1);
        let task = Box::new(move || drop(result.send(task())));
        if let Some(tasks) = &self.tasks {
            // If every thread is lost, so is the task, and the receiver tells.
            drop(tasks.send(task));
        }
        receiver
    }
}

fn work(queue: &Mutex<Receiver<Task>>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match task {
            Ok(task) if !stop.load(Ordering::Relaxed) => task(),
            _ => return,
        }
    }
}

impl Drop for Workers {
    /// Waits for what is being made; what is only waiting is forgotten.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks = None;
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_arrive_and_a_panic_is_noticed() {
        let workers = Workers::new(2).unwrap();
        let results: Vec<_> = (0..20).map(|i| workers.start(move || i * i)).collect();
        for (i, result) in results.into_iter().enumerate() {
            assert_eq!(result.recv().unwrap(), i * i);
        }
        let lost = Workers::new(1).unwrap();
        let first: Receiver<()> = lost.start(|| panic!("on purpose"));
        let second = lost.start(|| 1);
        assert!(first.recv().is_err());
        assert!(second.recv().is_err());
    }
}
