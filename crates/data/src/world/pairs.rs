//! Pairs of a colour and a shape, some of which `world-seen` never shows.

use super::shape::{Colour, Shape};

/// The pairs that are held out: one for every shape, each of another colour, and none that a shape's habit
/// makes frequent. Of every shape eleven other colours are left, and of every colour nine other shapes or all.
const HELD_OUT: [(Colour, Shape); 10] = [
    (Colour::Blue, Shape::Circle),
    (Colour::Red, Shape::Square),
    (Colour::Purple, Shape::Triangle),
    (Colour::Green, Shape::Pentagon),
    (Colour::Pink, Shape::Star),
    (Colour::Orange, Shape::Cross),
    (Colour::Yellow, Shape::Ring),
    (Colour::Cyan, Shape::Heart),
    (Colour::White, Shape::Crescent),
    (Colour::Brown, Shape::Drop),
];

/// Whether `world-seen` has no such object.
pub(super) fn is_held_out(colour: Colour, shape: Shape) -> bool {
    HELD_OUT.contains(&(colour, shape))
}

/// The colour that is held out of a shape; shapes that are no class have none.
pub(super) fn held_out_of(shape: Shape) -> Option<Colour> {
    HELD_OUT.iter().find(|(_, held)| *held == shape).map(|(colour, _)| *colour)
}

/// All pairs, worded as captions word them: every shape in the first colour, then in the next.
pub(super) fn names() -> Vec<String> {
    let of_colour = |colour: &Colour| {
        let colour = colour.name();
        Shape::CLASSES.map(|shape| format!("{colour} {}", shape.name()))
    };
    Colour::ALL.iter().flat_map(of_colour).collect()
}

/// The place of a pair among the names.
pub(super) fn place(colour: Colour, shape: Shape) -> Option<usize> {
    let colour = Colour::ALL.iter().position(|other| *other == colour)?;
    let shape = Shape::CLASSES.iter().position(|other| *other == shape)?;
    Some(colour * Shape::CLASSES.len() + shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_lacks_one_colour_that_is_not_its_habit() {
        for shape in Shape::CLASSES {
            let held: Vec<Colour> =
                Colour::ALL.into_iter().filter(|colour| is_held_out(*colour, shape)).collect();
            assert_eq!(held.len(), 1, "{shape:?}");
            assert_eq!(held_out_of(shape), Some(held[0]));
            assert_ne!(held[0], shape.habit().0);
        }
        for colour in Colour::ALL {
            let held = Shape::CLASSES.iter().filter(|shape| is_held_out(colour, **shape));
            assert!(held.count() <= 1, "{colour:?}");
        }
        assert_eq!(held_out_of(Shape::Arrow), None);
    }

    #[test]
    fn names_are_in_the_order_of_their_places() {
        let names = names();
        assert_eq!(names.len(), 120);
        for (colour, shape) in HELD_OUT {
            let name = &names[place(colour, shape).unwrap()];
            assert_eq!(*name, format!("{} {}", colour.name(), shape.name()));
        }
        assert_eq!(place(Colour::Red, Shape::Arrow), None);
    }
}
