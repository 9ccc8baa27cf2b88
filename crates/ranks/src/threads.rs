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

/// What a rank shows the others: values, how many of them each rank gets, bytes, a board for some of them.
#[derive(Clone, Default)]
struct Posted {
    values: Arc<Vec<f32>>,
    counts: Arc<Vec<usize>>,
    bytes: Arc<Vec<u8>>,
    board: Option<Arc<Board>>,
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

    fn all_to_all(&self, send: Vec<f32>, sent: &[usize], received: &[usize], _: bool) -> Vec<f32> {
        let (values, counts) = (Arc::new(send), Arc::new(sent.to_vec()));
        let all = self.exchange(Posted { values, counts, ..Posted::default() });
        let part = |(from, count): (&Posted, &usize)| {
            assert_eq!(from.counts[self.rank], *count, "what one sends, the other expects");
            let first: usize = from.counts[..self.rank].iter().sum();
            from.values[first..first + count].to_vec()
        };
        all.iter().zip(received).flat_map(part).collect()
    }

    fn all_gather(&self, own: Vec<f32>, counts: &[usize], _: bool) -> Vec<f32> {
        let all = self.exchange(Posted { values: Arc::new(own), ..Posted::default() });
        assert!(all.iter().zip(counts).all(|(from, count)| from.values.len() == *count));
        all.iter().flat_map(|from| from.values.iter().copied()).collect()
    }

    fn broadcast(&self, values: Vec<f32>) -> Vec<f32> {
        let all = self.exchange(Posted { values: Arc::new(values), ..Posted::default() });
        all[0].values.to_vec()
    }

    fn broadcast_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        self.gather_bytes(bytes).swap_remove(0)
    }

    fn gather_bytes(&self, own: Vec<u8>) -> Vec<Vec<u8>> {
        let all = self.exchange(Posted { bytes: Arc::new(own), ..Posted::default() });
        all.into_iter().map(|posted| posted.bytes.to_vec()).collect()
    }

    fn split(&self, colour: usize) -> Box<dyn Link> {
        let counts = Arc::new(vec![colour]);
        let all = self.exchange(Posted { counts, ..Posted::default() });
        let alike: Vec<usize> =
            (0..all.len()).filter(|rank| all[*rank].counts[0] == colour).collect();
        let own = (alike[0] == self.rank).then(|| Arc::new(Board::new(alike.len())));
        let all = self.exchange(Posted { board: own, ..Posted::default() });
        let board = all[alike[0]].board.clone().expect("the first of them has made one");
        let rank = alike.binary_search(&self.rank).expect("a rank has its own colour");
        Box::new(Self { rank, board })
    }

    fn machine(&self) -> String {
        "this machine".to_owned()
    }

    fn abort(&self, code: i32) -> ! {
        std::process::exit(code)
    }
}
