//! The bundled models, for this crate's tests.

use crate::{MemorySource, Model, ModelFile, Source};
use std::sync::Arc;

fn open(name: &'static str, bytes: &'static [u8]) -> Model {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(name, bytes));
    Model::new(ModelFile::open(vec![source]).unwrap()).unwrap()
}

pub(crate) fn bitnet() -> Model {
    open("bitnet", include_bytes!("../../examples/models/tales-bitnet-tq2_0.gguf"))
}

pub(crate) fn llama() -> Model {
    open("llama", include_bytes!("../../examples/models/tales-q8_0.gguf"))
}
