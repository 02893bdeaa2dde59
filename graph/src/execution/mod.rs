//! Facts of the execution of compiled stages: the division of streamed segments among arenas, the lengths of
//! prefill chunks, the use of the KV cache, and the limits of a prefill stage. The planner counts on them, and the scheduler acts on
//! them.

mod chunks;
mod kv;
mod prefill;
mod streaming;

pub use chunks::{Chunks, InvalidChunks, PromptChunk};
pub use kv::{Eviction, KvUse, Reserve};
pub use prefill::{PREFILLS, passing_blocks};
pub use streaming::{
    Arenas, FEWEST, MAX_ARENAS, READ_PLACES, StagePart, arena_buffers, wrong_arenas, wrong_from_file,
};
