//! How tensors of another layout become one parameter of ours.

use std::fmt;

use crate::{
    error::{ModelError, Result},
    parameters::Parameter,
    tensors::{TensorSource, count},
};

/// What happens to tensors on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// The same numbers in the same order, in our shape.
    Same,
    /// `[out, in]` to `[in, out]`.
    Transposed,
    /// A convolution `[out, channels, rows, columns]` to `[rows · columns · channels, out]`.
    Convolution,
    /// Matrices `[out, in]`, transposed and put beside each other.
    TransposedBeside,
    /// Matrices `[in, …]` put beside each other; vectors, one behind the other.
    Beside,
    /// The first vector of a row of vectors is added to the only vector of the first tensor.
    PlusFirst,
    /// The first tensor's vectors plus those of the second that belong to them, behind the first.
    PlusNext,
    /// Without the first `n` vectors.
    Without(usize),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("as it is"),
            Self::Transposed => f.write_str("transposed"),
            Self::Convolution => f.write_str("convolution as a matrix"),
            Self::TransposedBeside => f.write_str("transposed, side by side"),
            Self::Beside => f.write_str("side by side"),
            Self::PlusFirst => f.write_str("plus its position"),
            Self::PlusNext => f.write_str("plus their positions"),
            Self::Without(n) => write!(f, "without the first {n}"),
        }
    }
}

/// Tensors, and what happens to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Transform {
    pub(super) how: How,
    pub(super) tensors: Vec<String>,
}

impl Transform {
    /// The values of a parameter; fails where the tensors do not have its size.
    pub(super) fn run(
        &self,
        parameter: &Parameter,
        source: &mut dyn TensorSource,
    ) -> Result<Vec<f32>> {
        let mut shapes = Vec::new();
        for tensor in &self.tensors {
            let info = source.tensors().get(tensor).ok_or_else(|| ModelError::MissingTensor {
                path: source.path().into(),
                tensor: tensor.clone(),
            })?;
            shapes.push(info.shape.clone());
        }
        let misfit = |source: &dyn TensorSource| ModelError::TensorShape {
            path: source.path().into(),
            tensor: self.tensors.join(" + "),
            expected: parameter.shape.clone(),
            found: shapes.concat(),
        };
        // Nothing is read that cannot become the parameter.
        let count: usize = parameter.shape.iter().product();
        if self.count(&shapes, parameter) != Some(count) {
            return Err(misfit(source));
        }
        let values = self.tensors.iter().map(|tensor| source.read(tensor));
        let values = values.collect::<Result<Vec<Vec<f32>>>>()?;
        let result = self.combine(&shapes, values, parameter);
        result.filter(|values| values.len() == count).ok_or_else(|| misfit(source))
    }

    /// How many numbers come out, if they can be counted.
    fn count(&self, shapes: &[Vec<usize>], parameter: &Parameter) -> Option<usize> {
        match self.how {
            How::PlusFirst | How::PlusNext => count(shapes.first()?),
            How::Without(n) => {
                let left_out = n.checked_mul(*parameter.shape.last()?)?;
                count(shapes.first()?)?.checked_sub(left_out)
            }
            _ => shapes.iter().try_fold(0usize, |sum, shape| sum.checked_add(count(shape)?)),
        }
    }

    fn combine(
        &self,
        shapes: &[Vec<usize>],
        mut values: Vec<Vec<f32>>,
        parameter: &Parameter,
    ) -> Option<Vec<f32>> {
        let width = *parameter.shape.last()?;
        match self.how {
            How::Same => Some(values.swap_remove(0)),
            How::Transposed => {
                let [rows, columns] = shapes[0].as_slice().try_into().ok()?;
                Some(transposed(&values[0], rows, columns))
            }
            How::Convolution => {
                let [outputs, channels, height, across] = shapes[0].as_slice().try_into().ok()?;
                let mut matrix = vec![0.0; values[0].len()];
                let area = height * across;
                for output in 0..outputs {
                    for channel in 0..channels {
                        for pixel in 0..area {
                            let from = (output * channels + channel) * area + pixel;
                            matrix[(pixel * channels + channel) * outputs + output] =
                                values[0][from];
                        }
                    }
                }
                Some(matrix)
            }
            How::TransposedBeside => {
                let parts = values.iter().zip(shapes).map(|(values, shape)| {
                    let [rows, columns] = shape.as_slice().try_into().ok()?;
                    Some((transposed(values, rows, columns), rows))
                });
                Some(beside(&parts.collect::<Option<Vec<_>>>()?))
            }
            How::Beside => {
                let rows = match parameter.shape.as_slice() {
                    [rows, _] => *rows,
                    _ => 1,
                };
                let parts = values.into_iter().map(|values| {
                    let columns = values.len() / rows.max(1);
                    (values, columns)
                });
                Some(beside(&parts.collect::<Vec<_>>()))
            }
            How::PlusFirst => {
                let positions = values.pop()?;
                let mut token = values.pop()?;
                token.iter_mut().zip(positions.get(..width)?).for_each(|(t, p)| *t += p);
                Some(token)
            }
            How::PlusNext => {
                let positions = values.pop()?;
                let mut tokens = values.pop()?;
                let own = positions.get(width..width + tokens.len())?;
                tokens.iter_mut().zip(own).for_each(|(t, p)| *t += p);
                Some(tokens)
            }
            How::Without(n) => Some(values[0].get(n * width..)?.to_vec()),
        }
    }
}

fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut result = vec![0.0; values.len()];
    // In blocks, so that reading and writing both stay in the cache.
    const BLOCK: usize = 32;
    for row_block in (0..rows).step_by(BLOCK) {
        for column_block in (0..columns).step_by(BLOCK) {
            for row in row_block..(row_block + BLOCK).min(rows) {
                for column in column_block..(column_block + BLOCK).min(columns) {
                    result[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    result
}

/// Matrices with the same rows, side by side; each with its columns.
fn beside(parts: &[(Vec<f32>, usize)]) -> Vec<f32> {
    let (first, columns) = &parts[0];
    let rows = first.len() / (*columns).max(1);
    let mut result = Vec::with_capacity(parts.iter().map(|(values, _)| values.len()).sum());
    for row in 0..rows {
        for (values, columns) in parts {
            if let Some(part) = values.get(row * columns..(row + 1) * columns) {
                result.extend_from_slice(part);
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(how: How, shape: &[usize], tensors: &[(&[usize], &[f32])]) -> Vec<f32> {
        let transform = Transform { how, tensors: Vec::new() };
        let shapes: Vec<Vec<usize>> = tensors.iter().map(|(shape, _)| shape.to_vec()).collect();
        let values = tensors.iter().map(|(_, values)| values.to_vec()).collect();
        let parameter = Parameter { name: String::new(), shape: shape.to_vec() };
        transform.combine(&shapes, values, &parameter).unwrap()
    }

    #[test]
    fn matrices_turn_and_stand_side_by_side() {
        let a: (&[usize], &[f32]) = (&[2, 3], &[0., 1., 2., 3., 4., 5.]);
        assert_eq!(run(How::Transposed, &[3, 2], &[a]), [0., 3., 1., 4., 2., 5.]);
        let [x, y]: [(&[usize], &[f32]); 2] = [(&[1, 2], &[1., 2.]), (&[1, 2], &[3., 4.])];
        assert_eq!(run(How::TransposedBeside, &[2, 2], &[x, y]), [1., 3., 2., 4.]);
        assert_eq!(
            run(How::Beside, &[2, 2], &[(&[2, 1], &[1., 2.]), (&[2, 1], &[3., 4.])]),
            [1., 3., 2., 4.]
        );
        assert_eq!(
            run(How::Beside, &[4], &[(&[2], &[1., 2.]), (&[2], &[3., 4.])]),
            [1., 2., 3., 4.]
        );
    }

    #[test]
    fn pixels_of_a_convolution_come_before_its_channels() {
        // One output, two channels, 1 × 2 pixels: [channel, pixel] to [pixel, channel].
        assert_eq!(
            run(How::Convolution, &[4, 1], &[(&[1, 2, 1, 2], &[1., 2., 3., 4.])]),
            [1., 3., 2., 4.]
        );
    }

    #[test]
    fn positions_are_added_to_the_tokens_they_belong_to() {
        let positions: (&[usize], &[f32]) = (&[1, 3, 1], &[10., 20., 30.]);
        assert_eq!(run(How::PlusFirst, &[1], &[(&[1], &[1.]), positions]), [11.]);
        assert_eq!(run(How::PlusNext, &[1, 1], &[(&[1, 1], &[2.]), positions]), [22.]);
        assert_eq!(run(How::Without(2), &[1, 1], &[positions]), [30.]);
    }
}
