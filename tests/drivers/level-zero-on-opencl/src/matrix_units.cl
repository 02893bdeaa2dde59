// Emulates the matrix instructions of Intel's Xe-HPG in OpenCL C. Results and register layouts follow the
// extension cl_intel_subgroup_matrix_multiply_accumulate, for sub-groups of 8 work items: word i of lane l
// has values 2 · l and 2 · l + 1 of row i of the left matrix, and values 2 · i and 2 · i + 1 of column l of
// the right one. Float i of the result is in row i and column l.

float f16_value(uint word, uint i) {
    ushort bits = (ushort)(word >> 16 * i);
    return vload_half(0, (const __private half *)&bits);
}

float bf16_value(uint word, uint i) { return as_float(word >> 16 * i << 16); }

#define INSTRUCTION(name, value) \
    float8 __attribute__((overloadable)) name(int8 left, int8 right, float8 sums) { \
        uint a[8], b[8]; \
        float d[8]; \
        vstore8(as_uint8(left), 0, a); \
        vstore8(as_uint8(right), 0, b); \
        vstore8(sums, 0, d); \
        for (uint row = 0; row < 8; row++) { \
            for (uint lane = 0; lane < 8; lane++) { \
                uint pair = sub_group_broadcast(a[row], lane); \
                d[row] = fma(value(pair, 0), value(b[lane], 0), d[row]); \
                d[row] = fma(value(pair, 1), value(b[lane], 1), d[row]); \
            } \
        } \
        return vload8(0, d); \
    }
INSTRUCTION(intel_sub_group_f16_f16_matrix_mad_k16, f16_value)
INSTRUCTION(intel_sub_group_bf16_bf16_matrix_mad_k16, bf16_value)
#undef INSTRUCTION
