//! Golden models that the repository does not contain. Each is a re-quantised copy of `tales-q8_0` with one of
//! the mixes of tensor types in which models are published.

use crate::support;
use ragtag::Model;
use ragtag_graph::gguf::Writer;
use ragtag_kernels::TensorType::{self, Q4_0, Q4_K, Q6_K};
use ragtag_kernels::blocks::{dequantise, quantise};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Layers whose value and down projections are Q6_K in the mix Q4_K_M, with 12 layers.
const MORE_BITS: [&str; 6] = ["blk.0.", "blk.3.", "blk.6.", "blk.9.", "blk.10.", "blk.11."];

/// Returns the path of a golden model. Makes the file if the repository does not contain it.
#[track_caller]
pub fn model_path(name: &str) -> PathBuf {
    static MADE: LazyLock<Mutex<BTreeMap<String, PathBuf>>> = LazyLock::new(Mutex::default);
    let tensor_type = match name {
        "tales-q4_0" => Q4_0,
        "tales-q4_k_m" => Q4_K,
        _ => return test_support::model(name),
    };
    // A test that made no model has panicked with the reason. So does each later test.
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.entry(name.to_owned()).or_insert_with(|| make(name, tensor_type)).clone()
}

/// Makes a model and writes its file. Other processes see no file, or a complete one.
fn make(name: &str, most: TensorType) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{name}.gguf"));
    let bytes = requantised(most);
    if !std::fs::read(&path).is_ok_and(|before| before == bytes) {
        let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
        file.write_all(&bytes).unwrap();
        file.persist(&path).unwrap();
    }
    let golden = support::read_json(&test_support::golden(&format!("{name}.golden.json")));
    assert_eq!(
        golden["blake3"],
        blake3::hash(&bytes).to_hex().as_str(),
        "{} is not the file of the golden data: an encoder changed; run tests/support/golden/tales.py",
        path.display()
    );
    path
}

/// Returns the bytes of a copy of `tales-q8_0`, most of whose matrices have the type `most`.
fn requantised(most: TensorType) -> Vec<u8> {
    let source = Model::open(test_support::model("tales-q8_0")).unwrap();
    let (weights, mut header, mut data) = (source.graph().weights(), Writer::new(), Vec::new());
    support::put_metadata(&mut header, &source);
    for tensor in weights.tensors() {
        let mut bytes = weights.bytes(tensor).unwrap().to_vec();
        let tensor_type = type_of(&tensor.name, tensor.tensor_type, most);
        if tensor_type != tensor.tensor_type {
            let mut values = vec![0_f32; tensor.shape.iter().product::<u64>() as usize];
            dequantise(tensor.tensor_type, &bytes, &mut values).unwrap();
            bytes = vec![0; tensor_type.bytes(values.len() as u64).unwrap() as usize];
            quantise(tensor_type, &values, &mut bytes).unwrap();
        }
        header.tensor(&tensor.name, tensor_type, &tensor.shape, bytes.len() as u64);
        data.extend_from_slice(&bytes);
        data.resize(data.len() + header.padding(bytes.len() as u64) as usize, 0);
    }
    let mut file = [header.header(), data].concat();
    let at = support::metadata_value(&file, "general.file_type");
    support::patch(&mut file, at, &most.gguf_file_type().to_le_bytes());
    file
}

/// Returns the type of a tensor in a mix whose matrices are mostly `most`.
fn type_of(tensor: &str, before: TensorType, most: TensorType) -> TensorType {
    let with_more_bits = most == Q4_K
        && MORE_BITS.iter().any(|layer| tensor.starts_with(layer))
        && ["attn_v", "ffn_down"].iter().any(|matrix| tensor.contains(matrix));
    match before {
        TensorType::F32 => TensorType::F32,
        _ if tensor == "token_embd.weight" || with_more_bits => Q6_K,
        _ => most,
    }
}

#[test]
fn made_models_have_the_mixes_of_published_ones() {
    for (name, expected) in [
        ("tales-q4_0", [(Q4_0, 84), (Q4_K, 0), (Q6_K, 1), (TensorType::F32, 25)]),
        ("tales-q4_k_m", [(Q4_0, 0), (Q4_K, 72), (Q6_K, 13), (TensorType::F32, 25)]),
    ] {
        let model = Model::open(model_path(name)).unwrap();
        let tensors = model.graph().weights().tensors();
        let count = |wanted| tensors.iter().filter(|tensor| tensor.tensor_type == wanted).count();
        assert_eq!(expected.map(|(tensor_type, _)| (tensor_type, count(tensor_type))), expected, "{name}");
    }
}
