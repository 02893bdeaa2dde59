// Multiplies a group's rows of row-major weights by M rows of f32 activations. An item processes 16 bytes of
// each of four rows at a time. If fewer than M rows of x remain, it repeats the last one.

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

// Returns the values of row `m` of x (which starts at `row`) for one vector of weights.
fn factors_at(m: u32, row: u32, column: u32) -> Factors {
    let low = four_of(m, row, column);
    if LANES == 4u { return Factors(low, vec4<f32>()); }
    return Factors(low, four_of(m, row, column + 1u));
}

// Returns one vector from each of four rows of weights.
fn four_rows(at: u32, pitch: u32) -> array<vec4<u32>, 4> {
    return array<vec4<u32>, 4>(weights[at], weights[at + pitch], weights[at + 2u * pitch], weights[at + 3u * pitch]);
}

// Multiplies four vectors of weights by `factors` and adds the products to `sums`.
fn add_vectors(vectors: array<vec4<u32>, 4>, factors: Factors, sums: vec4<f32>) -> vec4<f32> {
    return sums + vec4<f32>(
        dot_values(vectors[0], factors),
        dot_values(vectors[1], factors),
        dot_values(vectors[2], factors),
        dot_values(vectors[3], factors)
    );
}

fn row_sums(group: u32, item: u32, start: u32, left: u32) -> array<vec4<f32>, M> {
    let pitch = pitch_vectors(constants.k);
    let first = first_line(group, item % PARTS) * pitch;
    let vectors = constants.k / LANES;
    let step = ITEMS / PARTS;
    var sums: array<vec4<f32>, M>;
    let row$m = (start + min($mu, left - 1u)) * (constants.k / 4u);
    var at = item / PARTS;
    // Issues the loads of BATCH vectors of each row together to hide memory latency.
    for (; at + (BATCH - 1u) * step < vectors; at += BATCH * step) {
        let batch$b = four_rows(first + at + $bu * step, pitch);
        sums[$m] = add_vectors(batch$b, factors_at($mu, row$m, (at + $bu * step) * (LANES / 4u)), sums[$m]);
    }
    for (; at < vectors; at += step) {
        let last = four_rows(first + at, pitch);
        sums[$m] = add_vectors(last, factors_at($mu, row$m, at * (LANES / 4u)), sums[$m]);
    }
    return sums;
}
