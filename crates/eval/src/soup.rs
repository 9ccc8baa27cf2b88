//! Which models are averaged, and how often each: by the score of what comes of it (paper 002 App. A.3, after model
//! soups).

use std::collections::HashMap;

/// What a soup scores; compared in this order.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct SoupScore {
    /// Share of the images that it is right about.
    pub accuracy: f64,
    /// Where that is the same: the mean log-likelihood of the right classes, which is the NLL below zero. Nothing
    /// where there are no classes.
    pub log_likelihood: Option<f64>,
}

/// A step of a greedy choice.
#[derive(Debug, Clone, PartialEq)]
pub struct SoupStep<S> {
    /// The candidate that was taken.
    pub taken: usize,
    /// How often each candidate is in the soup by then.
    pub counts: Vec<usize>,
    /// What the soup scores.
    pub score: S,
}

/// A soup that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct GreedySoup<S> {
    /// What every candidate scores by itself.
    pub own: Vec<S>,
    /// From the best candidate on; every step scores more than the one before.
    pub steps: Vec<SoupStep<S>>,
}

impl<S> GreedySoup<S> {
    /// How often each candidate is in the soup.
    pub fn counts(&self) -> &[usize] {
        self.steps.last().map_or(&[], |step| &step.counts)
    }
}

/// Chooses a soup: the best candidate first, and then in each round the one that raises the score most, until none
/// does or there are `most` in it. A candidate may be taken several times. Of equals, the one that is better by itself
/// is taken, and of such the one that comes first.
///
/// - `score`: of the mean by counts of every candidate, the higher the better; asked once for the same mean
/// - `taken`: hears of every step as it is made
pub fn greedy_soup<S: PartialOrd + Copy, E>(
    candidates: usize,
    most: usize,
    mut score: impl FnMut(&[usize]) -> Result<S, E>,
    mut taken: impl FnMut(&SoupStep<S>),
) -> Result<GreedySoup<S>, E> {
    let mut known: HashMap<Vec<usize>, S> = HashMap::new();
    let mut scored = |counts: &[usize]| {
        let mean = reduced(counts);
        if let Some(found) = known.get(&mean) {
            return Ok(*found);
        }
        let found = score(&mean)?;
        known.insert(mean, found);
        Ok(found)
    };
    let with = |counts: &[usize], candidate: usize| {
        let mut counts = counts.to_vec();
        counts[candidate] += 1;
        counts
    };
    let nothing = vec![0; candidates];
    let own =
        (0..candidates).map(|one| scored(&with(&nothing, one))).collect::<Result<Vec<S>, E>>()?;
    let mut order: Vec<usize> = (0..candidates).collect();
    // Stable: of equals, the first stays first.
    order.sort_by(|a, b| own[*b].partial_cmp(&own[*a]).unwrap_or(std::cmp::Ordering::Equal));
    let mut steps: Vec<SoupStep<S>> = Vec::new();
    while steps.len() < most {
        let (counts, mut highest) = match steps.last() {
            Some(step) => (step.counts.clone(), Some(step.score)),
            None => (nothing.clone(), None),
        };
        let mut best = None;
        for candidate in &order {
            let counts = with(&counts, *candidate);
            let score = scored(&counts)?;
            if highest.is_none_or(|highest| score > highest) {
                highest = Some(score);
                best = Some(SoupStep { taken: *candidate, counts, score });
            }
        }
        let Some(best) = best else { break };
        taken(&best);
        steps.push(best);
    }
    Ok(GreedySoup { own, steps })
}

/// The smallest counts of the same mean.
fn reduced(counts: &[usize]) -> Vec<usize> {
    let divisor = counts.iter().fold(0, |a, b| greatest_common(a, *b)).max(1);
    counts.iter().map(|count| count / divisor).collect()
}

fn greatest_common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// Candidates are points, and the nearer their mean is to `goal`, the better.
    fn nearness(points: &[[f64; 2]], goal: [f64; 2], counts: &[usize]) -> f64 {
        let total: usize = counts.iter().sum();
        let mean = |axis: usize| {
            let sums = points.iter().zip(counts).map(|(point, count)| point[axis] * *count as f64);
            sums.sum::<f64>() / total as f64
        };
        -[0, 1].map(|axis| (mean(axis) - goal[axis]).powi(2)).iter().sum::<f64>()
    }

    fn chosen(points: &[[f64; 2]], goal: [f64; 2], most: usize) -> GreedySoup<f64> {
        let score = |counts: &[usize]| Ok::<f64, Infallible>(nearness(points, goal, counts));
        greedy_soup(points.len(), most, score, |_| {}).unwrap()
    }

    #[test]
    fn a_candidate_is_taken_again_where_that_helps() {
        // A third of the way from the first to the second: twice the one and once the other.
        let soup = chosen(&[[0.0, 0.0], [3.0, 0.0], [9.0, 9.0]], [1.0, 0.0], 8);
        assert_eq!(soup.steps.iter().map(|step| step.taken).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(soup.counts(), [2, 1, 0]);
        assert_eq!(soup.own, [-1.0, -4.0, -145.0]);
        let soup = chosen(&[[0.0, 0.0], [3.0, 0.0]], [1.0, 0.0], 2);
        assert_eq!(soup.counts(), [1, 1], "no more than asked for");
    }

    #[test]
    fn equals_go_to_the_first_and_nothing_is_asked_twice() {
        let mut asked = Vec::new();
        let score = |counts: &[usize]| {
            asked.push(counts.to_vec());
            Ok::<f64, Infallible>(1.0)
        };
        let soup = greedy_soup(3, 8, score, |_| {}).unwrap();
        assert_eq!(soup.counts(), [1, 0, 0]);
        // Each alone, and the first with each other: twice the first is the first.
        let expected = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1]];
        assert_eq!(asked, expected);
    }

    #[test]
    fn the_likelihood_decides_where_accuracies_are_the_same() {
        let score = |accuracy, log| SoupScore { accuracy, log_likelihood: Some(log) };
        assert!(score(0.5, -3.0) > score(0.4, -1.0));
        assert!(score(0.5, -1.0) > score(0.5, -3.0));
    }

    #[test]
    fn what_goes_wrong_ends_the_choice() {
        let score = |counts: &[usize]| if counts[1] > 0 { Err("broken") } else { Ok(1.0) };
        assert_eq!(greedy_soup(2, 8, score, |_| {}), Err("broken"));
    }

    proptest! {
        #[test]
        fn a_greedy_soup_rises_step_by_step_from_the_best_and_stops_where_nothing_helps(
            points in prop::collection::vec(prop::array::uniform2(-1.0..1.0_f64), 1..6),
            goal in prop::array::uniform2(-1.0..1.0_f64),
            most in 1..9_usize,
        ) {
            let soup = chosen(&points, goal, most);
            let best = soup.own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert_eq!(soup.steps[0].score, best);
            prop_assert!(soup.steps.len() <= most);
            for (number, step) in soup.steps.iter().enumerate() {
                prop_assert_eq!(step.counts.iter().sum::<usize>(), number + 1);
                prop_assert!(step.counts[step.taken] > 0);
                let direct = nearness(&points, goal, &step.counts);
                prop_assert!((step.score - direct).abs() < 1e-12);
            }
            prop_assert!(soup.steps.windows(2).all(|pair| pair[1].score > pair[0].score));
            // It stopped because it had to.
            if soup.steps.len() < most {
                let last = soup.steps.last().unwrap();
                for one in 0..points.len() {
                    let mut counts = last.counts.clone();
                    counts[one] += 1;
                    prop_assert!(nearness(&points, goal, &counts) <= last.score + 1e-12);
                }
            }
        }
    }
}
