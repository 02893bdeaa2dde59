// Kernel that uses Intel's matrix units. `matrix.spv` is made from this file as `kernels.spv` is.

float8 __attribute__((overloadable)) intel_sub_group_f16_f16_matrix_mad_k16(int8 left, int8 right, float8 sums);

// Multiplies two matrices of 8 × 16 and 16 × 8 values, packed as the extension
// cl_intel_subgroup_matrix_multiply_accumulate describes.
kernel __attribute__((reqd_work_group_size(8, 1, 1))) __attribute__((intel_reqd_sub_group_size(8)))
void multiply(global const int8 *left, global const int8 *right, global float8 *sums) {
    uint lane = get_local_id(0);
    sums[lane] = intel_sub_group_f16_f16_matrix_mad_k16(left[lane], right[lane], sums[lane]);
}
