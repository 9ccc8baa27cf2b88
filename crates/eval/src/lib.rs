//! How good predictions are, and how much they know about that.
//!
//! | place | room for |
//! |---|---|
//! | `metrics/` | numbers from predictions: one file per question |
//! | `inputs.rs`, `system.rs` | what models take; what is judged: one model, or several as one |
//! | `stream.rs` | a data set through a system, batch by batch |
//! | `tally.rs` | a system's predictions, summed as they come: of the average, of members, how these differ |
//! | `summary.rs` | the scores, how far they may be off, and the bins behind one of them, as records |
//! | `outcomes/` | what is kept of every image, for intervals and paired comparisons |
//! | `digits.rs` | as many digits as mean something |
//! | `protocols/` | one file per question that is asked of a system, with its record and its part of the page |
//! | `confusion.rs`, `examples.rs` | which classes are taken for which; single predictions, to be shown |
//! | `gallery/` | pictures for a page: predictions, the worst corruption, what experts take |
//! | `routing/` | what the experts of a model did |
//! | `atlas/` | where the tokens of a data set go, what that says of the experts, what follows |
//! | `probe/` | a linear classifier in closed form |
//! | `prompts.rs`, `reader.rs` | names of classes in sentences; images and texts as vectors of one space |
//! | `soup.rs` | which models are averaged |
//! | `pruning/` | which experts a model can do without, and what it scores then |
//! | `predict.rs` | single images |
//! | `predictions/` | every prediction of a test in a file |
//! | `segment/` | a class for every pixel of pictures of any size |
//! | `compare/` | several evaluations beside each other: gains, fronts, grids |
//! | `report/` | pages and figures |
//!
//! Scores are `f64` arithmetic over plain slices, summed as predictions come. An evaluation keeps 28 bytes of
//! every test image, as many more for a temperature, and a number of every image where out-of-distribution
//! images are told, and the subsets of experts that serve some image where these are asked for; nothing else grows with
//! the data.

#![forbid(unsafe_code)]

pub mod atlas;
pub mod compare;
pub mod digits;
pub mod metrics;
pub mod probe;
pub mod pruning;
pub mod report;
pub mod routing;

mod confusion;
mod error;
mod examples;
mod gallery;
mod inputs;
mod outcomes;
mod predict;
mod predictions;
mod prompts;
mod protocols;
mod reader;
mod segment;
mod soup;
mod stream;
mod summary;
mod system;
mod tally;
mod together;

pub use confusion::{ConfusedPair, Confusion, ConfusionRecord};
pub use error::{EvalError, Result};
pub use examples::{Example, Examples};
pub use gallery::{Experts, Gallery};
pub use inputs::{images_of, pixels_for};
pub use outcomes::{IMAGES_FILE, ImageOutcome, Outcomes};
pub use predict::{Guess, Prediction, predict, segment};
pub use predictions::PredictionFormat;
pub use prompts::{Templates, are_numbers, spoken};
pub use protocols::{
    Evaluation, ImageResults, Protocol,
    contrast::{CaptionRecord, Contrast, ContrastProtocol, ContrastRecord, contrast},
    evaluate,
    fewshot::{FewShot, FewShotProtocol, FewShotSet, Shots, few_shot},
    linear::linear_baseline,
    ood::{OodPositive, OodProtocol, OodRecord, OodScore},
    probe::{FittedProbe, ProbeKind, ProbeProtocol, ProbeTrial, fit_probe},
    segmentation::{SegmentationProtocol, SegmentationRecord, SegmentationTest, segmentation},
    shift::{Corrupted, Shift, ShiftOrigin, ShiftProtocol, ShiftRecord, Shifted},
    subsets::{
        ExhaustiveRecord, LayerSubsets, SubsetRecord, SubsetSize, SubsetSizeError, SubsetsProtocol,
        SubsetsRecord,
    },
    temperature::TemperatureRecord,
    test::{Test, TestProtocol, TestRecord},
    transfer::{
        FewShotRecord, TransferProtocol, mean_accuracy, table as few_shot_table, weighted_accuracy,
    },
};
pub use reader::{EmbeddedData, Reader};
pub use segment::{PixelMap, Windows, colour, nearby_baseline, overlaid, painted};
pub use soup::{GreedySoup, SoupScore, SoupStep, greedy_soup};
pub use stream::{Images, Watcher};
pub use summary::{BinKind, Binning, ReliabilityBin, Summary, SummaryIntervals};
pub use system::{JudgedClasses, Outputs, PromptRecord, System, SystemCost, SystemKind};
pub use tally::DiversityRecord;
