//! Flows: how much goes from each place of one stage to each of the next.

use crate::chart::{EMPTY, hover};
use crate::svg::{Anchor, Colour, Px, SMALL, Svg, WIDTH};
use crate::text::{escape, fit, number, width};

/// The height of all places of a stage together.
const AREA: f64 = 320.0;
/// The width of a place.
const BAR: f64 = 10.0;
/// Between two places of a stage.
const GAP: f64 = 3.0;
/// Links of two stages that are drawn: the largest.
const MOST: usize = 200;
/// A place has its name beside it if it is so high.
const NAMED: f64 = 9.0;

/// What goes from stage to stage, as a Sankey diagram: the ways of tokens through layers of experts.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    /// The title.
    pub title: String,
    /// The stages from left to right.
    pub stages: Vec<FlowStage>,
    /// What goes from each stage to the next, one list less than there are stages.
    pub links: Vec<Vec<FlowLink>>,
    /// What the colours of links mean, if anything; without it a link has the colour of the place that it comes from.
    pub kinds: Vec<String>,
}

/// Places beside each other.
#[derive(Debug, Clone, Default)]
pub struct FlowStage {
    /// What the stage is called.
    pub name: String,
    /// The names of its places.
    pub places: Vec<String>,
}

/// What goes from one place to another.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FlowLink {
    /// A place of the stage that it comes from.
    pub from: usize,
    /// A place of the next one.
    pub to: usize,
    /// How much; what is not finite or not positive is not drawn.
    pub amount: f64,
    /// Which of the kinds.
    pub kind: usize,
}

/// Where a place is: from its top on, so high.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    top: f64,
    height: f64,
    amount: f64,
}

impl Flow {
    /// The figure as an SVG document. Links that are too small to be seen beside the others are left out; the height
    /// of a place is all that comes to it, or leaves it.
    pub fn svg(&self) -> String {
        let (mut svg, used) = Svg::new(&self.title);
        let shown = self.shown();
        if shown.iter().all(Vec::is_empty) || self.stages.len() < 2 {
            return svg.no_data(EMPTY);
        }
        let used = self.legend(&mut svg, used);
        let top = used + 26.0;
        let slots = self.slots(&shown, top);
        let left = 14.0;
        let step = (WIDTH - 2.0 * left - BAR - 16.0) / (self.stages.len() - 1) as f64;
        let x = |stage: usize| left + step * stage as f64;
        for (stage, links) in shown.iter().enumerate() {
            self.draw_links(&mut svg, stage, links, &slots, (x(stage) + BAR, x(stage + 1)));
        }
        for (stage, places) in self.stages.iter().enumerate() {
            let middle = x(stage) + BAR / 2.0;
            let (anchor, at) = match stage {
                0 => (Anchor::Start, x(0)),
                last if last + 1 == self.stages.len() => {
                    (Anchor::End, (x(last) + BAR + 16.0).min(WIDTH - 4.0))
                }
                _ => (Anchor::Middle, middle),
            };
            svg.text(Colour::Muted, at, top - 8.0, anchor, &fit(&places.name, SMALL, step - 4.0));
            self.draw_places(&mut svg, stage, &slots[stage], x(stage));
        }
        svg.finish(top + AREA + 8.0)
    }

    /// The links that are drawn, of every stage.
    fn shown(&self) -> Vec<Vec<FlowLink>> {
        let of_stage = |(stage, links): (usize, &Vec<FlowLink>)| {
            let places = |stage: usize| self.stages.get(stage).map_or(0, |one| one.places.len());
            let fits = |link: &&FlowLink| {
                link.amount.is_finite()
                    && link.amount > 0.0
                    && link.from < places(stage)
                    && link.to < places(stage + 1)
            };
            let mut links: Vec<FlowLink> = links.iter().filter(fits).copied().collect();
            links.sort_by(|a, b| b.amount.total_cmp(&a.amount));
            links.truncate(MOST);
            links.sort_by_key(|link| (link.from, link.to, link.kind));
            links
        };
        let last = self.stages.len().saturating_sub(1);
        self.links.iter().take(last).enumerate().map(of_stage).collect()
    }

    /// Where every place of every stage is.
    fn slots(&self, shown: &[Vec<FlowLink>], top: f64) -> Vec<Vec<Slot>> {
        let amounts = |stage: usize| -> Vec<f64> {
            let count = self.stages[stage].places.len();
            let mut sums = (vec![0.0; count], vec![0.0; count]);
            if let Some(links) = shown.get(stage) {
                links.iter().for_each(|link| sums.0[link.from] += link.amount);
            }
            if let Some(links) = stage.checked_sub(1).and_then(|before| shown.get(before)) {
                links.iter().for_each(|link| sums.1[link.to] += link.amount);
            }
            sums.0.iter().zip(&sums.1).map(|(out, into): (&f64, &f64)| out.max(*into)).collect()
        };
        let all: Vec<Vec<f64>> = (0..self.stages.len()).map(amounts).collect();
        let scale = |amounts: &Vec<f64>| {
            let (busy, sum) =
                (amounts.iter().filter(|own| **own > 0.0).count(), amounts.iter().sum::<f64>());
            let gaps = GAP * busy.saturating_sub(1) as f64;
            if sum > 0.0 { (AREA - gaps).max(AREA / 2.0) / sum } else { f64::INFINITY }
        };
        let scale = all.iter().map(scale).fold(f64::INFINITY, f64::min);
        let place = |amounts: &Vec<f64>| {
            let mut next = top;
            let slot = |amount: &f64| {
                let slot = Slot { top: next, height: amount * scale, amount: *amount };
                next += slot.height + if *amount > 0.0 { GAP } else { 0.0 };
                slot
            };
            amounts.iter().map(slot).collect()
        };
        all.iter().map(place).collect()
    }

    fn draw_links(
        &self,
        svg: &mut Svg,
        stage: usize,
        links: &[FlowLink],
        slots: &[Vec<Slot>],
        (left, right): (f64, f64),
    ) {
        let (from, to) = (&self.stages[stage], &self.stages[stage + 1]);
        let mut starts: Vec<f64> = slots[stage].iter().map(|slot| slot.top).collect();
        let mut ends: Vec<f64> = slots[stage + 1].iter().map(|slot| slot.top).collect();
        let scale = |slot: &Slot| if slot.amount > 0.0 { slot.height / slot.amount } else { 0.0 };
        // Thin ones lie on top, so that the pointer finds them.
        let mut drawn: Vec<(f64, String)> = Vec::new();
        let mut by_end: Vec<usize> = (0..links.len()).collect();
        by_end.sort_by_key(|place| (links[*place].to, links[*place].from, links[*place].kind));
        let mut arrive = vec![0.0; links.len()];
        for place in by_end {
            let link = links[place];
            arrive[place] = ends[link.to];
            ends[link.to] += link.amount * scale(&slots[stage][link.from]);
        }
        for (link, y1) in links.iter().zip(arrive) {
            let height = link.amount * scale(&slots[stage][link.from]);
            let y0 = starts[link.from];
            starts[link.from] += height;
            let middle = (left + right) / 2.0;
            let colour = match self.kinds.is_empty() {
                true => Colour::Series(link.from),
                false => Colour::Series(link.kind),
            };
            let kind =
                self.kinds.get(link.kind).map(|kind| format!(", {kind}")).unwrap_or_default();
            let text = hover(&format!(
                "{} {} → {} {}{kind}: {}",
                from.name,
                from.places[link.from],
                to.name,
                to.places[link.to],
                number(link.amount)
            ));
            let [y0, y1, middle, left, right] = [y0, y1, middle, left, right].map(Px);
            let [low0, low1] = [y0.0 + height, y1.0 + height].map(Px);
            drawn.push((
                height,
                format!(
                    r#"<path {colour} d="M{left} {y0}C{middle} {y0} {middle} {y1} {right} {y1}V{low1}C{middle} {low1} {middle} {low0} {left} {low0}Z" fill="currentColor" fill-opacity="0.35">{text}</path>"#
                ),
            ));
        }
        drawn.sort_by(|a, b| b.0.total_cmp(&a.0));
        drawn.iter().for_each(|(_, markup)| svg.add(format_args!("{markup}")));
    }

    fn draw_places(&self, svg: &mut Svg, stage: usize, slots: &[Slot], x: f64) {
        let stage = &self.stages[stage];
        for (place, (name, slot)) in stage.places.iter().zip(slots).enumerate() {
            if slot.amount <= 0.0 {
                continue;
            }
            let colour = if self.kinds.is_empty() { Colour::Series(place) } else { Colour::Muted };
            let text = hover(&format!("{} {name}: {}", stage.name, number(slot.amount)));
            let (left, top, height) = (Px(x), Px(slot.top), Px(slot.height.max(0.5)));
            svg.add(format_args!(
                r#"<rect {colour} x="{left}" y="{top}" width="{BAR}" height="{height}" fill="currentColor">{text}</rect>"#
            ));
            if slot.height >= NAMED {
                let size = SMALL.min(slot.height).min(10.0);
                svg.add(format_args!(
                    r#"<text {} x="{}" y="{}" font-size="{}" fill="currentColor" aria-hidden="true">{}</text>"#,
                    Colour::Ink,
                    Px(x + BAR + 2.0),
                    Px(slot.top + slot.height / 2.0 + size * 0.35),
                    Px(size),
                    escape(name)
                ));
            }
        }
    }

    fn legend(&self, svg: &mut Svg, used: f64) -> f64 {
        if self.kinds.is_empty() {
            return used;
        }
        let mut x = 4.0;
        for (kind, name) in self.kinds.iter().enumerate() {
            let name = fit(name, SMALL, 200.0);
            svg.add(format_args!(
                r#"<rect {} x="{}" y="{}" width="14" height="10" rx="1.5" fill="currentColor"/>"#,
                Colour::Series(kind),
                Px(x),
                Px(used + 4.0)
            ));
            svg.text(Colour::Ink, x + 20.0, used + 13.0, Anchor::Start, &name);
            x += 34.0 + width(&name, SMALL);
        }
        used + 18.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str, places: &[&str]) -> FlowStage {
        let places = places.iter().map(|place| (*place).to_owned()).collect();
        FlowStage { name: name.to_owned(), places }
    }

    fn link(from: usize, to: usize, amount: f64) -> FlowLink {
        FlowLink { from, to, amount, kind: 0 }
    }

    fn flow(links: Vec<Vec<FlowLink>>) -> Flow {
        let stages = vec![stage("block 1", &["0", "1"]), stage("block 3", &["0", "1", "none"])];
        Flow { title: "ways".to_owned(), stages, links, kinds: Vec::new() }
    }

    #[test]
    fn places_are_as_high_as_what_passes_them() {
        let flow = flow(vec![vec![link(0, 0, 30.0), link(0, 1, 10.0), link(1, 1, 60.0)]]);
        let slots = flow.slots(&flow.shown(), 0.0);
        let heights =
            |stage: usize| slots[stage].iter().map(|slot| slot.height).collect::<Vec<_>>();
        let share = |height: f64| (height / (AREA - GAP) * 100.0).round();
        assert_eq!(heights(0).into_iter().map(share).collect::<Vec<_>>(), [40.0, 60.0]);
        assert_eq!(heights(1).into_iter().map(share).collect::<Vec<_>>(), [30.0, 70.0, 0.0]);
        assert_eq!(slots[0][1].top, slots[0][0].height + GAP);
        let svg = flow.svg();
        assert!(svg.contains("block 1 0 → block 3 1: 10"), "{svg}");
        assert!(!svg.contains("block 3 none"), "nothing goes there");
    }

    #[test]
    fn links_to_nowhere_and_impossible_amounts_are_left_out() {
        let odd = [link(0, 9, 1.0), link(9, 0, 1.0), link(0, 0, f64::NAN), link(0, 0, -1.0)];
        let flow = flow(vec![odd.to_vec(), odd.to_vec()]);
        assert!(flow.svg().contains("no data"));
        assert!(Flow::default().svg().contains("no data"));
    }

    #[test]
    fn only_the_largest_of_very_many_links_are_drawn() {
        let places: Vec<String> = (0..64).map(|place| place.to_string()).collect();
        let stage = FlowStage { name: "s".to_owned(), places };
        let all = (0..64 * 64).map(|at| link(at / 64, at % 64, at as f64 + 1.0)).collect();
        let flow = Flow { stages: vec![stage.clone(), stage], links: vec![all], ..Flow::default() };
        let svg = flow.svg();
        assert_eq!(svg.matches("<path").count(), MOST);
        assert!(svg.len() < 200_000, "{}", svg.len());
    }

    #[test]
    fn kinds_have_colours_and_a_legend() {
        let mut flow = flow(vec![vec![link(0, 0, 3.0), FlowLink { kind: 1, ..link(1, 0, 2.0) }]]);
        flow.kinds = ["images", "texts"].map(str::to_owned).to_vec();
        let svg = flow.svg();
        assert!(svg.contains(">images</text>") && svg.contains("block 3 0, texts: 2"), "{svg}");
    }
}
