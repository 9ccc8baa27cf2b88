//! Contrast, elastic deformation, pixels, JPEG.

use std::path::Path;

use rand::{Rng, RngExt};

use super::Canvas;
use crate::picture::Picture;

pub(super) fn contrast(canvas: Canvas, step: usize) -> Canvas {
    let factor = [0.75, 0.5, 0.4, 0.3, 0.15][step];
    let count = canvas.values.len() as f32;
    let mean: [f32; 3] =
        std::array::from_fn(|c| canvas.values.iter().map(|value| value[c]).sum::<f32>() / count);
    canvas.map(|value| std::array::from_fn(|c| mean[c] + (value[c] - mean[c]) * factor))
}

/// Pushed about by a smooth random field.
pub(super) fn elastic(canvas: &Canvas, step: usize, rng: &mut impl Rng) -> Canvas {
    let amplitude = [0.5, 0.8, 1.15, 1.6, 2.2][step] * canvas.unit();
    // A coarse grid of pushes, interpolated.
    let cells = 5;
    let mut field = || -> Vec<f32> {
        (0..(cells + 1) * (cells + 1)).map(|_| rng.random_range(-1.0..1.0)).collect()
    };
    let (pushes_x, pushes_y) = (field(), field());
    let at = |field: &[f32], x: usize, y: usize| {
        let (fx, fy) = (
            x as f32 / canvas.width as f32 * cells as f32,
            y as f32 / canvas.height as f32 * cells as f32,
        );
        let (left, top) = (fx as usize, fy as usize);
        let (tx, ty) = (fx - left as f32, fy - top as f32);
        let value = |dx: usize, dy: usize| field[(top + dy) * (cells + 1) + left + dx];
        let upper = value(0, 0) + (value(1, 0) - value(0, 0)) * tx;
        let lower = value(0, 1) + (value(1, 1) - value(0, 1)) * tx;
        upper + (lower - upper) * ty
    };
    canvas.moved(|x, y| {
        (x as f32 + amplitude * at(&pushes_x, x, y), y as f32 + amplitude * at(&pushes_y, x, y))
    })
}

/// Blocks of the mean of what they cover.
pub(super) fn pixelate(canvas: &Canvas, step: usize) -> Canvas {
    let share = [0.9, 0.75, 0.65, 0.5, 0.35][step];
    let blocks = |side: usize| ((side as f32 * share).round() as usize).max(1);
    let (across, down) = (blocks(canvas.width), blocks(canvas.height));
    // How much of every pixel lies in a block.
    let parts = |block: usize, blocks: usize, side: usize| {
        let edge = |block: usize| block as f32 * side as f32 / blocks as f32;
        let (from, to) = (edge(block), edge(block + 1));
        (from as usize..(to.ceil() as usize).min(side))
            .map(move |place| (place, to.min(place as f32 + 1.0) - from.max(place as f32)))
    };
    let mut means = Vec::with_capacity(across * down);
    for row in 0..down {
        for column in 0..across {
            let (mut sum, mut total) = ([0.0; 3], 0.0);
            for (y, height) in parts(row, down, canvas.height) {
                for (x, width) in parts(column, across, canvas.width) {
                    let value = canvas.values[y * canvas.width + x];
                    (0..3).for_each(|c| sum[c] += value[c] * width * height);
                    total += width * height;
                }
            }
            means.push(sum.map(|value| value / total));
        }
    }
    let block = |place: usize, blocks: usize, side: usize| (2 * place + 1) * blocks / (2 * side);
    let values = (0..canvas.values.len()).map(|i| {
        let column = block(i % canvas.width, across, canvas.width);
        means[block(i / canvas.width, down, canvas.height) * across + column]
    });
    Canvas { values: values.collect(), ..*canvas }
}

pub(super) fn jpeg(picture: &Picture, step: usize) -> Picture {
    let quality = [60, 40, 25, 15, 8][step];
    let mut bytes = Vec::new();
    let encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, quality);
    let (width, height) = (picture.width as u32, picture.height as u32);
    let color = image::ExtendedColorType::Rgb8;
    let encoded = image::ImageEncoder::write_image(encoder, &picture.pixels, width, height, color);
    match encoded {
        Ok(()) => Picture::decode(&bytes, Path::new("jpeg")).unwrap_or_else(|_| picture.clone()),
        Err(_) => picture.clone(),
    }
}
