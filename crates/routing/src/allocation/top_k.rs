//! The best of a row or a column.

use super::order::descending_bits;

/// The `best.len()` columns with the largest scores, best first; ties go to the lowest column.
///
/// Linear in the row for the few choices that tokens make.
pub(super) fn top_columns(row: &[f32], available: &[bool], best: &mut [u32]) {
    let mut found = 0;
    for (column, (score, available)) in row.iter().zip(available).enumerate() {
        if !available {
            continue;
        }
        let rank = best[..found].iter().take_while(|other| row[**other as usize] >= *score).count();
        if rank == best.len() {
            continue;
        }
        found = (found + 1).min(best.len());
        best.copy_within(rank..found - 1, rank + 1);
        best[rank] = column as u32;
    }
    assert_eq!(found, best.len(), "a gate must have as many experts as a token chooses");
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
        top_columns(&[0.1, 0.4, 0.4, 0.1, 0.2], &[true; 5], &mut best);
        assert_eq!(best, [1, 2, 4]);
        top_columns(&[0.1, 0.4, 0.4, 0.1, 0.2], &[true, false, true, true, true], &mut best);
        assert_eq!(best, [2, 4, 0]);
        assert_eq!(top_positions([0.5, 0.7, 0.5, 0.7].into_iter(), 3), [1, 3, 0]);
        assert_eq!(top_positions([0.5, 0.7].into_iter(), 9), [1, 0]);
    }
}
