//! The best of a row or a column.

use super::order::descending_bits;

/// The `best.len()` columns with the largest scores, best first; ties go to the lowest column.
/// Without a mask all columns are available.
///
/// Linear in the row for the few choices that tokens make.
pub(crate) fn top_columns(row: &[f32], available: Option<&[bool]>, best: &mut [u32]) {
    let (mut found, k) = (0, best.len());
    let mut worst = f32::NEG_INFINITY;
    for (column, &score) in row.iter().enumerate() {
        // A score that only ties with the worst of a full list stays behind it.
        if (found == k && score <= worst) || available.is_some_and(|available| !available[column]) {
            continue;
        }
        let better = |other: &&u32| row[**other as usize] >= score;
        let rank = best[..found].iter().take_while(better).count();
        found = (found + 1).min(k);
        best.copy_within(rank..found - 1, rank + 1);
        best[rank] = column as u32;
        worst = row[best[found - 1] as usize];
    }
    assert_eq!(found, k, "a gate must have as many experts as a token chooses");
}

/// The positions of the `count` largest scores, largest first; ties go to the lowest position.
///
/// Linear in the candidates, plus the sorting of those chosen.
pub(super) fn top_positions(scores: impl Iterator<Item = f32>, count: usize) -> Vec<u32> {
    let mut keys: Vec<u64> = (0..)
        .zip(scores)
        .map(|(position, score): (u64, f32)| u64::from(descending_bits(score)) << 32 | position)
        .collect();
    if count < keys.len() {
        keys.select_nth_unstable(count);
        keys.truncate(count);
    }
    keys.sort_unstable();
    keys.into_iter().map(|key| key as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lowest_index() {
        let mut best = [0; 3];
        top_columns(&[0.1, 0.4, 0.4, 0.1, 0.2], None, &mut best);
        assert_eq!(best, [1, 2, 4]);
        top_columns(&[0.1, 0.4, 0.4, 0.1, 0.2], Some(&[true, false, true, true, true]), &mut best);
        assert_eq!(best, [2, 4, 0]);
        assert_eq!(top_positions([0.5, 0.7, 0.5, 0.7].into_iter(), 3), [1, 3, 0]);
        assert_eq!(top_positions([0.5, 0.7].into_iter(), 9), [1, 0]);
    }
}
