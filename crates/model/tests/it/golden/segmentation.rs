//! A class for every pixel: the linear head, interpolation, ignored pixels, gradients.

use burn::tensor::{Device, Tensor};
use omma_base::{Resolution, Seed};
use omma_golden::Case;
use omma_model::{
    EncoderConfig, Head, ImageConfig, ModelConfig, Position, pixel_cross_entropy, upsampled,
    with_values,
};

pub(crate) fn check(case: &Case) {
    let (grid, side) = (case.size("grid"), case.size("pixels"));
    let config = ModelConfig {
        image: ImageConfig {
            resolution: Resolution::square(side),
            patch: side / grid,
            class_token: false,
            position: Position::None,
            ..ImageConfig::default()
        },
        encoder: EncoderConfig { width: case.size("D"), heads: 1, depth: 1, ..Default::default() },
        ..ModelConfig::default()
    };
    let device = Device::flex().autodiff();
    let model = config.into_segmenter(case.size("classes")).init(Seed::new(0), &device).unwrap();
    let model = with_values(model, |parameter| {
        Ok(match parameter.name.as_str() {
            "head.patches.weight" => Some(transposed(case).try_into_vec_as().unwrap()),
            "head.patches.bias" => Some(case.tensor::<1>("param/bias").try_into_vec_as().unwrap()),
            _ => None,
        })
    })
    .unwrap();
    let Head::Segmenter(head) = &model.head else { panic!("{:?}", model.head) };

    let tokens: Tensor<3> = case.tensor("input/x");
    let (_, predictions) = head.forward(tokens.clone(), 1);
    let [images, patches, _] = tokens.dims();
    let logits = predictions.logits.reshape([images, patches, case.size("classes")]);
    let pixels = upsampled(logits, (grid, grid), Resolution::square(side));
    let as_printed = pixels.clone().swap_dims(2, 3); // [B, classes, H, W]
    case.expect("output/upsampled", &as_printed);
    let predicted = as_printed.argmax(1).reshape([images, side, side]);
    let predicted: Vec<i32> = predicted.try_into_vec_as().unwrap();
    case.expect_ints("output/predicted", predicted);

    let labels = case.ints("input/labels");
    let places = (0..images).flat_map(|image| {
        (0..side).flat_map(move |x| (0..side).map(move |y| (image * side + y) * side + x))
    });
    let ignored = case.size("ignore");
    let labels = places.map(|place| Some(labels[place] as usize).filter(|label| *label != ignored));
    let loss = pixel_cross_entropy(pixels, labels);
    case.expect("output/loss", &loss);
    let gradients = loss.backward();
    case.expect("grad/input/x", &tokens.grad(&gradients).unwrap());
    let weight = head.patches.weight.val().grad(&gradients).unwrap();
    case.expect("grad/param/weight", &weight.transpose());
    case.expect("grad/param/bias", &head.patches.bias.val().grad(&gradients).unwrap());
}

/// The weight as `[inputs, outputs]`.
fn transposed(case: &Case) -> Tensor<2> {
    case.tensor::<2>("param/weight").transpose()
}
