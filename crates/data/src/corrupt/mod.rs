//! The fifteen common corruptions in five severities (Hendrycks and Dietterich 2019; paper 000 App. A.6),
//! made on the fly. Gaussian and shot noise and contrast have the steps of CIFAR-10-C (the noises those of
//! ImageNet-C above 64 pixels); the other steps are our own, in the same spirit, with lengths that grow with
//! the image's side, and frost is drawn instead of photographed. Results are not comparable with those on
//! the published files.

mod blur;
mod digital;
mod noise;
mod weather;

use omma_base::Seed;

use crate::picture::Picture;

/// One way in which images go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the benchmark")]
pub enum Corruption {
    GaussianNoise,
    ShotNoise,
    ImpulseNoise,
    DefocusBlur,
    GlassBlur,
    MotionBlur,
    ZoomBlur,
    Snow,
    Frost,
    Fog,
    Brightness,
    Contrast,
    ElasticTransform,
    Pixelate,
    JpegCompression,
}

/// The highest severity.
pub const SEVERITIES: usize = 5;

impl Corruption {
    /// In the benchmark's order: noise, blur, weather, digital.
    pub const ALL: [Self; 15] = [
        Self::GaussianNoise,
        Self::ShotNoise,
        Self::ImpulseNoise,
        Self::DefocusBlur,
        Self::GlassBlur,
        Self::MotionBlur,
        Self::ZoomBlur,
        Self::Snow,
        Self::Frost,
        Self::Fog,
        Self::Brightness,
        Self::Contrast,
        Self::ElasticTransform,
        Self::Pixelate,
        Self::JpegCompression,
    ];

    /// The name in the benchmark's files.
    pub fn name(self) -> &'static str {
        match self {
            Self::GaussianNoise => "gaussian_noise",
            Self::ShotNoise => "shot_noise",
            Self::ImpulseNoise => "impulse_noise",
            Self::DefocusBlur => "defocus_blur",
            Self::GlassBlur => "glass_blur",
            Self::MotionBlur => "motion_blur",
            Self::ZoomBlur => "zoom_blur",
            Self::Snow => "snow",
            Self::Frost => "frost",
            Self::Fog => "fog",
            Self::Brightness => "brightness",
            Self::Contrast => "contrast",
            Self::ElasticTransform => "elastic_transform",
            Self::Pixelate => "pixelate",
            Self::JpegCompression => "jpeg_compression",
        }
    }

    /// The corrupted image.
    ///
    /// - `severity`: 1 to 5; 0 leaves the image as it is
    pub fn apply(self, picture: &Picture, severity: usize, seed: Seed) -> Picture {
        let Some(step) = severity.min(SEVERITIES).checked_sub(1) else { return picture.clone() };
        let mut rng = seed.named(self.name()).rng();
        let canvas = Canvas::new(picture);
        let small = picture.width.min(picture.height) <= 64;
        match self {
            Self::GaussianNoise => noise::gaussian(canvas, step, small, &mut rng),
            Self::ShotNoise => noise::shot(canvas, step, small, &mut rng),
            Self::ImpulseNoise => noise::impulse(canvas, step, &mut rng),
            Self::DefocusBlur => blur::defocus(&canvas, step),
            Self::GlassBlur => blur::glass(canvas, step, &mut rng),
            Self::MotionBlur => blur::motion(&canvas, step, &mut rng),
            Self::ZoomBlur => blur::zoom(&canvas, step),
            Self::Snow => weather::snow(canvas, step, &mut rng),
            Self::Frost => weather::frost(canvas, step, &mut rng),
            Self::Fog => weather::fog(canvas, step, &mut rng),
            Self::Brightness => weather::brightness(canvas, step),
            Self::Contrast => digital::contrast(canvas, step),
            Self::ElasticTransform => digital::elastic(&canvas, step, &mut rng),
            Self::Pixelate => digital::pixelate(&canvas, step),
            Self::JpegCompression => return digital::jpeg(picture, step),
        }
        .finish()
    }
}

/// A picture as floats in `0..=1`.
#[derive(Debug, Clone)]
struct Canvas {
    width: usize,
    height: usize,
    values: Vec<[f32; 3]>,
}

impl Canvas {
    fn new(picture: &Picture) -> Self {
        let values = picture.pixels.chunks_exact(3);
        let values = values.map(|p| [p[0], p[1], p[2]].map(|v| f32::from(v) / 255.0)).collect();
        Self { width: picture.width, height: picture.height, values }
    }

    fn finish(self) -> Picture {
        let level = |value: f32| (value * 255.0).round().clamp(0.0, 255.0) as u8;
        let pixels = self.values.iter().flat_map(|pixel| pixel.map(level)).collect();
        Picture { width: self.width, height: self.height, pixels }
    }

    /// Lengths of the benchmarks are for the side of 32 pixels.
    fn unit(&self) -> f32 {
        self.width.min(self.height) as f32 / 32.0
    }

    fn at(&self, x: isize, y: isize) -> [f32; 3] {
        let x = x.clamp(0, self.width as isize - 1) as usize;
        let y = y.clamp(0, self.height as isize - 1) as usize;
        self.values[y * self.width + x]
    }

    /// Between pixels.
    fn sample(&self, x: f32, y: f32) -> [f32; 3] {
        let (left, top) = (x.floor(), y.floor());
        let (fx, fy) = (x - left, y - top);
        let at = |dx: isize, dy: isize| self.at(left as isize + dx, top as isize + dy);
        let [nw, ne, sw, se] = [at(0, 0), at(1, 0), at(0, 1), at(1, 1)];
        std::array::from_fn(|c| {
            let upper = nw[c] + (ne[c] - nw[c]) * fx;
            let lower = sw[c] + (se[c] - sw[c]) * fx;
            upper + (lower - upper) * fy
        })
    }

    /// Every pixel from a place of its own.
    fn moved(&self, place: impl Fn(usize, usize) -> (f32, f32)) -> Self {
        let pixels = (0..self.width * self.height).map(|i| {
            let (x, y) = place(i % self.width, i / self.width);
            self.sample(x, y)
        });
        Self { values: pixels.collect(), ..*self }
    }

    fn map(mut self, change: impl Fn([f32; 3]) -> [f32; 3]) -> Self {
        self.values.iter_mut().for_each(|value| *value = change(*value));
        self
    }

    /// Averages with the given weights around every pixel.
    fn convolved(&self, kernel: &[(isize, isize, f32)]) -> Self {
        let total: f32 = kernel.iter().map(|(_, _, weight)| weight).sum();
        let pixels = (0..self.width * self.height).map(|i| {
            let (x, y) = ((i % self.width) as isize, (i / self.width) as isize);
            let mut sum = [0.0; 3];
            for (dx, dy, weight) in kernel {
                let value = self.at(x + dx, y + dy);
                (0..3).for_each(|c| sum[c] += value[c] * weight);
            }
            sum.map(|value| value / total)
        });
        Self { values: pixels.collect(), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Resolution;

    use super::*;
    use crate::{
        dataset::{Dataset, Split},
        world::{Variant, World},
    };

    #[test]
    fn each_changes_more_with_severity_and_repeats() {
        for (size, count) in [(32, 24), (64, 4)] {
            let world = World::new(5, Resolution::square(size), count, Split::Test, Variant::Usual);
            let pictures: Vec<Picture> =
                (0..count).map(|index| world.get(index).unwrap().picture).collect();
            for corruption in Corruption::ALL {
                let mut before = 0.0;
                for severity in 0..=SEVERITIES {
                    let changed = |(i, picture): (usize, &Picture)| {
                        let seed = Seed::new(i as u64);
                        let once = corruption.apply(picture, severity, seed);
                        if i < 4 {
                            assert_eq!(once, corruption.apply(picture, severity, seed));
                        }
                        assert_eq!((once.width, once.height), (size, size));
                        picture.difference(&once)
                    };
                    let mean = pictures.iter().enumerate().map(changed).sum::<f64>() / count as f64;
                    let name = corruption.name();
                    assert!(
                        severity == 0 && mean == 0.0 || mean > before,
                        "{name} of severity {severity} at {size} px changes {mean}, one less {before}"
                    );
                    before = mean;
                }
            }
        }
    }

    /// A gray image of 12,288 values.
    fn gray(value: f32) -> Canvas {
        Canvas { width: 64, height: 64, values: vec![[value; 3]; 64 * 64] }
    }

    /// Mean and variance.
    fn moments<'a>(values: impl Iterator<Item = &'a f32> + Clone) -> (f64, f64) {
        let count = values.clone().count() as f64;
        let mean = values.clone().map(|v| f64::from(*v)).sum::<f64>() / count;
        let squares = values.map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>();
        (mean, squares / count)
    }

    /// Steps of CIFAR-10-C, then of ImageNet-C.
    #[test]
    fn gaussian_noise_has_published_deviations() {
        for (small, deviations) in
            [(true, [0.04, 0.06, 0.08, 0.09, 0.10]), (false, [0.08, 0.12, 0.18, 0.26, 0.38])]
        {
            for (step, expected) in deviations.into_iter().enumerate() {
                let noisy = noise::gaussian(gray(0.5), step, small, &mut Seed::new(7).rng());
                let (mean, variance) = moments(noisy.values.iter().flatten());
                let found = variance.sqrt();
                assert!((found / expected - 1.0).abs() < 0.03, "{found}, expected {expected}");
                assert!((mean - 0.5).abs() < 0.03 * expected, "{mean}");
            }
        }
    }

    /// Steps of CIFAR-10-C, then of ImageNet-C.
    #[test]
    fn shot_noise_variance_is_value_per_published_photons() {
        for (small, photons) in
            [(true, [500.0, 250.0, 100.0, 75.0, 50.0]), (false, [60.0, 25.0, 12.0, 5.0, 3.0])]
        {
            for (step, photons) in photons.into_iter().enumerate() {
                for value in [0.2, 0.8] {
                    let canvas = gray(value);
                    let noisy = noise::shot(canvas, step, small, &mut Seed::new(7).rng());
                    let (mean, found) = moments(noisy.values.iter().flatten());
                    let value = f64::from(value);
                    let expected = value / photons;
                    assert!((found / expected - 1.0).abs() < 0.06, "{found}, expected {expected}");
                    assert!((mean - value).abs() < 0.04 * expected.sqrt(), "{mean} for {value}");
                }
            }
        }
    }

    #[test]
    fn noise_steps_change_above_64_pixels() {
        for (side, deviation, photons) in [(64, 0.04, 500.0), (65, 0.08, 60.0)] {
            let picture = Picture::filled(side, side + 9, [128; 3]);
            let variance = |corruption: Corruption| {
                let canvas = Canvas::new(&corruption.apply(&picture, 1, Seed::new(7)));
                moments(canvas.values.iter().flatten()).1
            };
            let gaussian = variance(Corruption::GaussianNoise).sqrt();
            assert!((gaussian / deviation - 1.0).abs() < 0.03, "{gaussian}, expected {deviation}");
            let (shot, expected) = (variance(Corruption::ShotNoise), 128.0 / 255.0 / photons);
            assert!((shot / expected - 1.0).abs() < 0.06, "{shot}, expected {expected}");
        }
    }

    #[test]
    fn impulse_noise_replaces_its_fraction_by_black_and_white_equally() {
        for (step, expected) in [0.01, 0.03, 0.06, 0.10, 0.17].into_iter().enumerate() {
            let noisy = noise::impulse(gray(0.5), step, &mut Seed::new(7).rng());
            let share = |value: f32| {
                let values = noisy.values.iter().flatten();
                values.filter(|v| **v == value).count() as f64 / (64 * 64 * 3) as f64
            };
            let (black, white, kept) = (share(0.0), share(1.0), share(0.5));
            assert_eq!(black + white + kept, 1.0);
            for half in [black, white] {
                // Four standard deviations of such a share.
                assert!((half - expected / 2.0).abs() < 4.0 * (expected / 2.0 / 12_288.0).sqrt());
            }
        }
    }

    /// `(x − mean) · c + mean` with the steps of CIFAR-10-C and the mean `[100, 100, 155]`.
    #[test]
    fn contrast_scales_around_channel_means() {
        let picture = Picture { width: 2, height: 1, pixels: vec![0, 100, 255, 200, 100, 55] };
        let expected = [
            [25, 100, 230, 175, 100, 80],
            [50, 100, 205, 150, 100, 105],
            [60, 100, 195, 140, 100, 115],
            [70, 100, 185, 130, 100, 125],
            [85, 100, 170, 115, 100, 140],
        ];
        for (severity, pixels) in (1..).zip(expected) {
            let changed = Corruption::Contrast.apply(&picture, severity, Seed::new(1));
            assert_eq!(changed.pixels, pixels, "severity {severity}");
        }
    }

    #[test]
    fn any_shape_of_image_can_be_corrupted() {
        for (width, height) in [(1, 1), (1, 7), (50, 20), (224, 100)] {
            let picture = Picture::filled(width, height, [200, 0, 90]);
            for corruption in Corruption::ALL {
                let changed = corruption.apply(&picture, 9, Seed::new(1));
                assert_eq!((changed.width, changed.height), (width, height));
                assert_eq!(changed.pixels.len(), picture.pixels.len());
            }
        }
    }

    #[test]
    fn noise_depends_on_the_seed() {
        let picture = Picture::filled(32, 32, [90; 3]);
        let [a, b] = [1, 2].map(|s| Corruption::GaussianNoise.apply(&picture, 3, Seed::new(s)));
        assert_ne!(a, b);
        let blurred = Corruption::DefocusBlur.apply(&picture, 5, Seed::new(1));
        assert_eq!(blurred, picture);
    }
}
