//! Shapes, colours and textures.

/// The outline of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Circle,
    Square,
    Triangle,
    Pentagon,
    Star,
    Cross,
    Ring,
    Heart,
    Crescent,
    Drop,
    // Not among the classes.
    Arrow,
    Bar,
    Frame,
    Trefoil,
}

impl Shape {
    /// The classes of the world.
    pub(super) const CLASSES: [Self; 10] = [
        Self::Circle,
        Self::Square,
        Self::Triangle,
        Self::Pentagon,
        Self::Star,
        Self::Cross,
        Self::Ring,
        Self::Heart,
        Self::Crescent,
        Self::Drop,
    ];
    /// Shapes that are no class.
    pub(super) const STRANGE: [Self; 4] = [Self::Arrow, Self::Bar, Self::Frame, Self::Trefoil];

    /// In a word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Circle => "circle",
            Self::Square => "square",
            Self::Triangle => "triangle",
            Self::Pentagon => "pentagon",
            Self::Star => "star",
            Self::Cross => "cross",
            Self::Ring => "ring",
            Self::Heart => "heart",
            Self::Crescent => "crescent",
            Self::Drop => "drop",
            Self::Arrow => "arrow",
            Self::Bar => "bar",
            Self::Frame => "frame",
            Self::Trefoil => "trefoil",
        }
    }

    /// What things of this shape often look like; they need not.
    pub(super) fn habit(self) -> (Colour, Texture) {
        match self {
            Self::Circle => (Colour::Orange, Texture::Shaded),
            Self::Square => (Colour::Brown, Texture::Chequered),
            Self::Triangle => (Colour::Green, Texture::Striped),
            Self::Pentagon => (Colour::Grey, Texture::Dotted),
            Self::Star => (Colour::Yellow, Texture::Plain),
            Self::Cross => (Colour::White, Texture::Plain),
            Self::Ring => (Colour::Purple, Texture::Striped),
            Self::Heart => (Colour::Red, Texture::Plain),
            Self::Crescent => (Colour::Cyan, Texture::Shaded),
            Self::Drop => (Colour::Blue, Texture::Dotted),
            Self::Arrow => (Colour::Black, Texture::Plain),
            Self::Bar => (Colour::Brown, Texture::Striped),
            Self::Frame => (Colour::Green, Texture::Chequered),
            Self::Trefoil => (Colour::Pink, Texture::Dotted),
        }
    }

    /// The signed distance of a point to the outline, negative inside, for a shape of radius 1 around
    /// the origin.
    pub(super) fn distance(self, x: f32, y: f32) -> f32 {
        let radius = x.hypot(y);
        match self {
            Self::Circle => radius - 0.88,
            Self::Square => polygon(x, y, 4, 1.0),
            Self::Triangle => polygon(x, y, 3, 1.0),
            Self::Pentagon => polygon(x, y, 5, 1.0),
            Self::Star => star(x, y, 5, 0.42),
            Self::Cross => {
                let arm = |a: f32, b: f32| (a.abs() - 0.95).max(b.abs() - 0.3);
                arm(x, y).min(arm(y, x))
            }
            Self::Ring => (radius - 0.7).abs() - 0.22,
            Self::Heart => heart(x, y),
            Self::Crescent => (radius - 0.92).max(0.78 - (x - 0.42).hypot(y)),
            Self::Drop => {
                let ball = x.hypot(y - 0.3) - 0.62;
                // The tip's sides touch the ball where y is about 0.
                let tip = (x.abs() * 0.868 - (y + 0.95) * 0.496).max(y);
                ball.min(tip)
            }
            Self::Arrow => {
                let shaft = (x.abs() - 0.18).max((y - 0.35).abs() - 0.55);
                let head = polygon(x, y + 0.35, 3, 0.65);
                shaft.min(head)
            }
            Self::Bar => (x.abs() - 0.95).max(y.abs() - 0.24),
            Self::Frame => {
                let outer = x.abs().max(y.abs()) - 0.78;
                let inner = x.abs().max(y.abs()) - 0.45;
                outer.max(-inner)
            }
            Self::Trefoil => (0..3)
                .map(|i| {
                    let angle = i as f32 * std::f32::consts::TAU / 3.0;
                    (x - 0.45 * angle.sin()).hypot(y + 0.45 * angle.cos()) - 0.42
                })
                .fold(f32::INFINITY, f32::min),
        }
    }
}

/// A regular polygon with its corners on a circle, one of them up.
fn polygon(x: f32, y: f32, corners: u32, radius: f32) -> f32 {
    let half = std::f32::consts::PI / corners as f32;
    let angle = x.atan2(-y);
    let folded = (angle + half).rem_euclid(2.0 * half) - half;
    // The sides lie between the corners.
    let turned = folded.abs() - half;
    x.hypot(y) * turned.cos() - radius * half.cos()
}

/// A star with points on the unit circle and notches at `inner`.
fn star(x: f32, y: f32, points: u32, inner: f32) -> f32 {
    let half = std::f32::consts::PI / points as f32;
    let angle = x.atan2(-y);
    let folded = ((angle + half).rem_euclid(2.0 * half) - half).abs();
    let (px, py) = (x.hypot(y) * folded.sin(), x.hypot(y) * folded.cos());
    // The edge from the point (0, 1) to the notch.
    let (nx, ny) = (inner * half.sin(), inner * half.cos());
    let (ex, ey) = (nx, ny - 1.0);
    ((py - 1.0) * ex - px * ey) / ex.hypot(ey)
}

fn heart(x: f32, y: f32) -> f32 {
    let (x, y) = (x.abs() * 1.1, -y * 1.1 + 0.55);
    let distance = if x + y > 1.0 {
        (x - 0.25).hypot(y - 0.75) - 2f32.sqrt() / 4.0
    } else {
        let towards = ((x + y).max(0.0)) * 0.5;
        let a = x.hypot(y - 1.0);
        let b = (x - towards).hypot(y - towards);
        a.min(b) * (x - y).signum()
    };
    distance / 1.1
}

/// The colour of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    Red,
    Orange,
    Yellow,
    Green,
    Cyan,
    Blue,
    Purple,
    Pink,
    Brown,
    White,
    Grey,
    Black,
}

impl Colour {
    pub(super) const ALL: [Self; 12] = [
        Self::Red,
        Self::Orange,
        Self::Yellow,
        Self::Green,
        Self::Cyan,
        Self::Blue,
        Self::Purple,
        Self::Pink,
        Self::Brown,
        Self::White,
        Self::Grey,
        Self::Black,
    ];

    /// In a word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Red => "red",
            Self::Orange => "orange",
            Self::Yellow => "yellow",
            Self::Green => "green",
            Self::Cyan => "cyan",
            Self::Blue => "blue",
            Self::Purple => "purple",
            Self::Pink => "pink",
            Self::Brown => "brown",
            Self::White => "white",
            Self::Grey => "grey",
            Self::Black => "black",
        }
    }

    /// Red, green and blue in `0..=1`.
    pub(super) fn rgb(self) -> [f32; 3] {
        match self {
            Self::Red => [0.85, 0.15, 0.15],
            Self::Orange => [0.95, 0.55, 0.1],
            Self::Yellow => [0.95, 0.88, 0.2],
            Self::Green => [0.2, 0.65, 0.25],
            Self::Cyan => [0.2, 0.75, 0.8],
            Self::Blue => [0.15, 0.3, 0.85],
            Self::Purple => [0.5, 0.2, 0.7],
            Self::Pink => [0.95, 0.55, 0.75],
            Self::Brown => [0.45, 0.28, 0.15],
            Self::White => [0.95, 0.95, 0.95],
            Self::Grey => [0.5, 0.5, 0.5],
            Self::Black => [0.08, 0.08, 0.08],
        }
    }
}

/// What covers an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Texture {
    Plain,
    Striped,
    Chequered,
    Dotted,
    Shaded,
}

impl Texture {
    pub(super) const ALL: [Self; 5] =
        [Self::Plain, Self::Striped, Self::Chequered, Self::Dotted, Self::Shaded];

    /// In a word, which may be none.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Striped => "striped",
            Self::Chequered => "chequered",
            Self::Dotted => "dotted",
            Self::Shaded => "shaded",
        }
    }

    /// How much of the second colour shows at a point of an object of radius 1. Edges are as soft as a
    /// pixel is wide.
    pub(super) fn blend(self, x: f32, y: f32, scale: f32, pixel: f32) -> f32 {
        let sign = |v: f32| ((v * scale).sin() * 2.0 / (scale * pixel)).clamp(-1.0, 1.0);
        match self {
            Self::Plain => 0.0,
            Self::Striped => 0.5 + 0.5 * sign(x),
            Self::Chequered => 0.5 + 0.5 * sign(x) * sign(y),
            Self::Dotted => {
                let period = std::f32::consts::TAU / scale;
                let near = |v: f32| {
                    let place = v / period;
                    place - place.floor() - 0.5
                };
                let distance = (near(x).powi(2) + near(y).powi(2)).sqrt() - 0.3;
                (0.5 - distance * period / pixel).clamp(0.0, 1.0)
            }
            Self::Shaded => (0.5 + 0.5 * y).clamp(0.0, 1.0),
        }
    }
}
