//! The name that a wrong one was meant to be.

/// `; did you mean …?`, where something is near; of equally near names, the first.
pub fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let likeness = |known: &str| {
        let whole = strsim::jaro_winkler(wrong, known);
        whole.max(strsim::jaro_winkler(&last(wrong), &last(known)) - 0.02)
    };
    let best = known.reduce(|best, next| if likeness(next) > likeness(best) { next } else { best });
    match best.filter(|best| likeness(best) > 0.7) {
        Some(best) => format!("; did you mean \"{best}\"?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_named_and_nothing_is_made_up() {
        let known = ["moe.experts", "train.steps"];
        assert!(nearest("experts", known.into_iter()).contains("moe.experts"));
        let twice = ["moe.experts", "moe.router.experts"];
        assert!(nearest("experts", twice.into_iter()).contains("moe.experts"));
        assert!(nearest("train.step", known.into_iter()).contains("train.steps"));
        assert_eq!(nearest("qqq", known.into_iter()), "");
    }
}
