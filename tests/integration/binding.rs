//! Devices that bind less at once than a matrix of weights takes: matrices are kept in parts, and nothing else changes.

use crate::support::{MODELS, Setup, block_on, devices, engine_on, golden, model_path, within};
use ragtag::Model;
use ragtag_kernels::Activations;

/// Less than most matrices of the models take, in any form, and more than their tensors and caches.
const MOST_BYTES: u64 = 400 << 10;

#[test]
fn matrices_in_parts_give_the_same_bits() {
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
                let parts = logits(&devices(&setup).binding_at_most(MOST_BYTES));
                assert_eq!(whole, parts, "{name} {activations:?}");
            }
        }
    });
}

#[test]
fn what_cannot_be_in_parts_is_named() {
    let model = Model::open(model_path("tales-bitnet-tq2_0")).unwrap();
    let setup = Setup::default();
    for (most_bytes, what) in [(64, "rows take more than 64 bytes"), (40 << 10, "key or value buffer")] {
        let error = engine_on(&model, &setup, &devices(&setup).binding_at_most(most_bytes)).unwrap_err();
        let said = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
        let said: Vec<String> = said.map(ToString::to_string).collect();
        assert!(said.join(": ").contains(what), "{said:?} does not say {what:?}");
    }
}
