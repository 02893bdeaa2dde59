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
    for tensor_type in TensorType::in_gguf().filter(|t| t.block_values() > 1) {
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
