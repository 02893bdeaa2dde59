// Interface of types without blocks in `RowMajor`: rows of values, padded to a multiple of 64.
//
// A type defines
//   LANES                          values per vector of 16 bytes
//   four_values(vector, quad)      the values of a quad, from the vector that holds it
//   dot_values(vector, factors)    the product of a vector's values and as many factors
// A `part` is four of a group's 16 rows. A `quad` is four consecutive columns of a block of 32. Indices into
// `weights` count vectors.

// Values of x for one vector of weights. Values that the vector does not need are zero.
struct Factors {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn pitch_vectors(columns: u32) -> u32 { return ((columns + 63u) & ~63u) / LANES; }
fn group_vectors(columns: u32) -> u32 { return pitch_vectors(columns) * 16u; }

// Returns the values of a quad: for each column, a vector of four rows.
fn quad_values(group: u32, columns: u32, block: u32, quad: u32, part: u32) -> mat4x4<f32> {
    let pitch = pitch_vectors(columns);
    let at = group + part * 4u * pitch + (block * 32u + quad * 4u) / LANES;
    return transpose(mat4x4<f32>(
        four_values(weights[at], quad),
        four_values(weights[at + pitch], quad),
        four_values(weights[at + 2u * pitch], quad),
        four_values(weights[at + 3u * pitch], quad)
    ));
}
