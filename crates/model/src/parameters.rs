//! The parameters of a model by name.
//!
//! A name is the path of a parameter through the modules, joined with dots; the kind of a block's
//! feed-forward network or of a head is not part of it, because the configuration says that, and neither
//! are the encoder and the head as such ([`NAMES`]). `blocks.3.feed_forward.experts.up` is an example.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Tensor, TensorData},
};
use omma_kernels::PackedWeights;

use crate::{
    error::{ModelError, Result},
    vit::VisionTransformer,
};

/// Beginnings of paths through the modules, and what files call them: a name says what a parameter is,
/// however modules are put together.
const NAMES: &[(&str, &str)] = &[
    ("encoder.", ""),
    ("text.encoder.", "text."),
    ("head.text_pool.", "text.pool."),
    ("head.norm.", "norm."),
    ("head.pool.", "pool."),
    ("head.representation.", "representation."),
    ("head.linear.", "head."),
];

/// The way to a parameter through the modules.
#[derive(Default)]
struct Path(Vec<String>);

impl Path {
    fn enter(&mut self, name: &str, container: &str) {
        let variant = container.starts_with("Enum");
        self.0.push(if variant { String::new() } else { name.to_owned() });
    }

    fn exit(&mut self) {
        self.0.pop();
    }

    fn name(&self) -> String {
        let parts = self.0.iter().filter(|part| !part.is_empty());
        let path = parts.map(String::as_str).collect::<Vec<_>>().join(".");
        let found = NAMES.iter().find_map(|(inside, outside)| {
            path.strip_prefix(inside).map(|rest| format!("{outside}{rest}"))
        });
        found.unwrap_or(path)
    }
}

/// A parameter of a model, which may not have been drawn yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its path through the modules.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// Names and shapes of all parameters, in the order of the modules; no value is computed.
pub fn parameters(model: &VisionTransformer) -> Vec<Parameter> {
    struct List(Path, Vec<Parameter>);
    impl ModuleVisitor for List {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let shape = param.lazy_shape().to_vec();
            self.1.push(Parameter { name: self.0.name(), shape });
        }
    }
    let mut list = List(Path::default(), Vec::new());
    model.visit(&mut list);
    list.1
}

/// A parameter and a handle to its values, which are copied when they are asked for.
pub struct ParameterValues {
    /// Which one.
    pub parameter: Parameter,
    read: Box<dyn Fn() -> Vec<f32>>,
}

impl ParameterValues {
    /// Values that somebody else has.
    pub fn new(parameter: Parameter, read: impl Fn() -> Vec<f32> + 'static) -> Self {
        Self { parameter, read: Box::new(read) }
    }

    /// The values, row by row.
    pub fn read(&self) -> Vec<f32> {
        (self.read)()
    }
}

/// All parameters with their values, in the order of the modules.
pub fn parameter_values(model: &VisionTransformer) -> Vec<ParameterValues> {
    struct Collect(Path, Vec<ParameterValues>);
    impl ModuleVisitor for Collect {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val().detach();
            let parameter = Parameter { name: self.0.name(), shape: value.dims().to_vec() };
            let read = move || value.clone().try_into_vec_as().expect("parameters are floats");
            self.1.push(ParameterValues { parameter, read: Box::new(read) });
        }
    }
    let mut all = Collect(Path::default(), Vec::new());
    model.visit(&mut all);
    all.1
}

/// The weights of models that only predict, to be packed for the machine once.
pub fn packed_weights(models: &[VisionTransformer]) -> PackedWeights {
    struct Add(PackedWeights);
    impl ModuleVisitor for Add {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.add(&param.val());
        }
    }
    let mut all = Add(PackedWeights::default());
    models.iter().for_each(|model| model.visit(&mut all));
    all.0
}

/// Gives every parameter the values that `values` has for it, or leaves it its own where there are none.
/// Those of a fresh model are not drawn before they are used, so memory holds each parameter once.
pub fn with_values(
    model: VisionTransformer,
    values: impl FnMut(&Parameter) -> Result<Option<Vec<f32>>>,
) -> Result<VisionTransformer> {
    struct Fill<F>(Path, F, Option<ModelError>);
    impl<F: FnMut(&Parameter) -> Result<Option<Vec<f32>>>> ModuleMapper for Fill<F> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if self.2.is_some() {
                return param;
            }
            let parameter = Parameter { name: self.0.name(), shape: param.lazy_shape().to_vec() };
            match (self.1)(&parameter) {
                Ok(None) => param,
                Ok(Some(values)) => {
                    let device = param.lazy_device();
                    let data = TensorData::new(values, parameter.shape.as_slice());
                    let id = param.id;
                    param.transform_for_load(Tensor::from_data(data, &device), id)
                }
                Err(error) => {
                    self.2 = Some(error);
                    param
                }
            }
        }
    }
    let mut fill = Fill(Path::default(), values, None);
    let model = model.map(&mut fill);
    match fill.2 {
        Some(error) => Err(error),
        None => Ok(model),
    }
}

/// The model with some of its parameters left out of every graph of gradients, on whatever device it goes.
pub fn frozen(
    model: VisionTransformer,
    is_frozen: impl FnMut(&Parameter) -> bool,
) -> VisionTransformer {
    struct Freeze<F>(Path, F);
    impl<F: FnMut(&Parameter) -> bool> ModuleMapper for Freeze<F> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let parameter = Parameter { name: self.0.name(), shape: param.lazy_shape().to_vec() };
            match (self.1)(&parameter) {
                true => param.set_require_grad(false),
                false => param,
            }
        }
    }
    model.map(&mut Freeze(Path::default(), is_frozen))
}
