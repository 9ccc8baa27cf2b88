//! One sentence under every figure of an evaluation: how to read it.

/// By the figure's file name without an ending; empty for a name that is not known.
pub(super) fn caption(file: &str) -> &'static str {
    match file {
        "reliability" => {
            "Each point is a bin of predictions: how sure they were, and how often they were right."
        }
        "reliability-scaled" => {
            "The closer a line is to the diagonal, the more confidence can be believed."
        }
        "confidence" => "How many of the predictions were made with how much confidence.",
        "classes" => {
            "How often images of a class are taken for another; the dashed line is the mean of all images."
        }
        "confusion" => {
            "Rows are what images show, columns what they are taken for; all that is off the diagonal is a mistake."
        }
        "pixel-classes" => {
            "Of all pixels that are of a class or taken for it, those that are both; the dashed line is the mean."
        }
        "pixel-confusion" => {
            "Rows are what pixels are of, columns what they are taken for, as shares of the row."
        }
        "pixel-reliability" => {
            "Each point is a bin of pixels: how sure the model was, and how often it was right."
        }
        "members-error" | "members-nll" => {
            "Bars are members alone, the dashed line is the mean of their probabilities."
        }
        "shift-corruptions" => {
            "How often corrupted images are taken for another class; the dashed line is the test as it is."
        }
        "recall" => "How often what a query looks for is among the first that it finds.",
        "ood-roc" => "The more a curve bends to the upper left, the better the two are told apart.",
        "pruning-accuracy" | "pruning-nll" => {
            "At the right end is the whole model; bars are the standard deviation over several draws."
        }
        "pruning-coverage" => {
            "The earlier a line comes to the top, the more experts nobody would miss."
        }
        _ if file.starts_with("shift-") => {
            "From the images as they are (0) to the worst severity (5): the mean of all corruptions, and those \
             with the highest and the lowest value."
        }
        _ if file.starts_with("ood-scores-") => {
            "The less the two histograms overlap, the better images are told apart."
        }
        _ if file.starts_with("experts-") => {
            "Each row says to which experts a class's tokens go, in per cent; rows that differ are experts that \
             have learned something about classes."
        }
        _ => "",
    }
}
