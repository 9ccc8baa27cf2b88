//! Which evaluations were judged alike, and what is missing where they were not.

use std::collections::BTreeSet;

use crate::{
    error::{EvalError, Result},
    protocols::{Evaluation, shift::Shift, transfer::FewShotRecord},
};

/// Fails unless all were judged by the same images in the same way.
pub(super) fn check(evaluations: &[Evaluation]) -> Result<()> {
    for (place, one) in evaluations.iter().enumerate() {
        let own = terms(one);
        for other in &evaluations[..place] {
            let contradicts = |(key, left): &(String, String)| {
                let (_, right) = own.iter().find(|(own, _)| own == key)?;
                (left != right).then(|| (left.clone(), right.clone()))
            };
            if let Some((left, right)) = terms(other).iter().find_map(contradicts) {
                return Err(EvalError::Compare(format!(
                    "{} was judged {left}, {} {right}; they can be compared only if they were judged \
                     alike",
                    other.label, one.label
                )));
            }
        }
    }
    Ok(())
}

/// How it was judged, in words, as far as its numbers depend on that; nothing for what was not asked.
fn terms(one: &Evaluation) -> Vec<(String, String)> {
    let mut terms = vec![("test".to_owned(), test(one))];
    terms.extend(one.test.is_some().then(|| ("binning".to_owned(), binning(one))));
    let named = |(name, text): (&str, String)| (name.to_owned(), text);
    terms.extend(templates(one).map(|text| ("templates", text)).map(named));
    terms.extend(captions(one).map(|text| ("captions", text)).map(named));
    if !one.ood.is_empty() {
        terms.extend([("score".to_owned(), score(one)), ("positive".to_owned(), positive(one))]);
    }
    terms.extend(one.ood.keys().map(|name| (format!("against {name}"), against(one, name))));
    let shots = one.few_shot.keys().map(|name| (format!("shots of {name}"), shots(one, name)));
    terms.extend(shots);
    terms.extend(one.shift.as_ref().map(|shift| ("shift".to_owned(), shift.terms())));
    terms
}

fn test(one: &Evaluation) -> String {
    let by = match (&one.test, &one.segmentation) {
        (Some(_), _) => "",
        (None, Some(_)) => " and their masks",
        (None, None) => " and their captions alone",
    };
    format!("by {} images of {}{}{by}", one.samples(), one.data, one.among())
}

fn binning(one: &Evaluation) -> String {
    one.test.as_ref().map(|test| format!("with {}", test.binning)).unwrap_or_default()
}

/// The sentences that the names of classes were put into.
fn templates(one: &Evaluation) -> Option<String> {
    let prompts = one.contrast.as_ref()?.prompts.as_ref()?;
    Some(format!("by names of classes in “{}”", prompts.templates.join("”, “")))
}

/// What images and texts found each other among.
fn captions(one: &Evaluation) -> Option<String> {
    let captions = one.contrast.as_ref()?.captions.as_ref()?;
    let (images, texts, batch) = (captions.images, captions.texts.texts, captions.accuracy.batch);
    Some(format!("by {images} images and {texts} captions, in batches of {batch} pairs"))
}

fn score(one: &Evaluation) -> String {
    format!("out of distribution by {}", one.ood_score.in_words())
}

fn positive(one: &Evaluation) -> String {
    format!("with {} images as the positive class", one.ood_positive.in_words())
}

fn against(one: &Evaluation, name: &str) -> String {
    format!("against {} images of {name}", one.ood[name].samples)
}

/// How features were judged by few images of a data set.
fn shots(one: &Evaluation, name: &str) -> String {
    let FewShotRecord { samples, draws, .. } = &one.few_shot[name];
    format!("by few shots of {name}, {draws} draws, on {samples} images")
}

/// Something that was judged, perhaps in several ways.
#[derive(Debug, Clone)]
pub struct Subject {
    /// As the user calls it.
    pub name: String,
    /// Whether `omma eval` takes it: a run, not an evaluation by itself.
    pub is_run: bool,
    /// The data that it was trained on, if that is known.
    pub data: Option<String>,
    /// All evaluations of it, the plain one first.
    pub evaluations: Vec<Evaluation>,
}

/// Evaluations that can stand beside each other.
#[derive(Debug, Clone)]
pub struct Alike {
    /// One per subject, with what all of them have alone.
    pub evaluations: Vec<Evaluation>,
    /// What would make for a fuller comparison, in sentences.
    pub notes: Vec<String>,
}

/// What a protocol asks beside the test itself, in words.
fn extras(one: &Evaluation) -> BTreeSet<String> {
    let ood = |name: &String| format!("{}, {}, {}", against(one, name), score(one), positive(one));
    let few = |name: &String| shots(one, name);
    let ood = one.ood.keys().map(ood).chain(one.few_shot.keys().map(few));
    ood.chain(one.shift.as_ref().map(Shift::terms)).collect()
}

/// Against which images, without how these are told.
fn short(extra: &str) -> &str {
    extra.split(", out of distribution by").next().unwrap_or(extra)
}

/// The test itself.
fn base(one: &Evaluation) -> String {
    format!("{} {}", test(one), binning(one)).trim_end().to_owned()
}

/// All of it.
fn whole(one: &Evaluation) -> String {
    let extras: Vec<String> = extras(one).into_iter().collect();
    let and = if extras.is_empty() { "" } else { ", and " };
    format!("{}{and}{}", base(one), extras.join(", and "))
}

impl Alike {
    /// One evaluation of each subject, all judged by the same test: by the one of most images that all have,
    /// and of these with as many corruptions and out-of-distribution data sets as all have.
    pub fn choose(subjects: &[Subject]) -> Result<Self> {
        let Some((first, others)) = subjects.split_first() else {
            return Err(EvalError::Compare("there is nothing to compare".to_owned()));
        };
        let mut best: Option<(Vec<&Evaluation>, BTreeSet<String>)> = None;
        for pivot in &first.evaluations {
            let asked = extras(pivot);
            let shared = |one: &Evaluation| extras(one).intersection(&asked).count();
            let chosen: Option<Vec<&Evaluation>> = others
                .iter()
                .map(|other| {
                    let same = other.evaluations.iter().filter(|one| base(one) == base(pivot));
                    // Of equal ones the first, which `max_by_key` would give last.
                    same.rev().max_by_key(|one| shared(one))
                })
                .collect();
            let Some(chosen) = chosen else { continue };
            let chosen: Vec<&Evaluation> = std::iter::once(pivot).chain(chosen).collect();
            let common = chosen.iter().fold(asked, |common, one| &common & &extras(one));
            let worth = |chosen: &[&Evaluation], common: &BTreeSet<String>| {
                (chosen[0].samples(), common.len())
            };
            let more = best.as_ref().is_none_or(|(evaluations, known)| {
                worth(&chosen, &common) > worth(evaluations, known)
            });
            if more {
                best = Some((chosen, common));
            }
        }
        let Some((chosen, common)) = best else { return Err(nothing_common(subjects)) };
        let mut notes = fuller(subjects, chosen[0], &common);
        notes.extend(other_tests(subjects, chosen[0]));
        let evaluations = chosen.into_iter().map(|one| reduced(one, &common)).collect();
        Ok(Self { evaluations, notes })
    }
}

/// An evaluation without the corruptions and the data sets that others lack.
fn reduced(one: &Evaluation, common: &BTreeSet<String>) -> Evaluation {
    let mut one = one.clone();
    let shift = one.shift.take();
    one.shift = shift.filter(|shift| common.contains(&shift.terms()));
    let all = std::mem::take(&mut one.ood);
    let named = all.into_iter();
    let kept = named.filter(|(name, record)| {
        let against = format!("against {} images of {name}", record.samples);
        common.contains(&format!("{against}, {}, {}", score(&one), positive(&one)))
    });
    let kept = kept.collect();
    one.ood = kept;
    let judged = one.clone();
    one.few_shot.retain(|name, _| common.contains(&shots(&judged, name)));
    one
}

/// What the richest evaluation by the same test has beside what all have, and the commands that make it.
fn fuller(subjects: &[Subject], chosen: &Evaluation, common: &BTreeSet<String>) -> Vec<String> {
    let all = subjects.iter().flat_map(|subject| &subject.evaluations);
    let same = all.filter(|one| base(one) == base(chosen));
    let Some(richest) = same.rev().max_by_key(|one| extras(one).len()) else { return Vec::new() };
    let wanted = extras(richest);
    if wanted == *common {
        return Vec::new();
    }
    let lacks = |subject: &&Subject| {
        let same = |one: &&Evaluation| base(one) == base(chosen);
        !subject.evaluations.iter().filter(same).any(|one| extras(one).is_superset(&wanted))
    };
    let sentence = |subject: &Subject| {
        let own: BTreeSet<String> = subject.evaluations.iter().flat_map(extras).collect();
        // How images are told matters where they were told in another way.
        let words = |extra: &String| match own.iter().any(|one| short(one) == short(extra)) {
            true => extra.clone(),
            false => short(extra).to_owned(),
        };
        let missing: Vec<String> = wanted.difference(common).map(words).collect();
        let missing = missing.join(", and ");
        format!("{} was not judged {missing}{}", subject.name, command(subject, richest))
    };
    subjects.iter().filter(lacks).map(sentence).collect()
}

/// Other tests that all subjects have.
fn other_tests(subjects: &[Subject], chosen: &Evaluation) -> Option<String> {
    let has =
        |subject: &Subject, test: &str| subject.evaluations.iter().any(|one| base(one) == test);
    let tests: BTreeSet<String> = subjects[0].evaluations.iter().map(base).collect();
    let others = tests.into_iter().filter(|test| *test != base(chosen));
    let others: Vec<String> =
        others.filter(|test| subjects.iter().all(|subject| has(subject, test))).collect();
    (!others.is_empty()).then(|| {
        format!(
            "all of them were judged {} too; name the folders of these evaluations to compare them",
            others.join(", and ")
        )
    })
}

/// What each has, and the commands that would make them alike.
fn nothing_common(subjects: &[Subject]) -> EvalError {
    let describe = |subject: &Subject| {
        let all: Vec<String> = subject.evaluations.iter().map(whole).collect();
        format!("{} was judged {}", subject.name, all.join("; "))
    };
    let all: Vec<String> = subjects.iter().map(describe).collect();
    let mut text = format!("nothing was judged alike: {}", all.join("; "));
    let evaluations = subjects.iter().flat_map(|subject| &subject.evaluations).rev();
    let rank = |one: &&Evaluation| {
        let shared = subjects
            .iter()
            .filter(|subject| subject.evaluations.iter().any(|other| base(other) == base(one)));
        (shared.count(), one.samples(), extras(one).len())
    };
    if let Some(model) = evaluations.max_by_key(rank) {
        let lacks =
            |subject: &&Subject| !subject.evaluations.iter().any(|one| base(one) == base(model));
        let commands = subjects.iter().filter(lacks).map(|subject| command(subject, model));
        text += &commands.collect::<String>();
    }
    EvalError::Compare(text)
}

/// `: omma eval runs/b --shift`, what makes the subject's evaluation like another; nothing where it cannot be
/// known.
fn command(subject: &Subject, like: &Evaluation) -> String {
    let (true, Some(options)) = (subject.is_run, &like.options) else { return String::new() };
    let mut words = vec!["omma".to_owned(), "eval".to_owned(), subject.name.clone()];
    // What was judged by its own data did not have to say so.
    let named = options.iter().any(|word| word == "--data");
    let own = subject
        .data
        .as_ref()
        .is_some_and(|data| like.data == *data || like.data.starts_with(&format!("{data} (")));
    if !named && !own {
        let data = like.data.split(" (").next().unwrap_or_default();
        words.extend(["--data".to_owned(), data.to_owned()]);
    }
    words.extend(options.iter().cloned());
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("; make it with: {}", words.join(" "))
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |symbol: char| symbol.is_alphanumeric() || "-_./=,:+@%".contains(symbol);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
