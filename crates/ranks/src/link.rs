//! What connects ranks.

/// What a [`World`](crate::World) needs of whatever connects its ranks. All ranks call the same operations in the
/// same order, from any of their threads.
pub(crate) trait Link: Send + Sync {
    /// Which one this is.
    fn rank(&self) -> usize;

    /// How many there are.
    fn size(&self) -> usize;

    /// Gives every rank its part of `send`, and returns what every rank has for this one, in their order.
    ///
    /// - `sent`, `received`: how many values each rank gets and gives; they lie one after the other
    /// - `patient`: whether it leaves the processor to others while it waits
    fn all_to_all(
        &self,
        send: Vec<f32>,
        sent: &[usize],
        received: &[usize],
        patient: bool,
    ) -> Vec<f32>;

    /// The parts of all ranks one after the other, everywhere.
    ///
    /// - `counts`: how many values each rank has
    /// - `patient`: whether it leaves the processor to others while it waits
    fn all_gather(&self, own: Vec<f32>, counts: &[usize], patient: bool) -> Vec<f32>;

    /// Values of rank 0, everywhere; the others give as many.
    fn broadcast(&self, values: Vec<f32>) -> Vec<f32>;

    /// The same with bytes of any number. It may take long until rank 0 has them: whoever waits leaves the
    /// processor to others.
    fn broadcast_bytes(&self, bytes: Vec<u8>) -> Vec<u8>;

    /// What every rank has, everywhere.
    fn gather_bytes(&self, own: Vec<u8>) -> Vec<Vec<u8>>;

    /// A link between those ranks alone that have the same colour as this one, in the same order.
    fn split(&self, colour: usize) -> Box<dyn Link>;

    /// Where this rank runs.
    fn machine(&self) -> String;

    /// Ends all ranks at once.
    fn abort(&self, code: i32) -> !;
}
