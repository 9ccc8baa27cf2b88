//! Ranks that are threads of one process.

use std::sync::{Arc, Barrier, Mutex, PoisonError};

use crate::{link::Link, world::World};

/// Runs as many ranks, each on a thread of its own that also is all it computes with, and returns what each found, in
/// their order.
pub fn threads<R: Send>(ranks: usize, run: impl Fn(World) -> R + Sync) -> Vec<R> {
    let board = Arc::new(Board::new(ranks));
    std::thread::scope(|scope| {
        let start = |rank| {
            let (board, run) = (board.clone(), &run);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
            let pool = pool.expect("a thread can be started");
            scope.spawn(move || {
                pool.install(|| run(World::of(Box::new(Thread { rank, board: board.clone() }))))
            })
        };
        let running: Vec<_> = (0..ranks).map(start).collect();
        let found = running.into_iter().map(|thread| thread.join());
        found.map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// A rank by itself.
pub(crate) fn alone() -> impl Link {
    Thread { rank: 0, board: Arc::new(Board::new(1)) }
}

/// What a rank shows the others: values, how many of them each rank gets, bytes.
#[derive(Clone, Default)]
struct Posted {
    values: Arc<Vec<f32>>,
    counts: Arc<Vec<usize>>,
    bytes: Arc<Vec<u8>>,
}

struct Board {
    posted: Mutex<Vec<Posted>>,
    barrier: Barrier,
}

impl Board {
    fn new(ranks: usize) -> Self {
        let posted = Mutex::new(vec![Posted::default(); ranks]);
        Self { posted, barrier: Barrier::new(ranks) }
    }
}

struct Thread {
    rank: usize,
    board: Arc<Board>,
}

impl Thread {
    /// Shows something to all, and sees what all show.
    fn exchange(&self, own: Posted) -> Vec<Posted> {
        let board = || self.board.posted.lock().unwrap_or_else(PoisonError::into_inner);
        board()[self.rank] = own;
        self.board.barrier.wait();
        let all = board().clone();
        self.board.barrier.wait();
        all
    }
}

impl Link for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.board.posted.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn all_to_all(&self, send: &[f32], sent: &[usize], receive: &mut [f32], received: &[usize]) {
        let (values, counts) = (Arc::new(send.to_vec()), Arc::new(sent.to_vec()));
        let mut rest = receive;
        let all = self.exchange(Posted { values, counts, ..Posted::default() });
        for (from, count) in all.iter().zip(received) {
            let first: usize = from.counts[..self.rank].iter().sum();
            let (own, left) = rest.split_at_mut(*count);
            own.copy_from_slice(&from.values[first..first + count]);
            rest = left;
        }
    }

    fn all_gather(&self, own: &[f32], all: &mut [f32], counts: &[usize]) {
        let mut rest = all;
        let values = Arc::new(own.to_vec());
        for (from, count) in
            self.exchange(Posted { values, ..Posted::default() }).iter().zip(counts)
        {
            let (part, left) = rest.split_at_mut(*count);
            part.copy_from_slice(&from.values);
            rest = left;
        }
    }

    fn broadcast(&self, values: &mut [f32]) {
        let own = Arc::new(values.to_vec());
        let all = self.exchange(Posted { values: own, ..Posted::default() });
        values.copy_from_slice(&all[0].values);
    }

    fn broadcast_bytes(&self, bytes: &mut Vec<u8>) {
        *bytes = self.gather_bytes(bytes).swap_remove(0);
    }

    fn gather_bytes(&self, own: &[u8]) -> Vec<Vec<u8>> {
        let bytes = Arc::new(own.to_vec());
        let all = self.exchange(Posted { bytes, ..Posted::default() });
        all.into_iter().map(|posted| posted.bytes.to_vec()).collect()
    }

    fn machine(&self) -> String {
        "this machine".to_owned()
    }

    fn abort(&self, code: i32) -> ! {
        std::process::exit(code)
    }
}
