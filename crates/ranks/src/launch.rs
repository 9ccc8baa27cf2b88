//! Whether this process is one of several.

use thiserror::Error;

use crate::world::World;

/// Why a process cannot find the others.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "every message says what its fields are")]
pub enum LaunchError {
    #[error(
        "this process is one of {ranks} that were started together, and this program was built without MPI: \
         build it with --features mpi, or start it once"
    )]
    WithoutMpi { ranks: String },
    #[error("MPI could not be started: {0}")]
    Mpi(String),
}

/// What launchers say of how many processes they start: Open MPI's mpirun, MPICH's and Slurm's PMI.
const SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
/// What they say to each; Slurm's PMIx says only this.
const RANKS: [&str; 1] = ["PMIX_RANK"];

/// How many processes a launcher has started together with this one, where it says so.
pub fn launched() -> Option<usize> {
    SIZES.iter().find_map(|name| std::env::var(name).ok())?.parse().ok()
}

/// The ranks that a launcher such as `mpirun` has started with this process; alone where it has not.
///
/// Where ranks may use the same cores, these are divided among them, unless `RAYON_NUM_THREADS` says how many
/// threads each has. To be called before anything computes.
pub fn connect() -> Result<World, LaunchError> {
    let said = |name: &&str| std::env::var(name).ok();
    let size = SIZES.iter().find_map(said);
    let launched = size.is_some() || RANKS.iter().any(|name| said(name).is_some());
    match size.as_deref() {
        _ if !launched => Ok(World::alone()),
        Some("1") => Ok(World::alone()),
        size => together(size),
    }
}

#[cfg(not(feature = "mpi"))]
fn together(size: Option<&str>) -> Result<World, LaunchError> {
    Err(LaunchError::WithoutMpi { ranks: size.unwrap_or("several").to_owned() })
}

#[cfg(feature = "mpi")]
fn together(_: Option<&str>) -> Result<World, LaunchError> {
    let world = World::of(Box::new(crate::mpi::Mpi::connect()?));
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        let threads = own_cores(&world);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
        pool.map_err(|error| LaunchError::Mpi(error.to_string()))?;
    }
    Ok(world)
}

/// Cores that this rank may use, divided by the ranks that may use the same.
#[cfg(feature = "mpi")]
fn own_cores(world: &World) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"));
    let own = (world.machine(), allowed.unwrap_or_default().to_owned());
    let beside = world.shared(own.clone()).into_iter().filter(|other| *other == own).count();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    (cores / beside.max(1)).max(1)
}
