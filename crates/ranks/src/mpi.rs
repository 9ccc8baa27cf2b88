//! Ranks that a launcher of MPI has started.
//!
//! MPI is spoken to by a thread of its own, which whoever computes leaves its words with: experts that are spread
//! over ranks communicate in the middle of a backward pass, on whatever thread that runs.

use std::{
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mpi::{
    Count, Threading,
    datatype::{Partition, PartitionMut},
    request::{Request, Scope},
    topology::{Color, SimpleCommunicator},
    traits::{Communicator, CommunicatorCollectives, Root},
};

use crate::{launch::LaunchError, link::Link};

/// Values of one broadcast: MPI counts with 31 bits.
const AT_A_TIME: usize = 1 << 28;
/// How long a rank that waits for word of rank 0 keeps looking without a pause.
const KEEN: Duration = Duration::from_millis(5);
/// Between two looks after that.
const PAUSE: Duration = Duration::from_micros(500);
/// Between two looks of one whose processor has something else to do.
const SHORT_PAUSE: Duration = Duration::from_micros(50);

/// All communicators of a process, the world first.
type Communicators = Vec<SimpleCommunicator>;
/// What the thread of MPI is to do.
type Work = Box<dyn FnOnce(&mut Communicators) + Send>;

/// The thread that speaks to MPI. It ends, and MPI with it, when nobody has anything to say any more.
struct Speaker {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Speaker {
    fn start() -> Result<Self, LaunchError> {
        let (work, all) = channel::<Work>();
        let (begun, begins) = channel();
        let thread = std::thread::Builder::new().name("mpi".to_owned()).spawn(move || {
            let found = mpi::initialize_with_threading(Threading::Funneled);
            let Some((universe, _)) = found else { return };
            let mut communicators = vec![universe.world()];
            let _ = begun.send(());
            all.into_iter().for_each(|work: Work| work(&mut communicators));
            // What was split off goes before MPI ends.
            drop(communicators);
            drop(universe);
        });
        let thread = thread.map_err(|error| LaunchError::Mpi(error.to_string()))?;
        match begins.recv() {
            Ok(()) => Ok(Self { work: Some(work), thread: Some(thread) }),
            Err(_) => Err(LaunchError::Mpi("it runs already".to_owned())),
        }
    }

    fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Communicators) -> R + Send + 'static,
    ) -> R {
        let (send, receive) = channel();
        let work: Work = Box::new(move |communicators| _ = send.send(work(communicators)));
        let sent = self.work.as_ref().is_some_and(|all| all.send(work).is_ok());
        assert!(sent, "the thread of MPI ends last");
        receive.recv().expect("MPI answers, or ends the process")
    }
}

impl Drop for Speaker {
    /// A rank that panics must not wait for the others to come to their end.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.run(|communicators| communicators[0].abort(101));
        }
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One rank among those of a communicator.
pub(crate) struct Mpi {
    speaker: Arc<Speaker>,
    /// Its communicator's place among all.
    number: usize,
    rank: usize,
    size: usize,
}

impl Mpi {
    pub(crate) fn connect() -> Result<Self, LaunchError> {
        Ok(Self::of(Arc::new(Speaker::start()?), 0))
    }

    fn of(speaker: Arc<Speaker>, number: usize) -> Self {
        let (rank, size) = speaker.run(move |all| (all[number].rank(), all[number].size()));
        Self { speaker, number, rank: rank as usize, size: size as usize }
    }

    fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&SimpleCommunicator) -> R + Send + 'static,
    ) -> R {
        let number = self.number;
        self.speaker.run(move |all| work(&all[number]))
    }
}

/// Broadcasts while whoever waits sleeps.
fn broadcast_patiently<T>(communicator: &SimpleCommunicator, values: &mut [T])
where
    [T]: mpi::traits::BufferMut,
{
    let root = communicator.process_at_rank(0);
    mpi::request::scope(|scope| {
        let begin = Instant::now();
        look_until_done(root.immediate_broadcast_into(scope, values), || {
            if begin.elapsed() > KEEN {
                std::thread::sleep(PAUSE);
            }
        });
    });
}

/// Waits for what was begun, with something else between two looks.
fn look_until_done<'a, D: ?Sized, S: Scope<'a>>(request: Request<'a, D, S>, between: impl Fn()) {
    let mut request = request;
    while let Err(again) = request.test() {
        request = again;
        between();
    }
}

fn rest() {
    std::thread::sleep(SHORT_PAUSE);
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
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_to_all(
        &self,
        send: Vec<f32>,
        sent: &[usize],
        received: &[usize],
        patient: bool,
    ) -> Vec<f32> {
        let mut receive = vec![0.0; received.iter().sum()];
        let (sent, from) = places(sent);
        let (received, to) = places(received);
        self.run(move |communicator| {
            let send = Partition::new(&send[..], sent, from);
            let mut to_fill = PartitionMut::new(&mut receive[..], received, to);
            match patient {
                false => communicator.all_to_all_varcount_into(&send, &mut to_fill),
                true => mpi::request::scope(|scope| {
                    let begun =
                        communicator.immediate_all_to_all_varcount_into(scope, &send, &mut to_fill);
                    look_until_done(begun, rest);
                }),
            }
            receive
        })
    }

    fn all_gather(&self, own: Vec<f32>, counts: &[usize], patient: bool) -> Vec<f32> {
        let mut all = vec![0.0; counts.iter().sum()];
        let (counts, places) = places(counts);
        self.run(move |communicator| {
            let mut to_fill = PartitionMut::new(&mut all[..], counts, places);
            match patient {
                false => communicator.all_gather_varcount_into(&own[..], &mut to_fill),
                true => mpi::request::scope(|scope| {
                    let begun = communicator.immediate_all_gather_varcount_into(
                        scope,
                        &own[..],
                        &mut to_fill,
                    );
                    look_until_done(begun, rest);
                }),
            }
            all
        })
    }

    fn broadcast(&self, mut values: Vec<f32>) -> Vec<f32> {
        self.run(move |communicator| {
            let root = communicator.process_at_rank(0);
            values.chunks_mut(AT_A_TIME).for_each(|part| root.broadcast_into(part));
            values
        })
    }

    fn broadcast_bytes(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        self.run(move |communicator| {
            let mut length = [bytes.len() as u64];
            broadcast_patiently(communicator, &mut length);
            bytes.resize(length[0] as usize, 0);
            let parts = bytes.chunks_mut(AT_A_TIME);
            parts.for_each(|part| broadcast_patiently(communicator, part));
            bytes
        })
    }

    fn gather_bytes(&self, own: Vec<u8>) -> Vec<Vec<u8>> {
        let size = self.size;
        self.run(move |communicator| {
            let mut lengths = vec![0_u64; size];
            communicator.all_gather_into(&[own.len() as u64][..], &mut lengths[..]);
            let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
            let mut all = vec![0; lengths.iter().sum()];
            let (counts, firsts) = places(&lengths);
            let mut to_fill = PartitionMut::new(&mut all[..], counts, firsts);
            communicator.all_gather_varcount_into(&own[..], &mut to_fill);
            let mut rest = all.as_slice();
            let next = |length: usize| {
                let (own, left) = rest.split_at(length);
                rest = left;
                own.to_vec()
            };
            lengths.into_iter().map(next).collect()
        })
    }

    fn split(&self, colour: usize) -> Box<dyn Link> {
        let number = self.number;
        let split = self.speaker.run(move |all| {
            let colour = Color::with_value(Count::try_from(colour).expect("colours are ranks"));
            let own = all[number].split_by_color(colour).expect("every rank has a colour");
            all.push(own);
            all.len() - 1
        });
        Box::new(Self::of(self.speaker.clone(), split))
    }

    fn machine(&self) -> String {
        let name = self.run(|_| mpi::environment::processor_name().ok());
        name.unwrap_or_else(|| "a machine".to_owned())
    }

    fn abort(&self, code: i32) -> ! {
        self.run(move |communicator| communicator.abort(code))
    }
}
