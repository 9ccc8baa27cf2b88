//! Tensors as earlier versions wrote them.

use crate::parameters::Parameter;

/// What held a parameter's values before: BatchEnsemble's members had their biases `[H]` in common, and
/// have `[M, H]` of their own now. The values found there are those of every member.
pub(super) fn before(Parameter { name, shape }: &Parameter) -> Option<Parameter> {
    let [_, width] = shape[..] else { return None };
    let (inside, bias) = name.rsplit_once('.')?;
    let shared = inside.ends_with(".feed_forward") && ["up_bias", "down_bias"].contains(&bias);
    shared.then(|| Parameter { name: format!("{inside}.shared.{bias}"), shape: vec![width] })
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, collections::BTreeMap};

    use burn::tensor::Device;
    use omma_base::{
        Seed,
        files::tensors::{Floats, bytes_of, sealed, write_tensors},
    };

    use super::*;
    use crate::{
        checkpoint::{Checksum, NOTE, Note, WEIGHTS, load},
        config::{apply_settings, preset},
        parameters::parameter_values,
    };

    /// A tensor as it is written.
    struct Stored(Parameter, Vec<f32>);

    impl Floats for Stored {
        fn name(&self) -> &str {
            &self.0.name
        }
        fn shape(&self) -> Cow<'_, [usize]> {
            Cow::Borrowed(&self.0.shape)
        }
        fn values(&self) -> Cow<'_, [f32]> {
            Cow::Borrowed(&self.1)
        }
    }

    #[test]
    fn members_that_shared_their_biases_have_a_copy_each() {
        let small = ["width=8", "mlp=12", "heads=2", "depth=2"];
        let settings = [&["batch_ensemble.members=3", "batch_ensemble.placement=1"], &small[..]];
        let config = apply_settings(&preset("vit-tiny").unwrap(), &settings.concat()).unwrap();
        let device = Device::flex();
        let model = config.init(Seed::new(1), &device).unwrap();
        let stored: Vec<Stored> = parameter_values(&model)
            .into_iter()
            .map(|own| match before(&own.parameter) {
                Some(shared) => {
                    let first = own.read()[..shared.shape[0]].to_vec();
                    Stored(shared, first)
                }
                None => Stored(own.parameter.clone(), own.read()),
            })
            .collect();
        let sum = |Stored(parameter, values): &Stored| {
            let mut checksum = Checksum::new(parameter);
            checksum.add(&bytes_of(values));
            (parameter.name.clone(), checksum.finish())
        };
        let checksums: BTreeMap<String, String> = stored.iter().map(sum).collect();
        let (config, config_checksum) = sealed(&config);
        let note = Note { format: 2, config, config_checksum, checksums };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(WEIGHTS);
        write_tensors(&path, (NOTE, serde_json::to_string(&note).unwrap()), &stored).unwrap();

        let read = parameter_values(&load(folder.path(), &device).unwrap());
        let mut biases = 0;
        for (own, Stored(parameter, values)) in read.iter().zip(&stored) {
            let copies = if own.parameter == *parameter { 1 } else { 3 };
            biases += usize::from(copies == 3);
            assert_eq!(own.read(), values.repeat(copies), "{}", own.parameter.name);
        }
        assert_eq!(biases, 2, "of the one block with fast weights");
    }
}
