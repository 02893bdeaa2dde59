//! Tests matrices whose rows are no multiples of 32 values, as the ecosystem's small models have. The expected logits are
//! those of `transformers` in float64, which `tests/support/golden/row_lengths.py` wrote. The weights follow from a
//! formula.

use crate::gpus::{LAVAPIPE, POCL, gpus_and};
use crate::support::{Setup, block_on, engine, read_json, relative_error};
use ragtag::{Model, WireType};
use ragtag_kernels::{Activations, NumericsClass, TensorType};
use serde_json::{Value, json};
use tempfile::TempDir;

const TYPES: [TensorType; 3] = [TensorType::F32, TensorType::F16, TensorType::BF16];

struct Golden {
    name: String,
    of_model: Value,
    ids: Vec<u32>,
    logits: Vec<f32>,
}

fn golden() -> Vec<Golden> {
    let all = read_json(&test_support::golden("row_lengths.json"));
    let ids: Vec<u32> = serde_json::from_value(all["ids"].clone()).unwrap();
    let golden = |(name, of_model): (&String, &Value)| Golden {
        name: name.clone(),
        of_model: of_model.clone(),
        ids: ids.clone(),
        logits: serde_json::from_value(of_model["logits"].clone()).unwrap(),
    };
    all["models"].as_object().unwrap().iter().map(golden).collect()
}

/// Returns weight number `at` of a tensor. All types hold it exactly.
fn weight(tensor: usize, at: usize, is_norm: bool) -> f32 {
    let value = (((at + 1) * 7919 + (tensor + 1) * 104_729) % 65_537 % 257) as i32 - 128;
    if is_norm { 1.0 + value.div_euclid(2) as f32 / 128.0 } else { value as f32 / 256.0 }
}

impl Golden {
    /// Writes the model with weights of this type, and opens it.
    fn open(&self, tensor_type: TensorType) -> (TempDir, Model) {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (tensor, (name, shape)) in self.of_model["shapes"].as_object().unwrap().iter().enumerate() {
            let sizes: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
            let is_norm = sizes.len() == 1 && name.ends_with("norm.weight");
            let all: Vec<_> = (0..sizes.iter().product()).map(|at| weight(tensor, at, is_norm)).collect();
            let mut bytes = vec![0; all.len() * tensor_type.block_bytes()];
            ragtag_kernels::blocks::quantise(tensor_type, &all, &mut bytes).unwrap();
            let ends = [data.len(), data.len() + bytes.len()];
            let dtype = tensor_type.to_string();
            header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": ends }));
            data.extend(bytes);
        }
        let folder = tempfile::tempdir().unwrap();
        let header = Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        std::fs::write(folder.path().join("config.json"), self.of_model["config"].to_string()).unwrap();
        let model = Model::open(folder.path()).unwrap();
        (folder, model)
    }

    fn check(&self, model: &Model, setup: &Setup<'_>, what: &str) {
        let logits = block_on(engine(model, setup).session().logits(&self.ids)).unwrap();
        let error = relative_error(&logits[logits.len() - self.logits.len()..], &self.logits);
        let is_exact = setup.activations == Activations::F32 && setup.wire_type == WireType::F32;
        let class = if is_exact { NumericsClass::Exact } else { NumericsClass::Fast };
        println!("{}, {what}: relative error {error:.2e}", self.name);
        assert!(error <= class.tolerance(), "{}, {what}: {error}", self.name);
    }
}

#[test]
fn logits_of_rows_of_any_length_are_those_of_transformers() {
    for golden in golden() {
        for tensor_type in TYPES {
            let (_folder, model) = golden.open(tensor_type);
            let last = model.graph().segment_count() - 1;
            let split = format!("0-1=cpu:0,2-{last}=cpu:1");
            let exact = Setup { context: 64, ..Setup::default() };
            golden.check(&model, &exact, &format!("{tensor_type}"));
            let cut =
                Setup { chunk: 7, split: Some(&split), cpu_devices: 2, context: 64, ..Setup::default() };
            golden.check(&model, &cut, &format!("{tensor_type}, two devices"));
            let narrow = Setup { wire_type: WireType::F16, activations: Activations::Int8, ..cut };
            golden.check(&model, &narrow, &format!("{tensor_type}, f16 rows between two devices"));
            let half = Setup { activations: Activations::F16, context: 64, ..Setup::default() };
            golden.check(&model, &half, &format!("{tensor_type}, f16 activations"));
        }
    }
}

#[test]
fn rows_of_any_length_run_on_every_device() {
    for adapter in gpus_and(&[POCL, LAVAPIPE]) {
        let label = adapter.label();
        for (golden, tensor_type) in golden().into_iter().zip(TYPES.into_iter().cycle()) {
            let (_folder, model) = golden.open(tensor_type);
            let setup = Setup { devices: &label, context: 64, chunk: 9, ..Setup::default() };
            golden.check(&model, &setup, &format!("{tensor_type} on {label}"));
        }
    }
}
