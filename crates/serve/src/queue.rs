//! A bounded queue in front of one model, from which work is taken in batches.
//!
//! Whoever has something to ask reserves places first, before the work that leads to it is done (decoding an
//! image takes longer than refusing it), and then fills them. A place that is not filled is given back.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

/// How work is put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Images of a batch at most.
    pub max_batch: usize,
    /// How long the first image of a batch waits for company, where some is to be expected.
    pub max_delay: Duration,
    /// Images that wait at most, those that are being decoded among them.
    pub max_queue: usize,
}

impl Default for Batching {
    /// A batch of 32 is where products of matrices are as fast as they get on a few cores; two milliseconds are
    /// less than a small model takes for an image; four batches in wait are a second or two of work, and whoever
    /// would wait longer had better ask somebody else.
    fn default() -> Self {
        Self { max_batch: 32, max_delay: Duration::from_millis(2), max_queue: 128 }
    }
}

/// Why something was not computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no place left.
    Full,
    /// The queue takes nothing any more.
    Closed,
    /// Its deadline passed first.
    Late,
}

/// Something that was computed, and what it took.
#[derive(Debug)]
pub(crate) struct Done<O> {
    pub(crate) output: O,
    /// From its arrival to the beginning of its batch.
    pub(crate) queued: Duration,
    /// Its whole batch.
    pub(crate) computed: Duration,
    /// Inputs of its batch.
    pub(crate) batch: usize,
}

/// What is waited for.
pub(crate) type Reply<O> = oneshot::Receiver<Result<Done<O>, Refused>>;

/// An input that waits.
struct Job<I, O> {
    input: I,
    arrived: Instant,
    deadline: Instant,
    reply: oneshot::Sender<Result<Done<O>, Refused>>,
}

struct State<I, O> {
    jobs: VecDeque<Job<I, O>>,
    /// Places that are promised and not filled yet.
    reserved: usize,
    /// Whether the last batch was of one input alone; before the first, that is not known.
    was_alone: bool,
    /// Whether nobody waits for company any more.
    hurried: bool,
    closed: bool,
}

/// The queue. Invariant: those that wait and those that are promised a place are never more than `max_queue`.
pub(crate) struct Queue<I, O> {
    batching: Batching,
    state: Mutex<State<I, O>>,
    changed: Condvar,
}

/// Places in a queue.
pub(crate) struct Places<I, O> {
    queue: Arc<Queue<I, O>>,
    left: usize,
}

/// Inputs that are computed together, and where their outputs go.
pub(crate) struct Batch<I, O> {
    pub(crate) inputs: Vec<I>,
    waiting: Vec<Waiting<O>>,
    began: Instant,
}

struct Waiting<O> {
    queued: Duration,
    reply: oneshot::Sender<Result<Done<O>, Refused>>,
}

impl<I, O> State<I, O> {
    /// What nobody waits for any more takes no place, and is no company.
    fn forget(&mut self) {
        self.jobs.retain(|job| !job.reply.is_closed());
    }

    /// Whether others are likely to come soon: some are on their way, or came together a moment ago. One client that
    /// asks for one image after the other would wait in vain every time.
    fn expects_company(&self) -> bool {
        self.reserved > 0 || self.jobs.len() > 1 || !self.was_alone
    }
}

impl<I, O> Queue<I, O> {
    pub(crate) fn new(batching: Batching) -> Arc<Self> {
        let jobs = VecDeque::with_capacity(batching.max_queue);
        let state = State { jobs, reserved: 0, was_alone: false, hurried: false, closed: false };
        Arc::new(Self { batching, state: Mutex::new(state), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State<I, O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many places, or none.
    pub(crate) fn reserve(self: &Arc<Self>, places: usize) -> Result<Places<I, O>, Refused> {
        let mut state = self.state();
        state.forget();
        let taken = state.jobs.len() + state.reserved;
        match (state.closed, taken + places > self.batching.max_queue) {
            (true, _) => Err(Refused::Closed),
            (false, true) => Err(Refused::Full),
            (false, false) => {
                state.reserved += places;
                Ok(Places { queue: self.clone(), left: places })
            }
        }
    }

    /// Inputs that wait.
    pub(crate) fn len(&self) -> usize {
        self.state().jobs.len()
    }

    /// From now on, nobody waits for company.
    pub(crate) fn hurry(&self) {
        self.state().hurried = true;
        self.changed.notify_all();
    }

    /// Takes nothing any more; what waits is still computed.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// The next batch: as soon as there are enough inputs, no more are to be expected, or the first has waited long
    /// enough. Inputs whose deadline has passed, and those that nobody waits for any more, are not in it. Nothing once the queue is closed and empty.
    pub(crate) fn take(&self) -> Option<Batch<I, O>> {
        let Batching { max_batch, max_delay, .. } = self.batching;
        let mut state = self.state();
        loop {
            state.forget();
            let Some(first) = state.jobs.front() else {
                if state.closed {
                    return None;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waits = max_delay.saturating_sub(first.arrived.elapsed());
            let hurried = state.hurried || state.closed;
            let waits_for_others = !hurried && !waits.is_zero() && state.expects_company();
            if state.jobs.len() < max_batch && waits_for_others {
                let waited = self.changed.wait_timeout(state, waits);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let batch = Batch::of(&mut state.jobs, max_batch);
            if !batch.inputs.is_empty() {
                state.was_alone = batch.inputs.len() == 1;
                return Some(batch);
            }
        }
    }
}

impl<I, O> Places<I, O> {
    /// Fills a place. Where the queue was closed in the meantime, the reply says so.
    ///
    /// # Panics
    /// If there is none left.
    pub(crate) fn fill(&mut self, input: I, deadline: Instant) -> Reply<O> {
        assert!(self.left > 0, "places of a queue");
        let (reply, receiver) = oneshot::channel();
        let mut state = self.queue.state();
        self.left -= 1;
        state.reserved -= 1;
        match state.closed {
            true => drop(reply.send(Err(Refused::Closed))),
            false => state.jobs.push_back(Job { input, arrived: Instant::now(), deadline, reply }),
        }
        drop(state);
        self.queue.changed.notify_one();
        receiver
    }
}

impl<I, O> Drop for Places<I, O> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.queue.state().reserved -= self.left;
            // Somebody may be waiting for them.
            self.queue.changed.notify_one();
        }
    }
}

impl<I, O> Batch<I, O> {
    fn of(jobs: &mut VecDeque<Job<I, O>>, most: usize) -> Self {
        let began = Instant::now();
        let (mut inputs, mut waiting) = (Vec::new(), Vec::new());
        while inputs.len() < most
            && let Some(Job { input, arrived, deadline, reply }) = jobs.pop_front()
        {
            if reply.is_closed() {
                continue;
            }
            if deadline <= began {
                // Nobody may be there to hear it.
                let _ = reply.send(Err(Refused::Late));
                continue;
            }
            inputs.push(input);
            waiting.push(Waiting { queued: began - arrived, reply });
        }
        Self { inputs, waiting, began }
    }

    /// How long each of them waited.
    pub(crate) fn queued(&self) -> impl Iterator<Item = Duration> {
        self.waiting.iter().map(|one| one.queued)
    }

    /// Hands out what was computed, in the order of the inputs, and says how long that took.
    pub(crate) fn answer(self, outputs: impl IntoIterator<Item = O>) -> Duration {
        let (computed, batch) = (self.began.elapsed(), self.waiting.len());
        for (Waiting { queued, reply }, output) in self.waiting.into_iter().zip(outputs) {
            let _ = reply.send(Ok(Done { output, queued, computed, batch }));
        }
        computed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn queue(max_batch: usize, max_delay: Duration, max_queue: usize) -> Arc<Queue<u32, u32>> {
        Queue::new(Batching { max_batch, max_delay, max_queue })
    }

    fn ask(queue: &Arc<Queue<u32, u32>>, input: u32) -> Reply<u32> {
        queue.reserve(1).unwrap().fill(input, Instant::now() + LONG)
    }

    #[test]
    fn a_batch_is_taken_when_it_is_full_or_the_first_has_waited() {
        let queue = queue(3, Duration::from_millis(30), 8);
        let _all: Vec<_> = (0..4).map(|input| ask(&queue, input)).collect();
        let began = Instant::now();
        assert_eq!(queue.take().unwrap().inputs, [0, 1, 2]);
        assert!(began.elapsed() < Duration::from_millis(25), "a full batch waits for nobody");
        assert_eq!(queue.take().unwrap().inputs, [3]);
        assert!(began.elapsed() >= Duration::from_millis(20), "one alone waits for company");
    }

    #[test]
    fn who_came_alone_before_waits_only_for_those_on_their_way() {
        let delay = Duration::from_millis(300);
        let queue = queue(4, delay, 8);
        let _first = ask(&queue, 0);
        assert_eq!(queue.take().unwrap().inputs, [0]);
        for _ in 0..3 {
            let _one = ask(&queue, 0);
            let began = Instant::now();
            assert_eq!(queue.take().unwrap().inputs, [0]);
            assert!(began.elapsed() < delay / 2, "nobody else was there, and nobody is waited for");
        }
        let _one = ask(&queue, 1);
        let mut promised = queue.reserve(1).unwrap();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| queue.take().unwrap().inputs);
            std::thread::sleep(delay / 10);
            let _two = promised.fill(2, Instant::now() + LONG);
            assert_eq!(taken.join().unwrap(), [1, 2], "one was on its way");
        });
    }

    #[test]
    fn outputs_go_to_who_asked_for_them_with_what_they_took() {
        let queue = queue(4, Duration::ZERO, 8);
        let mut replies: Vec<_> = (0..3).map(|input| ask(&queue, input)).collect();
        let batch = queue.take().unwrap();
        let outputs: Vec<u32> = batch.inputs.iter().map(|input| input * 10).collect();
        batch.answer(outputs);
        for (place, reply) in replies.iter_mut().enumerate() {
            let done = reply.try_recv().unwrap().unwrap();
            assert_eq!((done.output, done.batch), (10 * place as u32, 3));
        }
    }

    #[test]
    fn places_are_all_or_none_and_are_given_back() {
        let queue = queue(4, LONG, 3);
        let two = queue.reserve(2).unwrap();
        assert_eq!(queue.reserve(2).err(), Some(Refused::Full));
        let _one = ask(&queue, 1);
        assert_eq!(queue.reserve(1).err(), Some(Refused::Full));
        drop(two);
        assert!(queue.reserve(2).is_ok());
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn nothing_is_computed_that_nobody_waits_for_or_that_is_late() {
        let queue = queue(4, Duration::ZERO, 8);
        drop(ask(&queue, 1));
        let mut late = queue.reserve(1).unwrap().fill(2, Instant::now());
        let _kept = ask(&queue, 3);
        assert_eq!(queue.state().jobs.len(), 2, "what is gone takes no place");
        assert_eq!(queue.take().unwrap().inputs, [3]);
        assert_eq!(late.try_recv().unwrap().err(), Some(Refused::Late));
    }

    #[test]
    fn a_closed_queue_takes_nothing_and_loses_nothing() {
        let queue = queue(2, LONG, 8);
        let _all: Vec<_> = (0..3).map(|input| ask(&queue, input)).collect();
        let mut promised = queue.reserve(1).unwrap();
        queue.close();
        assert_eq!(queue.reserve(1).err(), Some(Refused::Closed));
        let mut reply = promised.fill(9, Instant::now() + LONG);
        assert_eq!(reply.try_recv().unwrap().err(), Some(Refused::Closed));
        assert_eq!(queue.take().unwrap().inputs, [0, 1]);
        assert_eq!(queue.take().unwrap().inputs, [2]);
        assert!(queue.take().is_none());
    }

    #[test]
    fn threads_that_ask_at_once_all_get_their_own_answer() {
        let queue = queue(5, Duration::from_millis(1), 64);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                while let Some(batch) = queue.take() {
                    assert!(batch.inputs.len() <= 5);
                    let outputs: Vec<u32> = batch.inputs.iter().map(|input| input + 1).collect();
                    batch.answer(outputs);
                }
            });
            let askers: Vec<_> = (0..8)
                .map(|asker| {
                    let queue = &queue;
                    scope.spawn(move || {
                        for input in (asker * 100)..(asker * 100 + 50) {
                            let reply = ask(queue, input);
                            assert_eq!(reply.blocking_recv().unwrap().unwrap().output, input + 1);
                        }
                    })
                })
                .collect();
            askers.into_iter().for_each(|asker| asker.join().unwrap());
            queue.close();
            worker.join().unwrap();
        });
        assert_eq!((queue.len(), queue.state().reserved), (0, 0));
    }
}
