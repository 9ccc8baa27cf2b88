//! Photos that are found by their vectors.

use serde::Serialize;

/// Photos and their vectors, of length 1.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Photos {
    /// `[N]`: what they are called.
    pub names: Vec<String>,
    /// `[N, E]`
    pub vectors: Vec<f32>,
}

/// A photo that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Hit<'a> {
    pub(crate) image: &'a str,
    /// The cosine of its vector and the query's.
    pub(crate) score: f32,
}

impl Photos {
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Fails on vectors that a model does not make.
    pub(crate) fn check(&self, embedding: Option<usize>) -> Result<(), String> {
        match embedding {
            None => {
                Err("the model reads no text, so that nothing can be searched with it".to_owned())
            }
            Some(width) if self.vectors.len() != width * self.names.len() => {
                Err("the photos' vectors are another model's".to_owned())
            }
            Some(_) => Ok(()),
        }
    }

    /// Those most like a vector, the best first; of equal ones, the first.
    pub(crate) fn nearest(&self, query: &[f32], most: usize) -> Vec<Hit<'_>> {
        let rows = self.vectors.chunks_exact(query.len().max(1)).zip(&self.names);
        let score = |row: &[f32]| row.iter().zip(query).map(|(a, b)| a * b).sum();
        let mut hits: Vec<Hit> =
            rows.map(|(row, image)| Hit { image, score: score(row) }).collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score));
        hits.truncate(most);
        hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first_and_vectors_must_fit() {
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let photos = Photos { names, vectors: vec![1.0, 0.0, 0.0, 1.0, 0.6, 0.8] };
        let found = photos.nearest(&[0.0, 1.0], 2);
        assert_eq!(found.iter().map(|hit| hit.image).collect::<Vec<_>>(), ["b", "c"]);
        assert!((found[1].score - 0.8).abs() < 1e-6);
        assert!(photos.check(Some(2)).is_ok());
        assert!(photos.check(Some(3)).is_err() && photos.check(None).is_err());
    }
}
