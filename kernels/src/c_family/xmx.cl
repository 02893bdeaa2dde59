// Matrix instructions of Intel's Xe-HPG, and the matrix values held by each lane of a sub-group: its
// fragments. WEIGHTS_BF16 selects bf16 or f16 values. Source: the OpenCL extension
// cl_intel_subgroup_matrix_multiply_accumulate, for devices whose smallest sub-groups have 8 work items.
//
// The left matrix has SIDE rows of DEPTH values. So has the right one, whose rows are the columns of the
// result.

#define DEPTH 16
#define WAVE 8
#define SIDE 8
// Floats of the result per lane.
#define SUMS 8
// Words per lane: a row of the right matrix, or two values of each row of the left one.
#define WORDS 8
// Rows of the tile's result that a sub-group computes. Its part has 16 × 16 values, which leaves registers
// for loads.
#define WAVE_ROWS 16

#undef KERNEL
#define KERNEL(items) \
    __kernel __attribute__((intel_reqd_sub_group_size(WAVE))) \
    __attribute__((reqd_work_group_size(items, 1, 1))) void
#define FRAGMENT_SPACE()

FN uint lane_row(uint lane) { return lane; }
FN uint lane_value(uint lane) { return 0; }
FN uint sum_row(uint lane, uint i) { return i; }

FN void load_left(PRIVATE uint *out, const LOCAL ushort *rows, uint lane, uint pitch) {
    #pragma unroll
    for (uint i = 0; i < SIDE; i++) out[i] = *(const LOCAL uint *)(rows + i * pitch + lane * 2);
}
#define LOAD_LEFT(out, rows, lane) load_left(out, rows, lane, TILE_PITCH)

#if WEIGHTS_BF16
#define INSTRUCTION intel_sub_group_bf16_bf16_matrix_mad_k16
#else
#define INSTRUCTION intel_sub_group_f16_f16_matrix_mad_k16
#endif
// Compilers resolve the name without the extension's header, also in SPIR-V.
float8 __attribute__((overloadable)) INSTRUCTION(int8 left, int8 right, float8 sums);

// d += a · b.
#define MULTIPLY(d, a, b) \
    vstore8(INSTRUCTION(as_int8(vload8(0, a)), as_int8(vload8(0, b)), vload8(0, d)), 0, d)
