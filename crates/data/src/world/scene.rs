//! What is in a scene.

use omma_base::Seed;
use rand::{Rng, RngExt, seq::IndexedRandom};

use super::{
    Variant, pairs,
    shape::{Colour, Shape, Texture},
};

/// How often an object has the colour that its shape often has, and how often the texture. Both help to
/// guess a class; only the outline tells it.
const COLOUR_HABIT: f64 = 0.5;
const TEXTURE_HABIT: f64 = 0.8;

/// One object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Object {
    /// Its outline.
    pub(super) shape: Shape,
    /// What one sees first.
    pub(super) colour: Colour,
    /// The other colour of its texture.
    pub(super) second: Colour,
    /// What covers it.
    pub(super) texture: Texture,
    /// Its middle, across and down, as shares of the image's sides.
    pub(super) centre: [f32; 2],
    /// Its radius, in units of the shorter side.
    pub(super) radius: f32,
    /// Its turn, in radians.
    pub(super) turn: f32,
    /// Its width against its height.
    pub(super) stretch: f32,
    /// How fine its texture is.
    pub(super) scale: f32,
}

/// Light, background and the small things nobody would mention.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setting {
    /// Corners of the background: left top, right top, left bottom.
    pub(super) background: [[f32; 3]; 3],
    pub(super) texture: Texture,
    pub(super) texture_scale: f32,
    pub(super) texture_strength: f32,
    /// Where light comes from, and how much of it is missing on the other side.
    pub(super) light: [f32; 2],
    pub(super) shadow: f32,
    /// Standard deviation of the noise.
    pub(super) noise: f32,
    /// Thin lines: two ends and a colour.
    pub(super) lines: Vec<([f32; 4], [f32; 3])>,
}

/// A scene.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scene {
    /// From the farthest to the nearest.
    pub(super) objects: Vec<Object>,
    /// Which of them is the main one.
    pub(super) main: Option<usize>,
    pub(super) setting: Setting,
    pub(super) seed: Seed,
}

impl Scene {
    pub(super) fn new(variant: Variant, seed: Seed) -> Self {
        let mut rng = seed.named("scene").rng();
        let setting = Setting::new(&mut rng, variant);
        if variant == Variant::FarOod {
            return Self { objects: Vec::new(), main: None, setting, seed };
        }
        let shapes: &[Shape] = match variant {
            Variant::NearOod => &Shape::STRANGE,
            _ => &Shape::CLASSES,
        };
        let of_main = match variant {
            Variant::Unseen => setting.shapes_that_stand_out_unseen(),
            _ => shapes.to_vec(),
        };
        let mut main = Object::new(&mut rng, &of_main, 0.33..0.42, 0.43..0.57);
        match pairs::held_out_of(main.shape).filter(|_| variant == Variant::Unseen) {
            Some(unseen) => main.paint(unseen),
            None => main.colour = setting.standing_out(&mut rng, main.colour, main.second),
        }
        let behind = rng.random_range(1..=3);
        let in_front = rng.random_range(0..=2);
        let small = |rng: &mut _| Object::new(rng, shapes, 0.05..0.11, 0.05..0.95);
        let mut objects: Vec<Object> = (0..behind).map(|_| small(&mut rng)).collect();
        objects.push(main);
        objects.extend((0..in_front).map(|_| small(&mut rng)));
        let mut scene = Self { objects, main: Some(behind), setting, seed };
        if matches!(variant, Variant::Seen | Variant::Unseen) {
            scene.hold_out_pairs(variant);
        }
        scene
    }

    /// Other colours for the objects that `world-seen` does not show; the main one of an unseen scene stays.
    fn hold_out_pairs(&mut self, variant: Variant) {
        for (place, object) in self.objects.iter_mut().enumerate() {
            let is_main = Some(place) == self.main;
            let stays = is_main && variant == Variant::Unseen;
            if stays || !pairs::is_held_out(object.colour, object.shape) {
                continue;
            }
            let mut rng = self.seed.named("pairs").numbered(place as u64).rng();
            let mut colours = Colour::ALL.to_vec();
            colours.retain(|colour| {
                *colour != object.second && !pairs::is_held_out(*colour, object.shape)
            });
            let clear: Vec<Colour> =
                colours.iter().copied().filter(|c| self.setting.shows(*c)).collect();
            let colours = if is_main && !clear.is_empty() { clear } else { colours };
            object.colour = *colours.choose(&mut rng).expect("there are more colours");
        }
    }

    /// The object that the scene is about.
    pub(super) fn main(&self) -> Option<&Object> {
        self.objects.get(self.main?)
    }

    /// The class of the scene, if it has one.
    pub(super) fn class(&self) -> Option<usize> {
        let shape = self.main()?.shape;
        Shape::CLASSES.iter().position(|class| *class == shape)
    }
}

impl Object {
    fn new(
        rng: &mut impl Rng,
        shapes: &[Shape],
        radius: std::ops::Range<f32>,
        place: std::ops::Range<f32>,
    ) -> Self {
        let shape = *shapes.choose(rng).expect("there are shapes");
        let (usual_colour, usual_texture) = shape.habit();
        let colour = match rng.random_bool(COLOUR_HABIT) {
            true => usual_colour,
            false => *Colour::ALL.choose(rng).expect("there are colours"),
        };
        let texture = match rng.random_bool(TEXTURE_HABIT) {
            true => usual_texture,
            false => *Texture::ALL.choose(rng).expect("there are textures"),
        };
        let others: Vec<Colour> =
            Colour::ALL.into_iter().filter(|other| *other != colour).collect();
        Self {
            shape,
            colour,
            second: *others.choose(rng).expect("there are more"),
            texture,
            centre: [rng.random_range(place.clone()), rng.random_range(place)],
            radius: rng.random_range(radius),
            turn: rng.random_range(-0.25..0.25),
            stretch: rng.random_range(0.9..1.1),
            scale: rng.random_range(5.0..11.0),
        }
    }

    /// In this colour; the one that it had is the second where both would be the same.
    fn paint(&mut self, colour: Colour) {
        let before = std::mem::replace(&mut self.colour, colour);
        if self.second == colour {
            self.second = before;
        }
    }
}

impl Setting {
    /// Whether a colour can be told from the background.
    fn shows(&self, colour: Colour) -> bool {
        let [corner, right, bottom] = self.background;
        let middle: [f32; 3] = std::array::from_fn(|c| (right[c] + bottom[c]) / 2.0);
        let far = |rgb: [f32; 3], from: [f32; 3]| {
            rgb.iter().zip(from).map(|(a, b)| (a - b).abs()).sum::<f32>() > 0.5
        };
        far(colour.rgb(), middle) && far(colour.rgb(), corner)
    }

    /// This colour if it can be told from the background, or else one that can, and is not the other.
    fn standing_out(&self, rng: &mut impl Rng, wanted: Colour, other: Colour) -> Colour {
        if self.shows(wanted) {
            return wanted;
        }
        let colours: Vec<Colour> =
            Colour::ALL.into_iter().filter(|c| self.shows(*c) && *c != other).collect();
        colours.choose(rng).copied().unwrap_or(Colour::White)
    }

    /// The shapes whose held-out colour can be told from the background; all of them where none can.
    fn shapes_that_stand_out_unseen(&self) -> Vec<Shape> {
        let shows = |shape: &Shape| pairs::held_out_of(*shape).is_some_and(|c| self.shows(c));
        let shapes: Vec<Shape> = Shape::CLASSES.into_iter().filter(shows).collect();
        if shapes.is_empty() { Shape::CLASSES.to_vec() } else { shapes }
    }

    fn new(rng: &mut impl Rng, variant: Variant) -> Self {
        let colour = |rng: &mut dyn Rng| std::array::from_fn(|_| rng.random_range(0.1..0.9));
        // Backgrounds are paler than objects.
        let tint: [f32; 3] = colour(rng);
        let grey = rng.random_range(0.25..0.75);
        let base = tint.map(|c| 0.35 * c + 0.65 * grey);
        let near = |rng: &mut dyn Rng| {
            base.map(|c| (c + rng.random_range(-0.15f32..0.15)).clamp(0.0, 1.0))
        };
        let lines = rng.random_range(1..=4);
        let lines = (0..lines).map(|_| {
            let ends = std::array::from_fn(|_| rng.random_range(0.0..1.0));
            (ends, colour(rng))
        });
        let lines: Vec<_> = lines.collect();
        let far = variant == Variant::FarOod;
        Self {
            background: [base, near(rng), near(rng)],
            texture: *Texture::ALL.choose(rng).expect("there are textures"),
            texture_scale: rng.random_range(15.0..60.0),
            texture_strength: rng.random_range(0.0..if far { 0.9 } else { 0.3 }),
            light: [rng.random_range(-1.0..1.0), rng.random_range(-1.0..1.0)],
            shadow: rng.random_range(0.0..0.5),
            noise: rng.random_range(0.01..0.06),
            lines,
        }
    }
}
