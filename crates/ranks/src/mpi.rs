//! Ranks that a launcher of MPI has started.

use std::time::{Duration, Instant};

use mpi::{
    Count, Threading,
    datatype::{Partition, PartitionMut},
    environment::Universe,
    topology::SimpleCommunicator,
    traits::{Communicator, CommunicatorCollectives, Root},
};

use crate::{launch::LaunchError, link::Link};

/// Values of one broadcast: MPI counts with 31 bits.
const AT_A_TIME: usize = 1 << 28;
/// How long a rank that waits for word of rank 0 keeps looking without a pause.
const KEEN: Duration = Duration::from_millis(5);
/// Between two looks after that.
const PAUSE: Duration = Duration::from_micros(500);

/// One rank. All calls come from the thread that has made it.
pub(crate) struct Mpi {
    world: SimpleCommunicator,
    /// Ends MPI when it goes.
    _universe: Universe,
}

impl Mpi {
    pub(crate) fn connect() -> Result<Self, LaunchError> {
        let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
            return Err(LaunchError::Mpi("it runs already".to_owned()));
        };
        Ok(Self { world: universe.world(), _universe: universe })
    }

    /// Broadcasts while whoever waits sleeps.
    fn broadcast_patiently<T>(&self, values: &mut [T])
    where
        [T]: mpi::traits::BufferMut,
    {
        let root = self.world.process_at_rank(0);
        mpi::request::scope(|scope| {
            let mut request = root.immediate_broadcast_into(scope, values);
            let begin = Instant::now();
            while let Err(again) = request.test() {
                request = again;
                if begin.elapsed() > KEEN {
                    std::thread::sleep(PAUSE);
                }
            }
        });
    }
}

impl Drop for Mpi {
    /// A rank that panics must not wait for the others to come to their end.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.world.abort(101);
        }
    }
}

/// Counts, and where what they count begins.
fn places(counts: &[usize]) -> (Vec<Count>, Vec<Count>) {
    let count = |value: usize| Count::try_from(value).expect("sums are cut into buckets");
    let mut first = 0;
    let place = |size: &usize| {
        let place = count(first);
        first += size;
        (count(*size), place)
    };
    counts.iter().map(place).unzip()
}

impl Link for Mpi {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn size(&self) -> usize {
        self.world.size() as usize
    }

    fn all_to_all(&self, send: &[f32], sent: &[usize], receive: &mut [f32], received: &[usize]) {
        let (sent, from) = places(sent);
        let (received, to) = places(received);
        let send = Partition::new(send, sent, from);
        let mut receive = PartitionMut::new(receive, received, to);
        self.world.all_to_all_varcount_into(&send, &mut receive);
    }

    fn all_gather(&self, own: &[f32], all: &mut [f32], counts: &[usize]) {
        let (counts, places) = places(counts);
        self.world.all_gather_varcount_into(own, &mut PartitionMut::new(all, counts, places));
    }

    fn broadcast(&self, values: &mut [f32]) {
        let root = self.world.process_at_rank(0);
        values.chunks_mut(AT_A_TIME).for_each(|part| root.broadcast_into(part));
    }

    fn broadcast_bytes(&self, bytes: &mut Vec<u8>) {
        let mut length = [bytes.len() as u64];
        self.broadcast_patiently(&mut length);
        bytes.resize(length[0] as usize, 0);
        bytes.chunks_mut(AT_A_TIME).for_each(|part| self.broadcast_patiently(part));
    }

    fn gather_bytes(&self, own: &[u8]) -> Vec<Vec<u8>> {
        let mut lengths = vec![0_u64; self.size()];
        self.world.all_gather_into(&[own.len() as u64][..], &mut lengths[..]);
        let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
        let mut all = vec![0; lengths.iter().sum()];
        let (counts, firsts) = places(&lengths);
        self.world
            .all_gather_varcount_into(own, &mut PartitionMut::new(&mut all[..], counts, firsts));
        let mut rest = all.as_slice();
        let next = |length: usize| {
            let (own, left) = rest.split_at(length);
            rest = left;
            own.to_vec()
        };
        lengths.into_iter().map(next).collect()
    }

    fn machine(&self) -> String {
        mpi::environment::processor_name().unwrap_or_else(|_| "a machine".to_owned())
    }

    fn abort(&self, code: i32) -> ! {
        self.world.abort(code)
    }
}
