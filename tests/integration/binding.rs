//! Tests devices whose maximum binding size is smaller than a weight matrix. Ragtag stores such a matrix in
//! several parts, and the logits must be bit-identical to those with the whole matrix.

use crate::support::{MODELS, Setup, block_on, devices, engine_on, golden, model_path, within};
use ragtag::Model;
use ragtag::cli::exit_code;
use ragtag_kernels::Activations;

/// Maximum binding size in bytes. It is smaller than most matrices in any layout, and larger than all other
/// tensors and caches.
const MAX_BYTES: u64 = 400 << 10;

#[test]
fn matrices_in_parts_give_identical_bits() {
    within(600, || {
        for name in MODELS {
            let path = model_path(name);
            let (model, golden) = (Model::open(path).unwrap(), golden(name));
            for activations in Activations::ALL {
                let setup = Setup { activations, chunk: 16, ..Setup::default() };
                let logits = |devices: &ragtag::Devices| {
                    let engine = engine_on(&model, &setup, devices).unwrap();
                    block_on(engine.session().logits(&golden.cases[0].prompt_ids)).unwrap()
                };
                let whole = logits(&devices(&setup));
                let parts = logits(&devices(&setup).binding_at_most(MAX_BYTES));
                assert_eq!(whole, parts, "{name} {activations:?}");
            }
        }
    });
}

#[test]
fn refuses_with_sizes_what_cannot_be_split_into_parts() {
    let model = Model::open(model_path("tales-bitnet-tq2_0")).unwrap();
    let setup = Setup::default();
    let error = engine_on(&model, &setup, &devices(&setup).binding_at_most(40 << 10)).unwrap_err();
    let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let words = "a buffer of keys or values takes 64.0 KiB, and the device allows 40.0 KiB in one piece";
    assert!(text.contains(words), "{text}");
    assert_eq!(exit_code(&error), 6);
}
