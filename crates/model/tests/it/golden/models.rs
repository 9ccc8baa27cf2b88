//! Whole models: V-MoE and E³ of vmoe, vision transformers of timm.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Gradients, Int, Tensor, TensorData},
};
use omma_base::{Resolution, Seed};
use omma_golden::Case;
use omma_model::{
    EncoderConfig, FloatType, ImageConfig, Mode, ModelConfig, MoeConfig, Output, Result, Stage,
    TensorInfo, TensorSource, VisionTransformer,
    import::{Family, import, import_from},
    parameter_values,
};
use omma_routing::{Allocation, Capacity, Grouping, Order, RouterConfig, TokenChoice};

/// The arrays of a case whose names begin with a word, as if they were a checkpoint.
struct Arrays<'a> {
    case: &'a Case,
    prefix: &'static str,
    path: PathBuf,
    tensors: BTreeMap<String, TensorInfo>,
}

impl<'a> Arrays<'a> {
    fn new(case: &'a Case, prefix: &'static str) -> Self {
        let info =
            |name: &str| TensorInfo { shape: case.shape(name).to_vec(), dtype: Ok(FloatType::F32) };
        let names = case.names().filter_map(|name| Some((name, name.strip_prefix(prefix)?)));
        let tensors = names.map(|(name, short)| (short.to_owned(), info(name))).collect();
        Self { case, prefix, path: case.name().into(), tensors }
    }
}

impl TensorSource for Arrays<'_> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        Ok(self.case.floats(&format!("{}{name}", self.prefix)).to_vec())
    }
}

fn config(case: &Case, arrays: &Arrays) -> ModelConfig {
    let resolution = Resolution::new(case.size("height"), case.size("width"));
    let config = Family::Vmoe.config(arrays, Some(resolution)).unwrap();
    let moe = config.encoder.moe.unwrap();
    assert_eq!(moe.router.experts, case.size("E"));
    let capacity = Capacity {
        multiple_of: case.size("mult"),
        ..Capacity::factor(case.config("cf").as_f64().unwrap())
    };
    let router = RouterConfig {
        allocation: Allocation::TokenChoice(TokenChoice {
            capacity: Some(capacity),
            order: Order::MaxGate,
            ..TokenChoice::dropless(case.size("K"))
        }),
        grouping: Grouping::Images(case.size("seqs_per_group")),
        noise: 0.0,
        losses: serde_json::from_value(case.losses()).unwrap(),
        ..moe.router
    };
    ModelConfig {
        image: ImageConfig { resolution, ..config.image },
        encoder: EncoderConfig { moe: Some(MoeConfig { router, ..moe }), ..config.encoder },
        ..config
    }
}

fn images(case: &Case) -> Tensor<4> {
    case.tensor::<4>("input/images").detach()
}

/// `[M, B, n]` as rows `b · M + m`.
fn rows(by_member: Tensor<3>) -> Tensor<2> {
    let [members, batch, width] = by_member.dims();
    by_member.swap_dims(0, 1).reshape([members * batch, width])
}

fn run(case: &Case, model: &VisionTransformer, images: Tensor<4>, mode: &Mode) -> Output {
    let observe = |stage: Stage, tokens: &Tensor<3>| {
        let name = match stage {
            Stage::Embedded => "output/embedded".to_owned(),
            Stage::Block(index) => format!("output/block_{index}"),
            Stage::Encoded if case.has("output/features") => "output/features".to_owned(),
            Stage::Encoded => "output/encoded".to_owned(),
        };
        if case.has(&name) {
            case.expect(&name, tokens);
        }
    };
    let output = model.forward_observed(images, mode, observe).unwrap();
    case.expect("output/logits", &rows(output.predictions.logits.clone()));
    for name in ["output/pre_logits", "output/pooled"] {
        if case.has(name) {
            case.expect(name, &rows(output.features.clone()));
        }
    }
    output
}

/// timm's state dictionary through the importer.
pub(crate) fn timm(case: &Case) {
    let file = case.config("weights_file").as_str().unwrap();
    let size = format!("resolution={}", case.config("img_size"));
    let heads = format!("heads={}", case.size("num_heads"));
    let imported = import(&case.beside(file), &[heads, size], &Device::flex()).unwrap();
    let images = images(case).permute([0, 2, 3, 1]);
    run(case, &imported.model, images.inner(), &Mode::Inference);
}

/// A V-MoE or an E³ model in the names of vmoe, with gradients where the case has them.
pub(crate) fn vmoe(case: &Case) {
    let mut arrays = Arrays::new(case, "param/");
    let config = config(case, &arrays);
    let device = Device::flex().autodiff();
    let model = import_from(&mut arrays, Family::Vmoe, &config, &device).unwrap().model;
    let output = run(case, &model, images(case), &Mode::Training(Seed::new(0)));

    let per_group = output.routings.iter().map(|(_, routing)| routing.losses.per_group().unwrap());
    let auxiliary = per_group.reduce(|sum, layer| sum + layer).unwrap();
    case.expect("output/auxiliary_loss", &auxiliary);
    for (block, routing) in &output.routings {
        let name = format!("output/importance_loss_{block}");
        if case.has(&name) {
            case.expect(&name, &routing.losses.per_group().unwrap());
        }
    }
    if !case.has("input/labels") {
        return;
    }
    let labels = case.ints("input/labels").to_vec();
    let batch = labels.len();
    let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [batch]), &device);
    if case.has("output/ensemble_log_probs") {
        let logs = output.predictions.log_probabilities();
        case.expect("output/ensemble_log_probs", &logs);
        case.expect("output/eval_xent", &-logs.gather(1, labels.clone().unsqueeze_dim(1)));
        let losses = output.predictions.member_losses(labels.clone());
        case.expect("output/train_xent", &losses.swap_dims(0, 1));
    }
    let cross_entropy = output.predictions.cross_entropy(labels);
    if case.has("output/cross_entropy") {
        case.expect("output/cross_entropy", &cross_entropy);
    }
    let objective = cross_entropy + output.auxiliary_loss().unwrap() * 0.01;
    case.expect("output/objective", &objective);
    expect_gradients(case, &model, &config, &objective.backward());
}

/// The case's gradients, imported like parameters, are what our gradients must be.
fn expect_gradients(
    case: &Case,
    model: &VisionTransformer,
    config: &ModelConfig,
    gradients: &Gradients,
) {
    struct Collect<'a>(&'a Gradients, Vec<Vec<f32>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(self.0).expect("every parameter has a gradient");
            self.1.push(gradient.try_into_vec_as().unwrap());
        }
    }
    let mut found = Collect(gradients, Vec::new());
    model.visit(&mut found);
    let mut arrays = Arrays::new(case, "grad/param/");
    let expected = import_from(&mut arrays, Family::Vmoe, config, &Device::flex()).unwrap().model;
    let expected = parameter_values(&expected);
    assert_eq!(found.1.len(), expected.len());
    let tolerance = |key: &str| case.json()["tolerance"][key].as_f64().unwrap() as f32;
    let (rtol, atol) = (tolerance("rtol"), tolerance("atol"));
    for (found, expected) in found.1.iter().zip(&expected) {
        for (i, (found, expected_value)) in found.iter().zip(expected.read()).enumerate() {
            let name = &expected.parameter.name;
            assert!(
                (found - expected_value).abs() <= atol + rtol * expected_value.abs(),
                "gradient of {name}[{i}] is {found}, expected {expected_value}"
            );
        }
    }
    let names: Vec<String> = case.names().map(str::to_owned).collect();
    names.iter().filter(|name| name.starts_with("grad/param/")).for_each(|name| case.leave(name));
}
