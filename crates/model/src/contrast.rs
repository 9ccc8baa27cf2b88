//! Losses of images and texts that belong together.

use burn::tensor::{
    Tensor,
    activation::{log_sigmoid, log_softmax},
};

/// `[1]`: the contrastive loss of a batch, `½ (CE over rows + CE over columns)` of the scaled similarities
/// with the diagonal as targets (CLIP's; paper 002 §2.1).
///
/// - `images`, `texts`: `[B, E]`, of length 1
/// - `scale`: `[1]`
pub fn softmax_contrast(
    images: Tensor<2>,
    texts: Tensor<2>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
) -> Tensor<1> {
    let logits = similarities(images, texts, scale, bias);
    let [batch, _] = logits.dims();
    let diagonal = Tensor::<2>::eye(batch, &logits.device());
    let own = |logs: Tensor<2>| (logs * diagonal.clone()).sum() / batch as f64;
    let rows = own(log_softmax(logits.clone(), 1));
    let columns = own(log_softmax(logits, 0));
    (rows + columns) * -0.5
}

/// `[1]`: SigLIP's loss (arXiv:2303.15343): every pair by itself, `-log σ(±logit)` with + where image and
/// text belong together, summed over texts and averaged over images.
///
/// - `images`, `texts`: `[B, E]`, of length 1
/// - `scale`, `bias`: `[1]`
pub fn sigmoid_contrast(
    images: Tensor<2>,
    texts: Tensor<2>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
) -> Tensor<1> {
    let logits = similarities(images, texts, scale, bias);
    let [batch, _] = logits.dims();
    let signs = Tensor::<2>::eye(batch, &logits.device()) * 2.0 - 1.0;
    log_sigmoid(logits * signs).sum() / -(batch as f64)
}

/// `[B, B]`: scaled and shifted similarities, images in rows.
pub fn similarities(
    images: Tensor<2>,
    texts: Tensor<2>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
) -> Tensor<2> {
    let logits = images.matmul(texts.transpose()) * scale.unsqueeze::<2>();
    match bias {
        Some(bias) => logits + bias.unsqueeze::<2>(),
        None => logits,
    }
}
