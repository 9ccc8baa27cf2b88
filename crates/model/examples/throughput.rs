//! How fast a checkpoint predicts, and how much memory it takes.
//!
//! ```sh
//! omma init vmoe-b32 b32/
//! cargo run --release --example throughput -- b32/ 8 5
//! ```
//!
//! Arguments: the checkpoint, images per batch, and batches to take the median of. Memory is the
//! process's peak as Linux reports it.

#![expect(clippy::print_stdout, reason = "a program")]

use std::{error::Error, fs, path::Path, time::Instant};

use burn::tensor::{Device, Distribution, Tensor};
use omma_base::Seed;
use omma_kernels::memory::Allocator;
use omma_model::checkpoint;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The most memory so far, in bytes.
fn peak_memory() -> f64 {
    omma_base::memory::peak().map_or(f64::NAN, |bytes| bytes as f64)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, batch, rounds] = arguments.as_slice() else {
        return Err("usage: throughput CHECKPOINT BATCH ROUNDS".into());
    };
    let (batch, rounds): (usize, usize) = (batch.parse()?, rounds.parse()?);
    let path = checkpoint::weights_path(Path::new(folder));
    let size = fs::metadata(&path)?.len() as f64;
    let start = Instant::now();
    let model = checkpoint::load(&path, &Device::flex())?;
    let loading = start.elapsed().as_secs_f64();
    let gigabytes = |bytes: f64| bytes / 1e9;
    let peak = peak_memory();
    println!(
        "loaded {:.2} GB in {loading:.1} s; peak memory {:.2} GB, {:.2} × the file",
        gigabytes(size),
        gigabytes(peak),
        peak / size
    );
    let image = &model.config().image;
    let resolution = image.resolution;
    let shape = [batch, resolution.height, resolution.width, image.channels];
    let images = Tensor::<4>::random(shape, Distribution::Uniform(-1.0, 1.0), &Device::flex());
    let mut seconds: Vec<f64> = (0..rounds.max(1) + 1)
        .map(|_| {
            let start = Instant::now();
            model.predict(images.clone(), Seed::new(0)).map(|_| start.elapsed().as_secs_f64())
        })
        .collect::<Result<_, _>>()?;
    seconds.remove(0); // the first one warms up
    seconds.sort_by(f64::total_cmp);
    println!(
        "{:.2} images/s at {resolution} px in batches of {batch}; peak memory {:.2} GB",
        batch as f64 / seconds[seconds.len() / 2],
        gigabytes(peak_memory())
    );
    Ok(())
}
