//! One golden case: its arrays, its settings, and which of them have been compared.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

/// One case.
#[derive(Debug)]
pub struct Case {
    name: String,
    folder: PathBuf,
    json: Value,
    arrays: BTreeMap<String, Array>,
    compared: RefCell<BTreeSet<String>>,
}

#[derive(Debug)]
struct Array {
    shape: Vec<usize>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Floats(Vec<f32>),
    Ints(Vec<i32>),
}

impl Case {
    /// Reads `NAME.json` and `NAME.safetensors`.
    pub fn load(json: &Path) -> Self {
        let name = json.file_stem().unwrap().to_string_lossy().into_owned();
        let folder = json.parent().unwrap().to_owned();
        let bytes = fs::read(json.with_extension("safetensors")).unwrap();
        let json = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
        let arrays = SafeTensors::deserialize(&bytes).unwrap();
        let arrays = arrays.iter().map(|(name, view)| {
            let words = view.data().chunks_exact(4).map(|word| word.try_into().unwrap());
            let values = match view.dtype() {
                Dtype::F32 => Values::Floats(words.map(f32::from_le_bytes).collect()),
                Dtype::I32 => Values::Ints(words.map(i32::from_le_bytes).collect()),
                other => panic!("{name}: arrays are f32 or i32, not {other:?}"),
            };
            (name.to_owned(), Array { shape: view.shape().to_vec(), values })
        });
        let arrays = arrays.collect();
        Self { name, folder, json, arrays, compared: RefCell::default() }
    }

    /// A file beside the case's own.
    pub fn beside(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// The case's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Everything the case says about itself.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// The names of all arrays.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.keys().map(String::as_str)
    }

    /// Whether there is an array of this name.
    pub fn has(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// A setting, which must be there.
    pub fn config(&self, key: &str) -> &Value {
        let value = &self.json["config"][key];
        assert!(!value.is_null(), "{}: no setting {key}", self.name);
        value
    }

    /// A setting that is a size.
    pub fn size(&self, key: &str) -> usize {
        self.config(key).as_u64().unwrap_or_else(|| panic!("{key} is a size")) as usize
    }

    /// An array of floats.
    pub fn floats(&self, name: &str) -> &[f32] {
        match &self.array(name).values {
            Values::Floats(values) => values,
            Values::Ints(_) => panic!("{name} holds integers"),
        }
    }

    /// The auxiliary losses that the case names, as a router's configuration writes them; importance alone
    /// where it names none, as whole models of vmoe do.
    pub fn losses(&self) -> Value {
        let Some(weights) = self.json()["config"]["loss_weights"].as_object() else {
            return json!([{"loss": "importance", "weight": 1.0}]);
        };
        let term = |(name, weight): (&String, &Value)| {
            // GShard's loss is called by what it balances here.
            let loss = if name == "gshard" { "balance" } else { name };
            json!({"loss": loss, "weight": weight})
        };
        weights.iter().map(term).collect()
    }

    /// An array of integers.
    pub fn ints(&self, name: &str) -> &[i32] {
        match &self.array(name).values {
            Values::Ints(values) => values,
            Values::Floats(_) => panic!("{name} holds floats"),
        }
    }

    /// The shape of an array.
    pub fn shape(&self, name: &str) -> &[usize] {
        &self.array(name).shape
    }

    fn array(&self, name: &str) -> &Array {
        self.arrays.get(name).unwrap_or_else(|| panic!("no array {name}"))
    }

    /// An input, with gradients. Its last axis stays; the others become one.
    pub fn matrix(&self, name: &str) -> Tensor<2> {
        let width = *self.shape(name).last().unwrap();
        self.reshaped(name, [self.floats(name).len() / width, width])
    }

    /// An input, with gradients.
    pub fn tensor<const R: usize>(&self, name: &str) -> Tensor<R> {
        self.reshaped(name, self.shape(name).to_vec().try_into().unwrap())
    }

    /// An input in another shape, with gradients.
    pub fn reshaped<const R: usize>(&self, name: &str, shape: [usize; R]) -> Tensor<R> {
        let device = Device::flex().autodiff();
        let data = TensorData::new(self.floats(name).to_vec(), shape);
        Tensor::from_data(data, &device).require_grad()
    }

    /// Compares at the case's tolerance, `|a - b| ≤ atol + rtol · |b|`.
    pub fn expect<const R: usize>(&self, name: &str, found: &Tensor<R>) {
        self.expect_values(name, &values(found));
    }

    /// Compares at the case's tolerance.
    pub fn expect_values(&self, name: &str, found: &[f32]) {
        let tolerance = |key: &str| self.json["tolerance"][key].as_f64().unwrap();
        let (rtol, atol) = (tolerance("rtol"), tolerance("atol"));
        let expected = self.floats(name);
        assert_eq!(found.len(), expected.len(), "{name}: size");
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(*found) - f64::from(*expected)).abs();
            let allowed = atol + rtol * f64::from(expected.abs());
            assert!(error <= allowed, "{name}[{i}] is {found}, expected {expected}");
        }
        self.compared.borrow_mut().insert(name.to_owned());
    }

    /// Compares integers, which are always exact.
    pub fn expect_ints(&self, name: &str, found: impl IntoIterator<Item = i32>) {
        let found: Vec<i32> = found.into_iter().collect();
        assert!(found == self.ints(name), "{name}: {found:?}, expected {:?}", self.ints(name));
        self.compared.borrow_mut().insert(name.to_owned());
    }

    /// Compares a dispatch tensor, stored as integers where it is 0 or 1.
    pub fn expect_dispatch(&self, name: &str, found: &[f32]) {
        match self.array(name).values {
            Values::Floats(_) => self.expect_values(name, found),
            Values::Ints(_) => self.expect_ints(name, found.iter().map(|value| *value as i32)),
        }
    }

    /// Leaves a result to another crate's test.
    pub fn leave(&self, name: &str) {
        self.compared.borrow_mut().insert(name.to_owned());
    }

    /// Every result of the case must have been compared, or left to another test.
    pub fn finish(&self) {
        let results =
            self.names().filter(|name| !name.starts_with("input/") && !name.starts_with("param/"));
        let compared = self.compared.borrow();
        let missed: Vec<&str> = results.filter(|name| !compared.contains(*name)).collect();
        assert!(missed.is_empty(), "never compared: {missed:?}");
        assert!(!compared.is_empty(), "nothing was compared");
    }
}

/// The values of a tensor.
pub fn values<const R: usize>(tensor: &Tensor<R>) -> Vec<f32> {
    tensor.try_to_vec_as().unwrap()
}
