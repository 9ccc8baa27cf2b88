//! What connects ranks.

/// What a [`World`](crate::World) needs of whatever connects its ranks. All ranks call the same operations in the
/// same order.
pub(crate) trait Link {
    /// Which one this is.
    fn rank(&self) -> usize;

    /// How many there are.
    fn size(&self) -> usize;

    /// Gives every rank its part of `send`, and takes what every rank has for this one, in their order.
    ///
    /// - `sent`, `received`: how many values each rank gets and gives; they lie one after the other
    fn all_to_all(&self, send: &[f32], sent: &[usize], receive: &mut [f32], received: &[usize]);

    /// Puts the parts of all ranks one after the other, everywhere.
    ///
    /// - `counts`: how many values each rank has
    fn all_gather(&self, own: &[f32], all: &mut [f32], counts: &[usize]);

    /// Gives values of rank 0 to all.
    fn broadcast(&self, values: &mut [f32]);

    /// The same with bytes of any number. It may take long until rank 0 has them: whoever waits leaves the
    /// processor to others.
    fn broadcast_bytes(&self, bytes: &mut Vec<u8>);

    /// What every rank has, everywhere.
    fn gather_bytes(&self, own: &[u8]) -> Vec<Vec<u8>>;

    /// Where this rank runs.
    fn machine(&self) -> String;

    /// Ends all ranks at once.
    fn abort(&self, code: i32) -> !;
}
