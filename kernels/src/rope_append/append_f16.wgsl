// A writable f16 cache.

@group(0) @binding(3) var<storage, read_write> keys: array<f16>;
@group(0) @binding(4) var<storage, read_write> values: array<f16>;

fn put_key(at: u32, value: f32) { keys[at] = f16(in_half_range(vec4(value)).x); }
fn put_value(at: u32, value: f32) { values[at] = f16(in_half_range(vec4(value)).x); }
