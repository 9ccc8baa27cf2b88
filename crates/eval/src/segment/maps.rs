//! What a system makes of the pixels of pictures, and which experts took their patches.

use burn::tensor::{Tensor, TensorData, activation::softmax};
use omma_base::Resolution;
use omma_data::{Batch, Picture, Pixels};
use omma_model::{interpolated, upsampled};
use omma_routing::Routing;

use super::windows::{Cut, Windows};
use crate::{
    error::{EvalError, Result},
    metrics::largest,
    routing::{BatchShape, visits},
    system::System,
};

/// How likely every class is at every pixel of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct PixelMap {
    /// The picture's own, or what was asked for.
    pub resolution: Resolution,
    /// How many there are.
    pub classes: usize,
    /// `[H · W, classes]`: means of the members' probabilities.
    pub probabilities: Vec<f32>,
}

impl PixelMap {
    /// `[H, W]`: the likeliest class of every pixel; of equally likely ones the lowest.
    pub fn predicted(&self) -> Vec<u8> {
        self.probabilities.chunks_exact(self.classes).map(|row| largest(row) as u8).collect()
    }

    /// The mean over all pixels of how likely the likeliest class is held to be.
    pub fn mean_confidence(&self) -> f64 {
        let most = |row: &[f32]| f64::from(row[largest(row)]);
        let rows = self.probabilities.chunks_exact(self.classes);
        rows.map(most).sum::<f64>() / self.resolution.pixels().max(1) as f64
    }
}

/// A picture as a system sees it.
pub(crate) struct Segmented {
    pub(crate) map: PixelMap,
    /// Per model and block with experts, if they were asked for.
    pub(crate) experts: Vec<ExpertMap>,
}

/// Which expert took most of every patch, drawn at the size of the scaled picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpertMap {
    pub(crate) block: usize,
    pub(crate) resolution: Resolution,
    /// `[H, W]`; nothing where nobody took a patch.
    pub(crate) experts: Vec<Option<u16>>,
}

/// A system that labels pixels, and how it looks at pictures.
#[derive(Clone, Copy)]
pub(crate) struct Segmenting<'a> {
    pub(crate) system: &'a System,
    pub(crate) windows: Windows,
    /// Windows per forward pass.
    pub(crate) batch: usize,
    /// Whether to say which experts took what.
    pub(crate) with_experts: bool,
}

/// A window of a picture on its way through a model.
struct Window {
    picture: usize,
    start: (usize, usize),
}

/// Sums of the logits of a picture's windows, `[M, classes, W, H]`.
struct Sums {
    cut: Cut,
    logits: Vec<f32>,
    /// `[W, H]`: windows that a pixel was seen through.
    seen: Vec<f32>,
    experts: Vec<ExpertMap>,
}

impl Segmenting<'_> {
    /// What the system makes of pictures, at sizes of their own.
    ///
    /// - `pictures`: each with the size that its map is to have
    /// - `before`: pictures that came before these; what is drawn for predictions follows from it
    /// - `routed`: gets the routing of every forward pass, per model
    pub(crate) fn run(
        &self,
        pictures: &[(&Picture, Resolution)],
        before: usize,
        mut routed: impl FnMut(&[Vec<(usize, Routing)>]),
    ) -> Result<Vec<Segmented>> {
        let system = self.system;
        let patch = system.patch();
        let mut sums: Vec<Sums> = Vec::with_capacity(pictures.len());
        let (mut windows, mut cuts): (Vec<Window>, Vec<Picture>) = Default::default();
        for (place, (picture, _)) in pictures.iter().enumerate() {
            let cut = self.windows.cut(picture.resolution(), system.pixels().resolution, patch);
            let scaled = picture.resized(cut.scaled);
            if let Some(first) = cuts.first()
                && first.resolution() != cut.window
            {
                self.pass(&mut windows, &mut cuts, before, &mut sums, &mut routed)?;
            }
            for &(row, column) in &cut.starts {
                windows.push(Window { picture: place, start: (row, column) });
                cuts.push(scaled.cut(column, row, cut.window));
            }
            sums.push(Sums::new(cut, system.members() * system.classes()));
            if cuts.len() >= self.batch {
                self.pass(&mut windows, &mut cuts, before, &mut sums, &mut routed)?;
            }
        }
        self.pass(&mut windows, &mut cuts, before, &mut sums, &mut routed)?;
        let made = sums.into_iter().zip(pictures);
        Ok(made.map(|(sums, (_, to))| self.finished(sums, *to)).collect())
    }

    /// Runs windows of one size forwards, and adds what comes out to their pictures' sums.
    fn pass(
        &self,
        windows: &mut Vec<Window>,
        cuts: &mut Vec<Picture>,
        before: usize,
        sums: &mut [Sums],
        routed: &mut impl FnMut(&[Vec<(usize, Routing)>]),
    ) -> Result<()> {
        let system = self.system;
        for (windows, cuts) in windows.chunks(self.batch).zip(cuts.chunks(self.batch)) {
            let size = cuts[0].resolution();
            let pixels = Pixels { resolution: size, ..system.pixels() };
            let first = before + windows[0].picture;
            let mut batch = Batch::unlabelled(cuts, first, &pixels);
            let (logits, routings) = system.row_logits(&mut batch)?;
            routed(&routings);
            let [members, rows, classes] = logits.dims();
            let (count, patch) = (windows.len(), system.patch());
            let grid = (size.height / patch, size.width / patch);
            let logits = logits.reshape([members * count, rows / count, classes]);
            let planes =
                upsampled(logits, grid, size).reshape([members, count, classes, size.pixels()]);
            let planes: Vec<f32> = planes.try_into_vec_as().expect("logits are floats");
            if planes.iter().any(|value| !value.is_finite()) {
                let (model, data) = (system.name(), "the pictures".to_owned());
                return Err(EvalError::NotFinite { model, data, index: first });
            }
            let length = classes * size.pixels();
            for (place, window) in windows.iter().enumerate() {
                let own = |member: usize| &planes[(member * count + place) * length..][..length];
                sums[window.picture].add(window.start, (0..members).map(own));
            }
            if self.with_experts {
                self.add_experts(windows, size, &routings, sums);
            }
        }
        windows.clear();
        cuts.clear();
        Ok(())
    }

    fn add_experts(
        &self,
        windows: &[Window],
        size: Resolution,
        routings: &[Vec<(usize, Routing)>],
        sums: &mut [Sums],
    ) {
        let watched: Vec<usize> = (0..windows.len()).collect();
        let mut layer = 0;
        for (model, routings) in self.system.models().zip(routings) {
            let image = &model.config().image;
            let (tokens, prefix) = (image.tokens(size), image.prefix_tokens());
            let (_, columns) = image.grid(size);
            let shape = BatchShape { images: windows.len(), tokens };
            for (block, routing) in routings {
                // The expert that weighs most; of members, the first speaks for all.
                let mut best = vec![(0.0_f32, None); windows.len() * tokens];
                visits(routing, shape, &watched, |visit| {
                    let own = &mut best[visit.image * tokens + visit.token];
                    if visit.member == 0 && (own.1.is_none() || visit.weight > own.0) {
                        *own = (visit.weight, Some(visit.expert as u16));
                    }
                });
                for (window, best) in windows.iter().zip(best.chunks_exact(tokens)) {
                    let map = sums[window.picture].expert_map(layer, *block);
                    for (place, (_, expert)) in best[prefix..].iter().enumerate() {
                        let (row, column) = (place / columns, place % columns);
                        map.fill(window.start, (row, column), image.patch, *expert);
                    }
                }
                layer += 1;
            }
        }
    }

    /// The mean over windows, at the size that was asked for, and over members.
    fn finished(&self, sums: Sums, to: Resolution) -> Segmented {
        let (members, classes) = (self.system.members(), self.system.classes());
        let Resolution { height, width } = sums.cut.scaled;
        let Sums { mut logits, seen, experts, .. } = sums;
        for plane in logits.chunks_exact_mut(width * height) {
            plane.iter_mut().zip(&seen).for_each(|(value, seen)| *value /= seen);
        }
        let planes = TensorData::new(logits, [members, classes, width, height]);
        let planes = Tensor::<4>::from_data(planes, self.system.device());
        let planes = match sums.cut.scaled == to {
            true => planes.swap_dims(2, 3),
            false => interpolated(planes, (to.width, to.height)),
        };
        let probabilities = softmax(planes.reshape([members, classes, to.pixels()]), 1)
            .mean_dim(0)
            .reshape([classes, to.pixels()])
            .transpose();
        let probabilities = probabilities.try_into_vec_as().expect("probabilities are floats");
        Segmented { map: PixelMap { resolution: to, classes, probabilities }, experts }
    }
}

impl Sums {
    /// - `planes`: members times classes
    fn new(cut: Cut, planes: usize) -> Self {
        let pixels = cut.scaled.pixels();
        let (logits, seen) = (vec![0.0; planes * pixels], vec![0.0; pixels]);
        Self { cut, logits, seen, experts: Vec::new() }
    }

    /// - `members`: `[classes, W, H]` of the window, of each
    fn add<'a>(&mut self, (top, left): (usize, usize), members: impl Iterator<Item = &'a [f32]>) {
        let (window, height) = (self.cut.window, self.cut.scaled.height);
        let pixels = self.cut.scaled.pixels();
        let columns = members.flat_map(|own| own.chunks_exact(window.height)).enumerate();
        for (place, column) in columns {
            let (plane, x) = (place / window.width, place % window.width);
            let start = plane * pixels + (left + x) * height + top;
            let own = self.logits[start..].iter_mut().zip(column);
            own.for_each(|(sum, value)| *sum += value);
        }
        for x in left..left + window.width {
            self.seen[x * height + top..][..window.height].iter_mut().for_each(|seen| *seen += 1.0);
        }
    }

    fn expert_map(&mut self, layer: usize, block: usize) -> &mut ExpertMap {
        let resolution = self.cut.scaled;
        while self.experts.len() <= layer {
            let experts = vec![None; resolution.pixels()];
            self.experts.push(ExpertMap { block, resolution, experts });
        }
        &mut self.experts[layer]
    }
}

impl ExpertMap {
    /// A patch of a window that begins at `start`.
    fn fill(
        &mut self,
        start: (usize, usize),
        (row, column): (usize, usize),
        patch: usize,
        expert: Option<u16>,
    ) {
        let Resolution { height, width } = self.resolution;
        let (top, left) = (start.0 + row * patch, start.1 + column * patch);
        for y in top..(top + patch).min(height) {
            self.experts[y * width + left..(y * width + (left + patch).min(width))].fill(expert);
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use omma_base::Seed;
    use omma_model::{apply_settings, preset};

    use super::*;

    fn system(more: &[&str]) -> System {
        let small = [
            "resolution=16",
            "patch=4",
            "width=16",
            "depth=2",
            "heads=2",
            "mlp=32",
            "moe.experts=4",
            "moe.placement=last-1",
        ];
        let settings: Vec<&str> = small.iter().chain(more).copied().collect();
        let config = apply_settings(&preset("vmoe-tiny").unwrap(), &settings).unwrap();
        let device = Device::flex();
        let model = config.into_segmenter(3).init(Seed::new(3), &device).unwrap();
        // A fresh head is undecided.
        let model = omma_model::with_values(model, |parameter| {
            let count: usize = parameter.shape.iter().product();
            let values = (0..count).map(|place| ((place * 37) % 17) as f32 / 8.0 - 1.0);
            Ok(parameter.name.starts_with("head.").then(|| values.collect()))
        });
        System::new(vec![("one".to_owned(), model.unwrap())], &device).unwrap()
    }

    fn picture(width: usize, height: usize) -> Picture {
        let pixels = (0..width * height * 3).map(|place| (place * 31 % 251) as u8).collect();
        Picture { width, height, pixels }
    }

    fn segmented(
        system: &System,
        windows: Windows,
        batch: usize,
        of: &[Picture],
    ) -> Vec<Segmented> {
        let segmenting = Segmenting { system, windows, batch, with_experts: true };
        let pictures: Vec<_> = of.iter().map(|one| (one, one.resolution())).collect();
        segmenting.run(&pictures, 0, |_| {}).unwrap()
    }

    #[test]
    fn one_window_is_the_models_own_answer() {
        let (system, of) = (system(&[]), picture(16, 16));
        let found = segmented(&system, Windows::Sliding, 4, std::slice::from_ref(&of)).remove(0);
        let mut batch = Batch::unlabelled(&[of], 0, &system.pixels());
        let (logits, _) = system.row_logits(&mut batch).unwrap();
        let planes = upsampled(logits, (4, 4), Resolution::square(16)).swap_dims(2, 3);
        let expected = softmax(planes.reshape([3, 256]).transpose(), 1);
        let expected: Vec<f32> = expected.try_into_vec_as().unwrap();
        assert_eq!(found.map.probabilities.len(), 256 * 3);
        for (found, expected) in found.map.probabilities.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
        }
        let classes: std::collections::BTreeSet<u8> = found.map.predicted().into_iter().collect();
        assert!(classes.len() > 1, "the answer depends on the place");
        assert_eq!(found.experts.len(), 1);
        assert!(found.experts[0].experts.iter().all(Option::is_some), "every patch has an expert");
    }

    #[test]
    fn pictures_do_not_depend_on_who_shares_their_batch() {
        let of = [picture(16, 16), picture(40, 20), picture(9, 31), picture(64, 64)];
        for members in [&[][..], &["moe.members=2"]] {
            let system = system(members);
            for windows in [Windows::Sliding, Windows::Whole] {
                let together = segmented(&system, windows, 3, &of);
                for (of, together) in of.iter().zip(&together) {
                    let alone = segmented(&system, windows, 64, std::slice::from_ref(of)).remove(0);
                    assert_eq!(together.map.resolution, of.resolution());
                    let pairs = alone.map.probabilities.iter().zip(&together.map.probabilities);
                    assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-5));
                    assert_eq!(alone.experts, together.experts);
                    let rows = together.map.probabilities.chunks_exact(3);
                    assert!(
                        rows.into_iter().all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-4)
                    );
                }
            }
        }
    }
}
