// Types whose quants are signed bytes.

// Returns the values of the four quants of a word.
fn values_of_quants(word: u32) -> vec4<f32> { return vec4<f32>(unpack4xI8(word)); }
