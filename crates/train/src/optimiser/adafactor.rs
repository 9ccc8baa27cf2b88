//! Adafactor: the second moment of a matrix kept as its rows' and its columns' means (Shazeer and
//! Stern 2018).

use burn::tensor::Tensor;

use super::{Rule, Step, on_device, sums::rms};

const EPSILON: f32 = 1e-30;
/// Decay of the second moment is `1 - t^-0.8`.
const DECAY_POWER: f64 = -0.8;

pub(super) struct Adafactor {
    factor_from: usize,
    longest_decay: f64,
    momentum: Option<f32>,
    clipped_and_scaled: bool,
}

impl Adafactor {
    /// As `optax.adafactor`: updates have an RMS of at most 1 and are scaled by the parameter's.
    pub(super) fn optax(factor_from: usize) -> Self {
        Self { factor_from, longest_decay: 1.0, momentum: None, clipped_and_scaled: true }
    }

    /// As `big_vision.scale_by_adafactor`: a plain average of the updates.
    pub(super) fn big_vision(factor_from: usize, momentum: f64) -> Self {
        let momentum = Some(momentum as f32);
        Self { factor_from, longest_decay: 0.999, momentum, clipped_and_scaled: false }
    }

    /// The decay of the second moment at a step.
    fn decay_at(&self, number: u64) -> f32 {
        (1.0 - (number as f64).powf(DECAY_POWER)).min(self.longest_decay) as f32
    }
}

impl Rule for Adafactor {
    fn memory(&self, shape: &[usize]) -> Vec<usize> {
        let size = shape.iter().product();
        let mut sizes = match Factors::of(shape, self.factor_from) {
            Some(factors) => vec![factors.rows(), factors.columns()],
            None => vec![size],
        };
        sizes.extend(self.momentum.map(|_| size));
        sizes
    }

    /// Where neither the RMS of all is asked for nor means over the first axis.
    fn takes_parts(&self, shape: &[usize], parts: &[usize]) -> bool {
        let kept = |first: usize| {
            let shape: Vec<usize> =
                std::iter::once(first).chain(shape.iter().skip(1).copied()).collect();
            Factors::of(&shape, self.factor_from).map(|factors| (factors.row, factors.column))
        };
        let stride = shape.iter().skip(1).product::<usize>();
        let along = |(_, step): (usize, usize)| step == stride && shape.len() > 1;
        let whole = kept(shape.first().copied().unwrap_or(1));
        let crosses = whole.is_some_and(|(row, column)| along(row) || along(column));
        !self.clipped_and_scaled && !crosses && parts.iter().all(|first| kept(*first) == whole)
    }

    fn update(
        &self,
        step: Step<'_>,
        values: &mut [f32],
        gradient: &[f32],
        memory: &mut [Vec<f32>],
    ) {
        let decay = self.decay_at(step.number);
        let (mut update, trace) = match Factors::of(step.shape, self.factor_from) {
            Some(factors) => {
                let [rows, columns, trace @ ..] = memory else { return };
                (factors.scale(gradient, rows, columns, decay), trace)
            }
            None => {
                let [squares, trace @ ..] = memory else { return };
                let scale = |(g, v): (&f32, &mut f32)| {
                    *v = decay * *v + (1.0 - decay) * (g * g + EPSILON);
                    g / v.sqrt()
                };
                (gradient.iter().zip(squares).map(scale).collect::<Vec<_>>(), trace)
            }
        };
        let mut rate = step.rate;
        if self.clipped_and_scaled {
            rate *= rms(values).max(1e-3) / rms(&update).max(1.0);
        }
        if let (Some(momentum), [trace]) = (self.momentum, trace) {
            for (u, t) in update.iter_mut().zip(trace) {
                *t = momentum * *t + (1.0 - momentum) * *u;
                *u = *t;
            }
        }
        let (rate, decay) = (rate as f32, (step.rate * step.decay) as f32);
        values.iter_mut().zip(update).for_each(|(p, u)| *p -= rate * u + decay * *p);
    }

    fn update_on_device(
        &self,
        step: Step<'_>,
        values: Tensor<1>,
        gradient: Tensor<1>,
        memory: &mut [Tensor<1>],
    ) -> Tensor<1> {
        let decay = self.decay_at(step.number);
        let (mut update, trace) = match Axes::of(step.shape, self.factor_from) {
            Some(axes) => {
                let [rows, columns, trace @ ..] = memory else { unreachable!("two factors") };
                (axes.scale_on_device(step.shape, gradient, (rows, columns), decay), trace)
            }
            None => {
                let [squares, trace @ ..] = memory else { unreachable!("a second moment") };
                let square = gradient.clone().square() + EPSILON;
                *squares = squares.clone() * decay + square * (1.0 - decay);
                (gradient / squares.clone().sqrt(), trace)
            }
        };
        if self.clipped_and_scaled {
            let own = on_device::rms(values.clone()).clamp_min(1e-3);
            let other = on_device::rms(update.clone()).clamp_min(1.0);
            update = update * (own / other);
        }
        if let (Some(momentum), [trace]) = (self.momentum, trace) {
            *trace = trace.clone() * momentum + update * (1.0 - momentum);
            update = trace.clone();
        }
        let (rate, decay) = (step.rate as f32, (step.rate * step.decay) as f32);
        values.clone() - (update * rate + values * decay)
    }
}

/// The axes of a tensor that is seen as a stack of matrices over its two largest ones.
struct Axes {
    /// The second largest, whose means over the largest are the rows.
    row: usize,
    /// The largest.
    column: usize,
    /// Those of the stack, in order.
    stack: Vec<usize>,
}

/// No parameter has more axes.
const MOST_AXES: usize = 6;

impl Axes {
    fn of(shape: &[usize], smallest: usize) -> Option<Self> {
        let mut stack: Vec<usize> = (0..shape.len()).collect();
        stack.sort_by_key(|axis| shape[*axis]);
        let column = stack.pop()?;
        let row = stack.pop().filter(|row| shape[*row] >= smallest)?;
        stack.sort_unstable();
        Some(Self { row, column, stack })
    }

    /// [`Factors::scale`] on a device.
    fn scale_on_device(
        &self,
        shape: &[usize],
        gradient: Tensor<1>,
        (rows, columns): (&mut Tensor<1>, &mut Tensor<1>),
        decay: f32,
    ) -> Tensor<1> {
        // As many axes of length 1 in front as there are too few.
        let more = MOST_AXES - shape.len();
        let whole: [usize; MOST_AXES] =
            std::array::from_fn(|axis| if axis < more { 1 } else { shape[axis - more] });
        let own = self.stack.iter().chain([&self.row, &self.column]).map(|axis| axis + more);
        let order: Vec<usize> = (0..more).chain(own).collect();
        let order: [usize; MOST_AXES] = order.try_into().expect("every axis once");
        let back = order.map(|axis| axis as isize);
        let mut inverse = [0; MOST_AXES];
        order.iter().enumerate().for_each(|(place, axis)| inverse[*axis] = place as isize);
        let (height, width) = (shape[self.row], shape[self.column]);
        let stack = self.stack.iter().map(|axis| shape[*axis]).product::<usize>();

        let gradient = gradient.reshape(whole).permute(back).reshape([stack, height, width]);
        let squares = gradient.clone().square() + EPSILON;
        let follow = |means: &Tensor<1>, new: Tensor<3>| {
            means.clone() * decay + new.reshape([-1]) * (1.0 - decay)
        };
        *rows = follow(rows, squares.clone().mean_dim(2));
        *columns = follow(columns, squares.mean_dim(1));
        let of_rows: Tensor<3> = rows.clone().reshape([stack, height, 1]);
        let of_columns: Tensor<3> = columns.clone().reshape([stack, 1, width]);
        let row_factor = (of_rows.clone() / of_rows.mean_dim(1)).sqrt().recip();
        let update = gradient * row_factor * of_columns.sqrt().recip();
        update.reshape(order.map(|axis| whole[axis])).permute(inverse).reshape([-1])
    }
}

/// A tensor seen as a stack of matrices over its two largest axes.
struct Factors {
    /// Where each matrix of the stack begins.
    bases: Vec<usize>,
    /// Length and stride of the second largest axis, whose means over the largest are the rows.
    row: (usize, usize),
    /// Length and stride of the largest axis.
    column: (usize, usize),
}

impl Factors {
    fn of(shape: &[usize], smallest: usize) -> Option<Self> {
        let Axes { row, column, stack } = Axes::of(shape, smallest)?;
        let stride = |axis: usize| shape[axis + 1..].iter().product::<usize>();
        let mut bases = vec![0];
        for axis in stack {
            let step = stride(axis);
            let places =
                |base: &usize| (0..shape[axis]).map(|i| i * step).map(|i| i + *base).collect();
            bases = bases.iter().flat_map(|base| -> Vec<usize> { places(base) }).collect();
        }
        Some(Self {
            bases,
            row: (shape[row], stride(row)),
            column: (shape[column], stride(column)),
        })
    }

    fn rows(&self) -> usize {
        self.bases.len() * self.row.0
    }

    fn columns(&self) -> usize {
        self.bases.len() * self.column.0
    }

    /// Moves the means of the squares and returns the gradient over the root of their product.
    fn scale(
        &self,
        gradient: &[f32],
        rows: &mut [f32],
        columns: &mut [f32],
        decay: f32,
    ) -> Vec<f32> {
        let ((n_rows, row_stride), (n_columns, column_stride)) = (self.row, self.column);
        let mut update = vec![0.0; gradient.len()];
        let matrices = rows.chunks_exact_mut(n_rows).zip(columns.chunks_exact_mut(n_columns));
        for (base, (rows, columns)) in self.bases.iter().zip(matrices) {
            let mut row_sums = vec![0.0_f64; n_rows];
            let mut column_sums = vec![0.0_f64; n_columns];
            for (r, row_sum) in row_sums.iter_mut().enumerate() {
                for (c, column_sum) in column_sums.iter_mut().enumerate() {
                    let g = gradient[base + r * row_stride + c * column_stride];
                    let square = f64::from(g * g + EPSILON);
                    *row_sum += square;
                    *column_sum += square;
                }
            }
            let follow = |means: &mut [f32], sums: &[f64], count: usize| {
                for (mean, sum) in means.iter_mut().zip(sums) {
                    *mean = decay * *mean + (1.0 - decay) * (sum / count as f64) as f32;
                }
            };
            follow(rows, &row_sums, n_columns);
            follow(columns, &column_sums, n_rows);
            let whole = rows.iter().map(|x| f64::from(*x)).sum::<f64>() / n_rows as f64;
            let row_factor: Vec<f32> =
                rows.iter().map(|x| 1.0 / (x / whole as f32).sqrt()).collect();
            let column_factor: Vec<f32> = columns.iter().map(|x| 1.0 / x.sqrt()).collect();
            for (r, row) in row_factor.iter().enumerate() {
                for (c, column) in column_factor.iter().enumerate() {
                    let place = base + r * row_stride + c * column_stride;
                    update[place] = gradient[place] * row * column;
                }
            }
        }
        update
    }
}
