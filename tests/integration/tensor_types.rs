//! Compares models in every quantised tensor type with models that contain the same weights in F32.

use crate::support::{self, Setup, relative_error};
use ragtag::Model;
use ragtag_graph::gguf::Writer;
use ragtag_kernels::blocks::dequantise;
use ragtag_kernels::{Activations, NumericsClass, TensorType};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

/// Returns `values` random weights as quantised blocks. Their scales are chosen so that the weights have mean
/// zero and a realistic magnitude.
fn blocks(random: &mut StdRng, tensor_type: TensorType, values: u64, gain: f32) -> Vec<u8> {
    let mut bytes = vec![0; tensor_type.bytes(values).unwrap() as usize];
    random.fill_bytes(&mut bytes);
    for block in bytes.chunks_exact_mut(tensor_type.block_bytes()) {
        let sign = if random.random() { 1.0 } else { -1.0 };
        let like = sign * gain * random.random_range(0.0375..0.0625);
        tensor_type.scales().iter().for_each(|scale| scale.put_typical(block, like));
    }
    bytes
}

/// Returns two models with equal weights and the shape of the model `like`. One model has matrices of type
/// `tensor_type`, the other has matrices in F32.
fn pair(like: &Model, tensor_type: TensorType) -> [Model; 2] {
    let mut random = StdRng::seed_from_u64(tensor_type.gguf_id().into());
    let mut files = [TensorType::F32; 2].map(|_| (Writer::new(), Vec::new()));
    files.iter_mut().for_each(|(header, _)| support::put_metadata(header, like));
    for tensor in like.graph().weights().tensors() {
        let values: u64 = tensor.shape.iter().product();
        let mut plain = vec![1_f32; values as usize]; // kept for norms
        let mut contents = [TensorType::F32; 2].map(|t| (t, Vec::new()));
        if tensor.shape.len() > 1 {
            // Layers of random weights amplify small differences, so each layer adds little to the embedding.
            let gain = if tensor.name.starts_with("token_embd") { 128.0 } else { 1.0 };
            let blocks = blocks(&mut random, tensor_type, values, gain);
            dequantise(tensor_type, &blocks, &mut plain).unwrap();
            contents[0] = (tensor_type, blocks);
        }
        let plain: Vec<u8> = plain.iter().flat_map(|v| v.to_le_bytes()).collect();
        for ((header, data), (tensor_type, bytes)) in files.iter_mut().zip(contents) {
            let bytes = if tensor_type == TensorType::F32 { &plain } else { &bytes };
            header.tensor(&tensor.name, tensor_type, &tensor.shape, bytes.len() as u64);
            data.extend_from_slice(bytes);
            data.resize(data.len() + header.padding(bytes.len() as u64) as usize, 0);
        }
    }
    files.map(|(header, data)| Model::from_bytes("random", [header.header(), data].concat()).unwrap())
}

fn logits(model: &Model, activations: Activations) -> Vec<f32> {
    let engine = support::engine(model, &Setup { activations, ..Default::default() });
    support::block_on(engine.session().logits(&[1, 17, 300, 2, 299, 45])).unwrap()
}

#[test]
fn quantised_models_give_the_logits_of_their_dequantised_weights() {
    let path = support::model_path("tales-bitnet-tq2_0");
    let like = Model::open(path).unwrap();
    let types = TensorType::in_gguf().filter(|t| t.block_values() > 1);
    for tensor_type in types {
        let [quantised, plain] = pair(&like, tensor_type);
        let expected = logits(&plain, Activations::F32);
        for (activations, class) in
            [(Activations::F32, NumericsClass::Exact), (Activations::Int8, NumericsClass::Fast)]
        {
            let error = relative_error(&logits(&quantised, activations), &expected);
            println!("{tensor_type} {activations:?}: relative error {error:.2e}");
            assert!(error <= class.tolerance(), "{tensor_type} {activations:?}: {error}");
        }
    }
}

/// Number of I2_S in GGUF files.
const I2_S: u32 = 36;

/// Returns ternary weights in I2_S: 128 weights in 32 bytes, and their scale at the end.
fn i2_s(values: &[f32], scale: f32) -> Vec<u8> {
    let mut bytes = vec![0u8; values.len() / 4];
    for (at, value) in values.iter().enumerate() {
        let code = if *value == 0.0 { 1 } else { u8::from(*value > 0.0) * 2 };
        bytes[at / 128 * 32 + at % 32] |= code << (6 - at % 128 / 32 * 2);
    }
    bytes.extend_from_slice(&scale.to_le_bytes());
    bytes.resize(bytes.len() + 28, 0);
    bytes
}

/// Checks that ternary weights keep their values if f16 cannot hold their scales, and take no more memory.
#[test]
fn ternary_weights_can_have_any_scale() {
    let like = Model::open(support::model_path("tales-bitnet-tq2_0")).unwrap();
    let weights = like.graph().weights();
    let mut files = [(); 2].map(|()| (Writer::new(), Vec::new()));
    files.iter_mut().for_each(|(header, _)| support::put_metadata(header, &like));
    let mut packed = Vec::new();
    for (number, tensor) in weights.tensors().iter().enumerate() {
        let bytes = weights.bytes(tensor).unwrap();
        let mut plain = vec![0_f32; tensor.shape.iter().product::<u64>() as usize];
        dequantise(tensor.tensor_type, &bytes, &mut plain).unwrap();
        let mut contents = [bytes.to_vec(), bytes.to_vec()];
        let mut types = [tensor.tensor_type; 2];
        if tensor.tensor_type == TensorType::TQ2_0 {
            let scale =
                plain.iter().fold(0_f32, |most, v| most.max(v.abs())) * (1.0003 + number as f32 * 1e-5);
            plain.iter_mut().for_each(|v| *v = if *v == 0.0 { 0.0 } else { v.signum() * scale });
            contents = [i2_s(&plain, scale), plain.iter().flat_map(|v| v.to_le_bytes()).collect()];
            types[1] = TensorType::F32;
            packed.push(&tensor.name);
        }
        for (((header, data), tensor_type), bytes) in files.iter_mut().zip(types).zip(contents) {
            header.tensor(&tensor.name, tensor_type, &tensor.shape, bytes.len() as u64);
            data.extend_from_slice(&bytes);
            data.resize(data.len() + header.padding(bytes.len() as u64) as usize, 0);
        }
    }
    let [(ternary, data), plain] = files;
    let mut header = ternary.header();
    for name in packed {
        // The number of dimensions and two dimensions are between the name and the type.
        let at = header.windows(name.len()).rposition(|bytes| bytes == name.as_bytes()).unwrap();
        header[at + name.len() + 20..][..4].copy_from_slice(&I2_S.to_le_bytes());
    }
    let open = |header: Vec<u8>, data| Model::from_bytes("scaled", [header, data].concat()).unwrap();
    let (ternary, plain) = (open(header, data), open(plain.0.header(), plain.1));
    let of_type = |model: &Model| {
        let tensors = model.graph().weights().tensors().iter();
        tensors.filter(|tensor| tensor.tensor_type == TensorType::TQ2_0).count()
    };
    assert_eq!(of_type(&ternary), of_type(&like));
    let expected = logits(&plain, Activations::F32);
    for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int8, 2e-2)] {
        let error = relative_error(&logits(&ternary, activations), &expected);
        println!("ternary {activations:?}: relative error {error:.2e}");
        assert!(error <= bound, "{activations:?}: {error}");
    }
}
