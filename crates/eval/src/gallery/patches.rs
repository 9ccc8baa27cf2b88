//! The patches that experts take, and what of every class goes to which expert, to look at.

use std::collections::BTreeMap;

use omma_base::Resolution;
use omma_data::{Dataset, Picture};
use omma_report::{HeatMap, PictureCard, PictureRow};
use rayon::prelude::*;

use super::{
    experts::{Experts, Layer, ModelExperts, PATCHES, Patch, Taken},
    thumbnails::encoded,
};
use crate::routing::Group;

/// Classes of a heat map; of more, those whose tokens are spread least like everybody's.
const MOST_CLASSES: usize = 20;
/// Strips of patches on a page, in all layers together.
const MOST_STRIPS: usize = 128;
/// A layer has so many at least.
const FEWEST_STRIPS: usize = 4;
/// A patch is drawn between so many pixels a side, a whole image by the larger number.
const SIDES: (usize, usize) = (16, 24);
/// Between two patches.
const GAP: usize = 2;
const GREY: [u8; 3] = [128; 3];

/// What experts take.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ExpertPictures {
    /// Images that were looked at.
    pub(crate) images: usize,
    /// Every how many of the test images one was.
    pub(crate) every: usize,
    pub(crate) layers: Vec<LayerPictures>,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LayerPictures {
    /// `Block 3`, with the model's name where there are several.
    pub(crate) title: String,
    /// File names without an ending, and heat maps of experts and classes.
    pub(crate) maps: Vec<(String, String)>,
    /// Per group of experts, a strip of patches for each.
    pub(crate) strips: Vec<PictureRow>,
    /// Experts that a group has a strip of, where it has more.
    pub(crate) most: Option<usize>,
    /// Whether images are taken as a whole.
    pub(crate) whole: bool,
    /// Whether every expert gets some of every token.
    pub(crate) soft: bool,
}

impl ExpertPictures {
    /// Reads every image once that a patch is cut from.
    pub(crate) fn of(experts: &Experts, data: &dyn Dataset, resolution: Resolution) -> Self {
        let places = || {
            experts.models.iter().enumerate().flat_map(|(number, model)| {
                model.layers.iter().map(move |layer| (number, model, layer))
            })
        };
        let groups: usize = places().map(|(_, _, layer)| layer.taken.len()).sum();
        let most = (MOST_STRIPS / groups.max(1)).max(FEWEST_STRIPS);
        let cut =
            Cut::read(places().map(|(_, model, layer)| (model, layer)), most, data, resolution);
        let several = experts.models.len() > 1;
        let layer = |(number, model, layer): (usize, &ModelExperts, &Layer)| {
            let block = layer.block;
            let (title, prefix) = match several {
                true => (format!("{}, block {block}", model.name), format!("{}-", number + 1)),
                false => (format!("Block {block}"), String::new()),
            };
            let (mut maps, mut strips) = (Vec::new(), Vec::new());
            for (place, (group, taken)) in model.groups.iter().zip(&layer.taken).enumerate() {
                let mut file = format!("experts-{prefix}block-{block}");
                if !group.title.is_empty() {
                    file += &format!("-{}", place + 1);
                }
                let about = match group.title.as_str() {
                    "" => title.clone(),
                    name => format!("{title}, {}", name.to_lowercase()),
                };
                maps.extend(map(&about, group, taken, data.classes()).map(|svg| (file, svg)));
                strips.push(strip_row(model, group, taken, most, &cut));
            }
            let (whole, soft) = (model.whole, model.soft);
            let more =
                |taken: &Taken| taken.patches.iter().filter(|own| !own.is_empty()).count() > most;
            let most = layer.taken.iter().any(more).then_some(most);
            LayerPictures { title, maps, strips, most, whole, soft }
        };
        let layers: Vec<LayerPictures> = places().map(layer).collect();
        Self { images: experts.images, every: experts.every, layers }
    }
}

/// The classes' tokens by expert; nothing where there is only one class or one expert to see.
fn map(title: &str, group: &Group, taken: &Taken, classes: &[String]) -> Option<String> {
    if taken.by_class.len() < 2 || group.experts.len() < 2 {
        return None;
    }
    let mut all = vec![0.0; group.experts.len()];
    for counts in taken.by_class.values() {
        all.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let all = shares(&all);
    let mut rows: Vec<(usize, Vec<f64>)> =
        taken.by_class.iter().map(|(class, counts)| (*class, shares(counts))).collect();
    let mut title = format!("Experts by class: {title}");
    if rows.len() > MOST_CLASSES {
        let apart = |row: &[f64]| -> f64 { row.iter().zip(&all).map(|(a, b)| (a - b).abs()).sum() };
        rows.sort_by(|a, b| apart(&b.1).total_cmp(&apart(&a.1)));
        rows.truncate(MOST_CLASSES);
        title += &format!(" ({MOST_CLASSES} classes)");
    }
    let percent = |share: &f64| (1000.0 * share).round() / 10.0;
    let name = |class: usize| classes.get(class).cloned().unwrap_or_else(|| class.to_string());
    let map = HeatMap {
        title,
        row_label: "class".to_owned(),
        column_label: "expert".to_owned(),
        rows: rows.iter().map(|(class, _)| name(*class)).collect(),
        columns: group.experts.iter().map(usize::to_string).collect(),
        values: rows.iter().map(|(_, row)| row.iter().map(percent).collect()).collect(),
    };
    Some(map.svg_by_largest())
}

fn shares(counts: &[f64]) -> Vec<f64> {
    let total: f64 = counts.iter().sum();
    counts.iter().map(|count| if total > 0.0 { count / total } else { 0.0 }).collect()
}

/// `[experts of the group]`: the share of the tokens that each took.
fn loads(group: &Group, taken: &Taken) -> Vec<f64> {
    let of_expert = |column: usize| taken.by_class.values().map(|counts| counts[column]).sum();
    shares(&(0..group.experts.len()).map(of_expert).collect::<Vec<f64>>())
}

/// Columns of a group's experts that have a strip, in order: all that took patches, or the busiest of them.
fn shown(group: &Group, taken: &Taken, most: usize) -> Vec<usize> {
    let loads = loads(group, taken);
    let mut columns: Vec<usize> =
        (0..group.experts.len()).filter(|column| !taken.patches[*column].is_empty()).collect();
    columns.sort_by(|a, b| loads[*b].total_cmp(&loads[*a]));
    columns.truncate(most);
    columns.sort_unstable();
    columns
}

fn strip_row(
    model: &ModelExperts,
    group: &Group,
    taken: &Taken,
    most: usize,
    cut: &Cut,
) -> PictureRow {
    let loads = loads(group, taken);
    let idle: Vec<String> = (0..group.experts.len())
        .filter(|column| taken.patches[*column].is_empty())
        .map(|column| group.experts[column].to_string())
        .collect();
    let what = if model.whole { "images" } else { "patches" };
    let card = |column: usize| {
        let expert = group.experts[column];
        let picture = cut.strip(model, &taken.patches[column])?;
        Some(PictureCard {
            picture: encoded(&picture),
            alt: format!("{what} that expert {expert} takes with the largest gates"),
            caption: format!("Expert {expert}"),
            good: None,
            detail: format!("{:.1} % of the tokens", 100.0 * loads[column]),
        })
    };
    let detail = match idle.as_slice() {
        [] => String::new(),
        [one] => format!("expert {one} took none of these images' patches"),
        many if many.len() <= 12 => {
            format!("experts {} took none of these images' patches", many.join(", "))
        }
        many => format!("{} experts took none of these images' patches", many.len()),
    };
    let cards = shown(group, taken, most).into_iter().filter_map(card).collect();
    PictureRow { title: group.title.clone(), detail, cards }
}

/// Patches as they are drawn, by image, side of a patch and place among the patches.
struct Cut(BTreeMap<(usize, usize, usize), Picture>);

impl Cut {
    /// An image that cannot be read any more leaves its patches out.
    fn read<'a>(
        layers: impl Iterator<Item = (&'a ModelExperts, &'a Layer)>,
        most: usize,
        data: &dyn Dataset,
        resolution: Resolution,
    ) -> Self {
        let mut wanted: BTreeMap<usize, Vec<(&ModelExperts, usize)>> = BTreeMap::new();
        for (model, layer) in layers {
            for (group, taken) in model.groups.iter().zip(&layer.taken) {
                let columns = shown(group, taken, most).into_iter();
                for patch in columns.flat_map(|column| &taken.patches[column]) {
                    wanted.entry(patch.index).or_default().push((model, patch.place));
                }
            }
        }
        let wanted: Vec<_> = wanted.into_iter().collect();
        let cut = wanted.par_iter().flat_map_iter(|(index, places)| {
            let picture =
                data.get(*index).map(|sample| sample.picture.centre_crop(resolution, 1.0));
            let picture = picture.ok();
            places.iter().filter_map(move |(model, place)| {
                Some((key(model, *index, *place), drawn(model, picture.as_ref()?, *place)))
            })
        });
        Self(cut.collect::<Vec<_>>().into_iter().collect())
    }

    /// Patches beside each other, the strongest first; nothing if none can be drawn.
    fn strip(&self, model: &ModelExperts, patches: &[Patch]) -> Option<Picture> {
        let of = |patch: &Patch| self.0.get(&key(model, patch.index, patch.place));
        let patches: Vec<&Picture> = patches.iter().filter_map(of).collect();
        let first = patches.first()?;
        // Room for all, so that strips have one size and patches too.
        let across = PATCHES * (first.width + GAP) - GAP;
        let mut strip = Picture::filled(across, first.height, GREY);
        for (number, patch) in patches.into_iter().enumerate() {
            let left = number * (patch.width + GAP);
            for y in 0..patch.height {
                let (from, to) = (y * patch.width * 3, (y * across + left) * 3);
                let row = &patch.pixels[from..from + patch.width * 3];
                strip.pixels[to..to + row.len()].copy_from_slice(row);
            }
        }
        Some(strip)
    }
}

/// A whole image has a side of 0.
fn key(model: &ModelExperts, index: usize, place: usize) -> (usize, usize, usize) {
    match model.whole {
        true => (index, 0, 0),
        false => (index, model.patch, place),
    }
}

/// A patch by whole multiples of its pixels where it is small, or the whole image.
fn drawn(model: &ModelExperts, picture: &Picture, place: usize) -> Picture {
    let (smallest, largest) = SIDES;
    if model.whole {
        return picture.centre_crop(Resolution::square(largest), 1.0);
    }
    let side = model.patch;
    let (row, column) = (place / model.columns, place % model.columns);
    let times = smallest.div_ceil(side);
    let mut patch = Picture::filled(side * times, side * times, GREY);
    for y in 0..side * times {
        for x in 0..side * times {
            let pixel = picture.at(column * side + x / times, row * side + y / times);
            patch.pixels[(y * side * times + x) * 3..][..3].copy_from_slice(&pixel);
        }
    }
    match side > largest {
        true => patch.resized(Resolution::square(largest)),
        false => patch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(patch: usize, columns: usize, whole: bool) -> ModelExperts {
        ModelExperts {
            name: "m".to_owned(),
            tokens: columns * columns + 1,
            prefix: 1,
            patch,
            columns,
            whole,
            soft: false,
            groups: Vec::new(),
            layers: Vec::new(),
        }
    }

    #[test]
    fn a_patch_is_drawn_from_its_place() {
        let mut picture = Picture::filled(8, 8, [0; 3]);
        // The third patch of the second row.
        for (x, y) in [(4, 2), (5, 2), (4, 3), (5, 3)] {
            picture.pixels[(y * 8 + x) * 3..][..3].copy_from_slice(&[10, 20, 30]);
        }
        let drawn_patch = drawn(&model(2, 4, false), &picture, 6);
        assert_eq!(drawn_patch, Picture::filled(16, 16, [10, 20, 30]), "eight times as large");
        let large = drawn(&model(32, 2, false), &Picture::filled(64, 64, [7; 3]), 3);
        assert_eq!(large, Picture::filled(24, 24, [7; 3]));
        let whole = drawn(&model(2, 4, true), &Picture::filled(8, 8, [9; 3]), 6);
        assert_eq!(whole, Picture::filled(24, 24, [9; 3]));
    }

    #[test]
    fn strips_have_one_size_whatever_is_in_them() {
        let model = model(2, 4, false);
        let colour = |place: usize| Picture::filled(16, 16, [place as u8; 3]);
        let cut = Cut((0..3).map(|place| (key(&model, 5, place), colour(place))).collect());
        let patch = |place| Patch { index: 5, place, gate: 1.0 };
        let strip = cut.strip(&model, &[patch(2), patch(0)]).unwrap();
        assert_eq!((strip.width, strip.height), (8 * 18 - 2, 16));
        assert_eq!([strip.at(0, 0), strip.at(17, 0), strip.at(18, 15)], [[2; 3], GREY, [0; 3]]);
        assert_eq!(cut.strip(&model, &[patch(9)]), None);
    }

    #[test]
    fn classes_that_differ_from_all_are_shown_and_busy_experts_too() {
        let group = Group::all(3);
        let mut taken = Taken { by_class: BTreeMap::new(), patches: vec![Vec::new(); 3] };
        for class in 0..30 {
            taken.by_class.insert(class, vec![2.0, 1.0, 1.0]);
        }
        taken.by_class.insert(29, vec![0.0, 4.0, 0.0]);
        let classes: Vec<String> = (0..30).map(|class| format!("class {class}")).collect();
        let svg = map("Block 1", &group, &taken, &classes).unwrap();
        assert!(svg.contains("class 29 → 1: 100 (100 % of the row)"), "{svg}");
        assert!(svg.contains("20 classes") && !svg.contains("class 28"));
        let patch = Patch { index: 0, place: 0, gate: 1.0 };
        taken.patches = vec![vec![patch], vec![], vec![patch]];
        assert_eq!(shown(&group, &taken, 9), [0, 2], "an expert without patches has no strip");
        assert_eq!(shown(&group, &taken, 1), [0], "the busiest one");
    }
}
