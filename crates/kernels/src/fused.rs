//! How a fused operation enters Burn.
//!
//! A fused operation is a forward and a backward function on CPU arrays. [`apply`] runs it on
//! tensors of the Flex backend, registers its backward pass where a gradient is wanted, and declines
//! anything that lives elsewhere, for which the caller runs the portable twin.

use std::fmt::Debug;

use burn::{
    backend::{
        Autodiff, DType, Flex, TensorData, TensorMetadata,
        autodiff::{
            checkpoint::{
                base::Checkpointer,
                strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing},
            },
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        flex::FlexTensor,
        tensor::FloatTensor,
    },
    tensor::Tensor,
};

/// A CPU tensor with its place in a graph.
type TrackedTensor = FloatTensor<Autodiff<Flex>>;

/// A dense array of `f32` in row-major order.
#[derive(Debug, Clone)]
pub(crate) struct Array(FlexTensor);

impl Array {
    pub(crate) fn new(values: Vec<f32>, shape: &[usize]) -> Self {
        Self(FlexTensor::from_data(TensorData::new(values, shape.to_vec())))
    }

    pub(crate) fn values(&self) -> &[f32] {
        self.0.storage()
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        self.0.shape().to_vec()
    }

    fn from_primitive(tensor: FlexTensor) -> Self {
        Self(tensor.to_contiguous())
    }
}

/// An operation with `N` inputs and one output.
pub(crate) trait FusedOp<const N: usize>: Clone + Debug + Send + 'static {
    /// What the backward pass needs.
    type Saved: Clone + Debug + Send + 'static;

    /// The output, and what the backward pass needs if there will be one.
    fn forward(&self, inputs: [Array; N], keep: bool) -> (Array, Option<Self::Saved>);

    /// The gradients of the inputs that want one.
    fn backward(
        &self,
        saved: Self::Saved,
        gradient: Array,
        wanted: [bool; N],
    ) -> [Option<Array>; N];
}

/// An input of a fused operation: a CPU tensor with or without a graph.
pub(crate) enum Input {
    Plain(FlexTensor),
    Tracked(TrackedTensor, Strategy),
}

/// The two kinds of graphs that Burn knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strategy {
    Keep,
    Checkpoint,
}

impl Input {
    /// Nothing if the tensor is not an `f32` tensor of the Flex backend.
    pub(crate) fn new<const R: usize>(tensor: &Tensor<R>) -> Option<Self> {
        if tensor.dtype() != DType::F32 {
            return None;
        }
        if !tensor.is_autodiff() {
            return tensor.clone().try_into_primitive::<Flex>().ok().map(Self::Plain);
        }
        let kept = tensor.clone().try_into_primitive::<Autodiff<Flex, NoCheckpointing>>();
        if let Ok(tensor) = kept {
            return Some(Self::Tracked(tensor, Strategy::Keep));
        }
        let recomputed =
            tensor.clone().try_into_primitive::<Autodiff<Flex, BalancedCheckpointing>>();
        recomputed.ok().map(|tensor| Self::Tracked(tensor, Strategy::Checkpoint))
    }
}

/// Runs `op` if all its inputs are there, that is, if all tensors are of the Flex backend.
pub(crate) fn apply<Op: FusedOp<N>, const N: usize, const R: usize>(
    op: &Op,
    inputs: [Option<Input>; N],
) -> Option<Tensor<R>> {
    if inputs.iter().any(Option::is_none) {
        return None;
    }
    let inputs = inputs.map(|input| input.expect("all inputs are there"));
    let strategy = inputs.iter().find_map(|input| match input {
        Input::Tracked(_, strategy) => Some(*strategy),
        Input::Plain(_) => None,
    });
    Some(match strategy {
        None => {
            let inputs = inputs.map(|input| match input {
                Input::Plain(tensor) => Array::from_primitive(tensor),
                Input::Tracked(..) => unreachable!("no input has a graph"),
            });
            Tensor::from_primitive::<Flex>(op.forward(inputs, false).0.0)
        }
        Some(Strategy::Keep) => {
            let output = tracked::<Op, NoCheckpointing, N>(op, inputs);
            Tensor::from_primitive::<Autodiff<Flex, NoCheckpointing>>(output)
        }
        Some(Strategy::Checkpoint) => {
            let output = tracked::<Op, BalancedCheckpointing, N>(op, inputs);
            Tensor::from_primitive::<Autodiff<Flex, BalancedCheckpointing>>(output)
        }
    })
}

fn tracked<Op: FusedOp<N>, C: CheckpointStrategy, const N: usize>(
    op: &Op,
    inputs: [Input; N],
) -> TrackedTensor {
    let inputs = inputs.map(|input| match input {
        Input::Plain(tensor) => TrackedTensor::new(tensor),
        Input::Tracked(tensor, _) => tensor,
    });
    let nodes = inputs.each_ref().map(TrackedTensor::node);
    let prepared = FusedBackward(op.clone()).prepare::<C>(nodes).compute_bound().stateful();
    let inputs = inputs.map(|input| Array::from_primitive(input.into_primitive()));
    match prepared {
        OpsKind::Tracked(prepared) => {
            let (output, saved) = op.forward(inputs, true);
            prepared.finish(saved.expect("the forward pass keeps what it is asked to"), output.0)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(op.forward(inputs, false).0.0),
    }
}

/// The backward pass of a fused operation as Burn runs it.
#[derive(Debug)]
struct FusedBackward<Op>(Op);

impl<Op: FusedOp<N>, const N: usize> Backward<Flex, N> for FusedBackward<Op> {
    type State = Op::Saved;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = Array::from_primitive(grads.consume::<Flex>(&ops.node));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let gradients = self.0.backward(ops.state, gradient, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<Flex>(parent.id, gradient.0);
            }
        }
    }
}
