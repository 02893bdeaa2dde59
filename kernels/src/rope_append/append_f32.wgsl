// A writable f32 cache.

@group(0) @binding(3) var<storage, read_write> keys: array<f32>;
@group(0) @binding(4) var<storage, read_write> values: array<f32>;

fn put_key(at: u32, value: f32) { keys[at] = value; }
fn put_value(at: u32, value: f32) { values[at] = value; }
