// Kernels of the driver's tests. `kernels.spv` is made from this file:
//
//   clang-15 -c -target spir64 -cl-std=CL3.0 -Xclang -finclude-default-header -O2 -emit-llvm \
//       kernels.cl -o kernels.bc && llvm-spirv-15 --spirv-max-version=1.2 kernels.bc -o kernels.spv

kernel void scale(global float *values, float factor, uint count) {
    uint at = get_global_id(0);
    if (at < count)
        values[at] *= factor;
}

// Sums each group's values through local memory of the caller.
kernel void sum(global const float *values, global float *sums, local float *scratch) {
    uint item = get_local_id(0);
    scratch[item] = values[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 0) {
        float all = 0.0f;
        for (uint at = 0; at < get_local_size(0); at++)
            all += scratch[at];
        sums[get_group_id(0)] = all;
    }
}

kernel __attribute__((reqd_work_group_size(16, 1, 1))) __attribute__((intel_reqd_sub_group_size(16)))
void lanes(global uint *to) {
    to[get_global_id(0)] = get_sub_group_local_id() + 100 * get_sub_group_size();
}
