//! How fast ranks are, for `omma plan`:
//! `cargo build --release --features omma/mpi --example speed && mpirun -n 2 target/release/examples/speed`

#![expect(clippy::print_stdout, reason = "that is what it is for")]

use std::time::Instant;

use omma_ranks::World;

/// Values that each rank sends in all: 64 MiB.
const MANY: usize = 16 << 20;
const TIMES: usize = 10;

/// Seconds of one exchange of all with all, in which a rank sends so many values to others.
fn exchange(world: &World, values: usize) -> f64 {
    let (ranks, rank) = (world.size(), world.rank());
    let mut counts = vec![values / (ranks - 1); ranks];
    counts[rank] = 0;
    let swap = || world.all_to_all(vec![1.0; counts.iter().sum()], &counts, &counts);
    swap();
    let begin = Instant::now();
    (0..TIMES).for_each(|_| _ = swap());
    begin.elapsed().as_secs_f64() / TIMES as f64
}

/// Bytes per second of reading two vectors and writing one of them, while all ranks do.
fn memory(world: &World) -> f64 {
    let (mut sum, other) = (vec![0.0_f32; MANY], vec![1.0_f32; MANY]);
    world.shared(());
    let begin = Instant::now();
    for _ in 0..TIMES {
        sum.iter_mut().zip(&other).for_each(|(a, b)| *a += b);
    }
    let bytes = 3 * size_of::<f32>() * MANY * TIMES;
    assert!(sum[0] > 0.0);
    bytes as f64 / begin.elapsed().as_secs_f64()
}

fn main() -> Result<(), omma_ranks::LaunchError> {
    let world = omma_ranks::connect()?;
    let memory = memory(&world);
    if world.is_alone() {
        println!("--memory-bandwidth {:.1}GB/s", memory / 1e9);
        return Ok(());
    }
    let (long, short) = (exchange(&world, MANY), exchange(&world, world.size() - 1));
    if world.leads() {
        let bandwidth = (size_of::<f32>() * MANY) as f64 / (long - short);
        println!(
            "--bandwidth {:.2}GB/s --latency {:.1}us --memory-bandwidth {:.1}GB/s",
            bandwidth / 1e9,
            1e6 * short,
            memory / 1e9
        );
    }
    Ok(())
}
