// C = alpha · op(A) · op(B) + beta · C. A group computes one tile of C. The lines of the tile are rows of
// op(A), and its lanes are columns of op(B).

struct Constants {
    first_group: vec3<u32>,
    m: u32,
    n: u32,
    k: u32,
    transpose_a: u32,
    transpose_b: u32,
    lda: u32,
    ldb: u32,
    ldc: u32,
    batch: u32,
    stride_a: u32,
    stride_b: u32,
    stride_c: u32,
    alpha: u32,
    beta: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> a: array<Word>;
@group(0) @binding(1) var<storage, read> b: array<Word>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;

// Returns a value of op(A), or zero beyond the last row and the last column.
fn a_value(matrix: u32, row: u32, d: u32) -> f32 {
    if row >= constants.m || d >= constants.k { return 0.0; }
    let at = select(row * constants.lda + d, d * constants.lda + row, constants.transpose_a != 0u);
    let i = matrix * constants.stride_a + at;
    return value(a[word(i)], i);
}

// Returns a value of op(B), or zero beyond the last row and the last column.
fn b_value(matrix: u32, d: u32, column: u32) -> f32 {
    if d >= constants.k || column >= constants.n { return 0.0; }
    let at = select(d * constants.ldb + column, column * constants.ldb + d, constants.transpose_b != 0u);
    let i = matrix * constants.stride_b + at;
    return value(b[word(i)], i);
}

// Writes four values of a row of C, except those beyond the last column.
fn put(at: u32, column: u32, product: vec4<f32>) {
    let beta = bitcast<f32>(constants.beta);
    for (var j = 0u; j < 4u && column + j < constants.n; j++) {
        var result = bitcast<f32>(constants.alpha) * product[j];
        if beta != 0.0 { result = fma(beta, c[at + column + j], result); }
        c[at + column + j] = result;
    }
}

@compute @workgroup_size(ITEMS)
fn gemm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let group = workgroup.x + constants.first_group.x;
    let across = (constants.n + TILE - 1u) / TILE;
    let tiles = (constants.m + TILE - 1u) / TILE * across;
    let matrix = group / tiles;
    let first_row = group % tiles / across * TILE;
    let first_column = group % tiles % across * TILE;
    let depth = select(constants.k, 0u, bitcast<f32>(constants.alpha) == 0.0);
    let a_by_rows = constants.transpose_a != 0u;
    let b_by_columns = constants.transpose_b == 0u;
    for (var first = 0u; first < depth; first += STEP) {
        for (var i = item; i < STEP * QUADS; i += ITEMS) {
            let quad = quad_of(i, a_by_rows);
            let step = depth_of(i, a_by_rows);
            let row = first_row + quad * 4u;
            let d = first + step;
            lines[step * COLUMN + quad] = vec4<f32>(
                a_value(matrix, row, d), a_value(matrix, row + 1u, d),
                a_value(matrix, row + 2u, d), a_value(matrix, row + 3u, d),
            );
        }
        for (var i = item; i < STEP * QUADS; i += ITEMS) {
            let quad = quad_of(i, b_by_columns);
            let step = depth_of(i, b_by_columns);
            let column = first_column + quad * 4u;
            let d = first + step;
            lanes[step * COLUMN + quad] = vec4<f32>(
                b_value(matrix, d, column), b_value(matrix, d, column + 1u),
                b_value(matrix, d, column + 2u), b_value(matrix, d, column + 3u),
            );
        }
        workgroupBarrier();
        multiply(item);
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let row = first_row + line_of(item) + i;
        if row >= constants.m { break; }
        let at = matrix * constants.stride_c + row * constants.ldc;
        put(at, first_column + lane_of(item), sums[2u * i]);
        put(at, first_column + lane_of(item) + 32u, sums[2u * i + 1u]);
    }
}
