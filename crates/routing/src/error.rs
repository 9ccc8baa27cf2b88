//! What can be wrong with a router's configuration or with what it is given.

/// The result of anything in this crate that can fail.
pub type Result<T> = std::result::Result<T, RoutingError>;

/// A configuration that cannot route, or tokens that cannot be routed.
///
/// Every message names the values on both sides, so that it can be shown to a person as it is.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message says of it")]
pub enum RoutingError {
    /// A router without experts.
    #[error("a router needs at least one expert")]
    NoExperts,

    /// A choice that is written in a way that is not known.
    #[error("\"{text}\" is not {what}: write {forms}")]
    Unreadable { what: &'static str, text: String, forms: &'static str },

    /// No router of this name.
    #[error("there is no router \"{name}\"{hint}")]
    UnknownRouter { name: String, hint: String },

    /// Something that is defined for sequences of one kind alone.
    #[error("{what} needs sequences of one kind, but the batch has {kinds}")]
    SeveralKinds { what: &'static str, kinds: usize },

    /// `K` of token choice is zero.
    #[error("every token must choose at least one expert, but k is 0")]
    NoChoices,

    /// `K` exceeds the experts that a gate can choose from.
    #[error("every token chooses k = {k} experts, but its gate has only {experts} to choose from")]
    TooManyChoices { k: usize, experts: usize },

    /// The experts cannot be cut into equal subsets.
    #[error("{experts} experts cannot be cut into {subsets} equal subsets")]
    UnevenSubsets { experts: usize, subsets: usize },

    /// The experts that are not shared cannot be cut into equal subsets.
    #[error(
        "{experts} experts with an overlap of {overlap} leave {} that {members} members cannot \
         divide equally", experts - overlap
    )]
    UnevenOverlap { experts: usize, members: usize, overlap: usize },

    /// More shared experts than there are experts.
    #[error("an overlap of {overlap} experts is more than the {experts} there are")]
    OverlapTooLarge { experts: usize, overlap: usize },

    /// The experts named per modality are not all the experts.
    #[error("the modalities' experts {sizes:?} do not add up to {experts}")]
    ModalityExperts { sizes: Vec<usize>, experts: usize },

    /// A capacity factor that is not a positive number.
    #[error("the capacity factor must be a positive number, not {factor}")]
    BadCapacityFactor { factor: f64 },

    /// A capacity that is a multiple of zero.
    #[error("the capacity cannot be a multiple of 0; use 1 for no rounding up")]
    BadCapacityMultiple,

    /// No slot at all for any expert.
    #[error("{tokens} choices over {experts} experts at factor {factor} leave a capacity of 0")]
    ZeroCapacity { tokens: usize, experts: usize, factor: f64 },

    /// More slots than can be counted.
    #[error("{tokens} assignments at factor {factor} need more slots than can be counted")]
    CapacityTooLarge { tokens: usize, factor: f64 },

    /// A gate all of whose experts are pruned.
    #[error("every expert of a gate is pruned: {pruned:?}")]
    NothingLeft { pruned: Vec<usize> },

    /// Soft routing without slots.
    #[error("soft routing needs at least one slot per expert")]
    NoSlots,

    /// A subset that cannot serve.
    #[error("a subset of {subset} experts: it has at least one, and at most all {experts}")]
    BadSubset { subset: usize, experts: usize },

    /// Groups of size zero.
    #[error("a group must hold at least one {unit}")]
    EmptyGroups { unit: &'static str },

    /// Groups of different sizes where the router needs equal ones.
    #[error("{tokens} tokens do not fill groups of {group}; soft routing needs equal groups")]
    UnevenGroups { tokens: usize, group: usize },

    /// A number that must be positive and finite.
    #[error("{name} must be a positive number, not {value}")]
    NotPositive { name: &'static str, value: f64 },

    /// A number that must be finite and not negative.
    #[error("{name} must be zero or a positive number, not {value}")]
    Negative { name: &'static str, value: f64 },

    /// Two choices of the product that have no meaning together.
    #[error("{left} does not go with {right}")]
    Incompatible { left: &'static str, right: &'static str },

    /// A pruned expert that does not exist.
    #[error("expert {expert} cannot be pruned: there are only {experts}")]
    PrunedOutOfRange { expert: usize, experts: usize },

    /// No tokens.
    #[error("an empty batch cannot be routed")]
    EmptyBatch,

    /// Sizes that do not fit together.
    #[error("{what}: expected {expected:?}, found {found:?}")]
    Shape { what: &'static str, expected: Vec<usize>, found: Vec<usize> },

    /// More (token, expert) pairs than an index can count.
    #[error(
        "{tokens} tokens times {columns} gate columns are too many for one call; route them in parts"
    )]
    TooLarge { tokens: usize, columns: usize },

    /// A logit that is not a number.
    #[error("the logit of token {token} for expert {expert} is {value}")]
    NonFiniteLogit { token: usize, expert: usize, value: f32 },

    /// The router was told nothing about the tokens' modalities.
    #[error("{what} needs the modality of every token")]
    ModalityMissing { what: &'static str },

    /// A modality the router does not have.
    #[error("token {token} has modality {modality}, but the router knows only {modalities}")]
    UnknownModality { token: usize, modality: usize, modalities: usize },

    /// A token that decides for its image, past the end of the image.
    #[error("token {token} cannot decide for its image: an image has only {tokens} tokens")]
    NoSuchToken { token: usize, tokens: usize },
}
