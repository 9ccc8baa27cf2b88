//! All ranks, as one of them sees them.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{link::Link, threads::alone};

/// All ranks, or some of them, as one of them sees them. They call the same methods in the same order.
#[derive(Clone)]
pub struct World {
    link: Arc<dyn Link>,
    traffic: Arc<Mutex<Traffic>>,
    /// Whether what is waited for leaves the processor to others.
    patient: bool,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

/// What communication took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes that this rank has sent to others.
    pub bytes: u64,
    /// Time until everything was there, waiting for slower ranks included.
    pub time: Duration,
}

impl World {
    pub(crate) fn of(link: Box<dyn Link>) -> Self {
        Self { link: link.into(), traffic: Arc::default(), patient: false }
    }

    /// A single process.
    pub fn alone() -> Self {
        Self::of(Box::new(alone()))
    }

    /// Which rank this is; 0 leads.
    pub fn rank(&self) -> usize {
        self.link.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.link.size()
    }

    /// Whether there are no others.
    pub fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Whether this rank reads and writes the run.
    pub fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// The machine that this rank runs on.
    pub fn machine(&self) -> String {
        self.link.machine()
    }

    /// The ranks alone that say the same colour, in the same order. What they say to each other is counted by itself.
    pub fn split(&self, colour: usize) -> Self {
        Self::of(self.link.split(colour))
    }

    /// The same ranks for whoever speaks to them while others compute: waiting takes no processor. What is said is
    /// counted together.
    pub fn patient(&self) -> Self {
        Self { patient: true, ..self.clone() }
    }

    /// Whether others compute meanwhile.
    pub(crate) fn is_patient(&self) -> bool {
        self.patient
    }

    /// What was sent since the last time, and how long it took.
    pub fn take_traffic(&self) -> Traffic {
        std::mem::take(&mut *self.traffic.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Values for every rank, of which each gets its part, and those of every rank for this one; both one after the
    /// other.
    ///
    /// - `sent`, `received`: how many values each rank gets and gives
    pub fn all_to_all(&self, send: Vec<f32>, sent: &[usize], received: &[usize]) -> Vec<f32> {
        let to_others = send.len() - sent[self.rank()];
        self.timed(4 * to_others, |link| link.all_to_all(send, sent, received, self.patient))
    }

    /// The parts of all ranks one after the other, everywhere.
    ///
    /// - `counts`: how many values each rank has
    pub fn all_gather(&self, own: Vec<f32>, counts: &[usize]) -> Vec<f32> {
        let bytes = 4 * own.len() * (self.size() - 1);
        self.timed(bytes, |link| link.all_gather(own, counts, self.patient))
    }

    /// Values of rank 0, everywhere; the others give as many.
    pub fn broadcast(&self, values: Vec<f32>) -> Vec<f32> {
        match self.is_alone() {
            true => values,
            false => self.link.broadcast(values),
        }
    }

    /// Says what rank 0 says to all. Until it says something, the others wait, without a processor.
    ///
    /// # Panics
    ///
    /// If rank 0 has nothing to say.
    pub fn told<T: Serialize + DeserializeOwned>(&self, by_leader: Option<T>) -> T {
        let own = by_leader.as_ref().map(written);
        if let Some(said) = by_leader.filter(|_| self.is_alone()) {
            return said;
        }
        let bytes = own.unwrap_or_default();
        assert!(!self.leads() || !bytes.is_empty(), "rank 0 says what is done next");
        read(&self.link.broadcast_bytes(bytes))
    }

    /// What every rank has to say, everywhere, in their order.
    pub fn shared<T: Serialize + DeserializeOwned>(&self, own: T) -> Vec<T> {
        if self.is_alone() {
            return vec![own];
        }
        let own = written(&own);
        let bytes = own.len() * (self.size() - 1);
        let all = self.timed(bytes, |link| link.gather_bytes(own));
        all.iter().map(|bytes| read(bytes)).collect()
    }

    /// Ends all ranks at once, for a fault that others may not learn of in another way.
    pub fn abort(&self, code: i32) -> ! {
        self.link.abort(code)
    }

    fn timed<R>(&self, bytes: usize, work: impl FnOnce(&dyn Link) -> R) -> R {
        let begin = Instant::now();
        let found = work(self.link.as_ref());
        let mut traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        traffic.bytes += bytes as u64;
        traffic.time += begin.elapsed();
        found
    }
}

/// CBOR, which has a word for every number, also those that are not finite.
fn written(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("what ranks say can be written");
    bytes
}

/// All ranks run the same program, which is the first thing that they make sure of.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> T {
    ciborium::from_reader(bytes).expect("ranks understand each other")
}

#[cfg(test)]
mod tests {
    use crate::threads;

    #[test]
    fn every_rank_gets_what_is_for_it() {
        // Rank r has 10 r + c for rank c, once more than r times.
        let found = threads(3, |world| {
            let rank = world.rank();
            let send: Vec<f32> =
                (0..3).flat_map(|to| vec![(10 * rank + to) as f32; rank + 1]).collect();
            let found = world.all_to_all(send, &[rank + 1; 3], &[1, 2, 3]);
            (found, world.take_traffic().bytes)
        });
        for (rank, (values, bytes)) in found.into_iter().enumerate() {
            let of = |from: usize| (10 * from + rank) as f32;
            assert_eq!(values, [of(0), of(1), of(1), of(2), of(2), of(2)]);
            assert_eq!(bytes, 4 * 2 * (rank as u64 + 1));
        }
    }

    #[test]
    fn parts_are_gathered_in_the_order_of_ranks() {
        let found = threads(3, |world| {
            let own = vec![world.rank() as f32; world.rank()];
            world.all_gather(own, &[0, 1, 2])
        });
        assert_eq!(found, vec![vec![1.0, 2.0, 2.0]; 3]);
    }

    #[test]
    fn rank_0_is_heard_and_every_rank_by_every_other() {
        let found = threads(3, |world| {
            let values = world.broadcast(vec![world.rank() as f32 + 1.0]);
            let heard: String = world.told(world.leads().then(|| "go".to_owned()));
            (values[0], heard, world.shared(10 * world.rank()))
        });
        assert_eq!(found, vec![(1.0, "go".to_owned(), vec![0, 10, 20]); 3]);
    }

    #[test]
    fn numbers_are_said_to_the_bit() {
        let numbers = vec![0.1 + 0.2, -0.0, f64::NAN, f64::NEG_INFINITY, 1e-310, 0.5];
        let bits = |numbers: &[f64]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let floats = vec![0.1_f32, f32::NAN, -0.0, f32::MIN_POSITIVE / 4.0];
        let found = threads(2, |world| world.shared((numbers.clone(), floats.clone())));
        for (heard, singles) in found.into_iter().flatten() {
            assert_eq!(bits(&heard), bits(&numbers));
            let bits = |floats: &[f32]| floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&singles), bits(&floats));
        }
    }

    #[test]
    fn ranks_of_one_colour_are_among_themselves() {
        let found = threads(4, |world| {
            let few = world.split(world.rank() % 2);
            let told: usize = few.told(few.leads().then(|| world.rank()));
            (few.rank(), few.shared(world.rank()), told, world.take_traffic().bytes)
        });
        let of = |rank: usize| (rank / 2, vec![rank % 2, rank % 2 + 2], rank % 2, 0);
        assert_eq!(found, (0..4).map(of).collect::<Vec<_>>());
    }
}
