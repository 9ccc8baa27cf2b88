//! Any number of ranks trains the same bits.

use crate::ranks::{MIXTURE, PAIRS, alone, assert_same, finish, start};

#[test]
fn four_ranks_two_ranks_and_one_process_train_the_same_bits() {
    for settings in [MIXTURE, PAIRS] {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("alone");
        alone(&whole, 12, settings);
        for ranks in [1, 2, 4] {
            let run = folder.path().join(ranks.to_string());
            finish(&mut start(ranks, &run, 12, settings));
            assert_same(&whole, &run);
        }
    }
}
