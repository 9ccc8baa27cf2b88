//! A model's parameters on the host, where optimisers work.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Gradients, Tensor},
};
use omma_model::{Parameter, VisionTransformer, parameter_values, with_values};

use crate::{error::Result, freezing::Freezing};

/// The parameters of a model that learn, in the order of its modules.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Names and shapes.
    pub parameters: Vec<Parameter>,
    /// Values, row by row.
    pub values: Vec<Vec<f32>>,
}

impl Weights {
    /// A copy of those of a model of which all learn.
    pub fn of(model: &VisionTransformer) -> Self {
        Self::chosen(model, |_| true)
    }

    /// A copy of those of a model that learn.
    pub(crate) fn learning(model: &VisionTransformer, freezing: &Freezing) -> Self {
        Self::chosen(model, |parameter| freezing.learns(parameter))
    }

    fn chosen(model: &VisionTransformer, wanted: impl Fn(&Parameter) -> bool) -> Self {
        let (parameters, values) = parameter_values(model)
            .into_iter()
            .filter(|value| wanted(&value.parameter))
            .map(|value| (value.parameter.clone(), value.read()))
            .unzip();
        Self { parameters, values }
    }

    /// The model with these parameters.
    pub(crate) fn put(&self, model: VisionTransformer) -> Result<VisionTransformer> {
        let mut values = self.parameters.iter().zip(&self.values).peekable();
        Ok(with_values(model, |parameter| {
            let own = values.next_if(|(own, _)| own.name == parameter.name);
            Ok(own.map(|(_, values)| values.clone()))
        })?)
    }

    /// How many numbers they are.
    pub(crate) fn count(&self) -> usize {
        self.values.iter().map(Vec::len).sum()
    }
}

/// Gradients of all parameters that learn, in the order of the modules; zeros for those without one.
pub(crate) fn gradients(model: &VisionTransformer, gradients: &Gradients) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    each_gradient(model, |_, of| all.push(of.read(gradients)));
    all
}

/// A parameter that may have a gradient.
pub(super) struct GradientOf<'a>(&'a dyn Fn(&Gradients) -> Vec<f32>);

impl GradientOf<'_> {
    /// The gradient; zeros where there is none.
    pub(super) fn read(&self, gradients: &Gradients) -> Vec<f32> {
        (self.0)(gradients)
    }
}

/// Calls `each` with all parameters that learn and their places, in the order of the modules.
pub(super) fn each_gradient(model: &VisionTransformer, each: impl FnMut(usize, GradientOf<'_>)) {
    struct Visit<F>(usize, F);
    impl<F: FnMut(usize, GradientOf<'_>)> ModuleVisitor for Visit<F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if !value.is_require_grad() {
                return;
            }
            let read = |gradients: &Gradients| match value.grad(gradients) {
                Some(gradient) => gradient.try_into_vec_as().expect("gradients are floats"),
                None => vec![0.0; value.shape().num_elements()],
            };
            (self.1)(self.0, GradientOf(&read));
            self.0 += 1;
        }
    }
    model.visit(&mut Visit(0, each));
}
