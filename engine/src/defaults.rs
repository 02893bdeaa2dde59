//! Defaults of plans that other parts of the library also use.

/// Length in tokens of the first prefill chunk that the planner tries by default. A chunk of this length uses
/// most of a device's arithmetic throughput, and a prompt still has enough chunks to fill a pipeline.
pub const DEFAULT_CHUNK: u32 = 128;

/// Length in tokens of the longest prefill chunk that the planner tries by default. A chunk is never longer
/// than the context.
pub const MAX_CHUNK: u32 = 4096;

/// Lengths in tokens of the other prefill chunks that the planner tries. Shorter chunks fill a pipeline
/// sooner. Longer chunks use more of a device's arithmetic throughput.
pub(crate) const OTHER_CHUNKS: [u32; 6] = [64, 256, 512, 1024, 2048, MAX_CHUNK];

/// Default number of micro-batches that a stage can hold at a time: one that it is receiving, one that it is
/// computing and one that it is sending.
pub const SLOTS: u32 = 3;
