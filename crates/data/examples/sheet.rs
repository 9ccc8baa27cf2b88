//! Contact sheets, to look at what a model sees.
//!
//! ```sh
//! cargo run --example sheet -- world world.png          # a row per class
//! cargo run --example sheet -- strange strange.png      # near and far out-of-distribution scenes
//! cargo run --example sheet -- corruptions grid.png     # a row per corruption, clean to severity 5
//! ```

#![expect(clippy::print_stderr, reason = "a program speaks to its user")]

use std::{env, path::Path, process::ExitCode};

use omma_base::{Resolution, Seed};
use omma_data::{
    Dataset, Picture, Split,
    corrupt::{Corruption, SEVERITIES},
    world::{Variant, World},
};

const GAP: usize = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (kind, path) = match arguments.as_slice() {
        [kind, path] => (kind.as_str(), Path::new(path)),
        _ => {
            eprintln!("usage: sheet world|strange|corruptions out.png");
            return ExitCode::from(2);
        }
    };
    let rows = match kind {
        "world" => world(),
        "strange" => strange(),
        "corruptions" => corruptions(),
        other => {
            eprintln!("there is no sheet called {other}");
            return ExitCode::from(2);
        }
    };
    match rows.and_then(|rows| sheet(&rows).save_png(path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Rows = omma_data::Result<Vec<Vec<Picture>>>;

fn scenes(side: usize, split: Split, variant: Variant) -> World {
    World::new(0, Resolution::square(side), 4000, split, variant)
}

/// Five scenes of every class, each in 32 and in 64 pixels.
fn world() -> Rows {
    let [small, large] = [32, 64].map(|size| scenes(size, Split::Train, Variant::Usual));
    (0..large.classes().len())
        .map(|class| {
            let scenes = (0..large.len()).filter(|index| large.label(*index) == class);
            let pairs = scenes.take(5).flat_map(|index| {
                [(&small, 4), (&large, 2)]
                    .map(|(world, times)| Ok(magnified(&world.get(index)?.picture, times)))
            });
            pairs.collect()
        })
        .collect()
}

/// Four rows of near and four of far scenes, 64 pixels wide.
fn strange() -> Rows {
    [Variant::NearOod, Variant::FarOod]
        .into_iter()
        .flat_map(|variant| (0..4).map(move |row| (variant, row)))
        .map(|(variant, row)| {
            let world = scenes(64, Split::Test, variant);
            (0..10).map(|i| Ok(magnified(&world.get(row * 10 + i)?.picture, 2))).collect()
        })
        .collect()
}

/// A scene through all severities of each corruption.
fn corruptions() -> Rows {
    let world = scenes(32, Split::Test, Variant::Usual);
    Corruption::ALL
        .iter()
        .enumerate()
        .map(|(row, corruption)| {
            let clean = world.get(row)?.picture;
            let seed = Seed::new(row as u64);
            let column = |severity| magnified(&corruption.apply(&clean, severity, seed), 2);
            Ok((0..=SEVERITIES).map(column).collect())
        })
        .collect()
}

fn magnified(picture: &Picture, times: usize) -> Picture {
    let (width, height) = (picture.width * times, picture.height * times);
    let pixels = (0..width * height).flat_map(|i| picture.at(i % width / times, i / width / times));
    Picture { width, height, pixels: pixels.collect() }
}

fn sheet(rows: &[Vec<Picture>]) -> Picture {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = rows.iter().flatten().map(|picture| picture.width.max(picture.height)).max();
    let cell = cell.unwrap_or(1) + GAP;
    let mut sheet = Picture::filled(columns * cell + GAP, rows.len() * cell + GAP, [255; 3]);
    for (row, pictures) in rows.iter().enumerate() {
        for (column, picture) in pictures.iter().enumerate() {
            for y in 0..picture.height {
                let to = ((row * cell + GAP + y) * sheet.width + column * cell + GAP) * 3;
                let from = &picture.pixels[y * picture.width * 3..(y + 1) * picture.width * 3];
                sheet.pixels[to..to + from.len()].copy_from_slice(from);
            }
        }
    }
    sheet
}
