// Instructions of compute capability 9.0a: barriers in local memory at which copies arrive, too, and products of matrices in
// local memory by a warpgroup, four warps. From the PTX ISA, version 8.0.

FN void start_barrier(uint barrier, uint count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}

FN void arrive(uint barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(barrier) : "memory");
}

// Arrives when the copies that this thread has started are there.
FN void arrive_after_copies(uint barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(barrier) : "memory");
}

FN void await(uint barrier, uint phase) {
    asm volatile("{ .reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN; }"
        :: "r"(barrier), "r"(phase) : "memory");
}

// What was written to local memory before can be read by `wgmma` after.
FN void show_to_matrix_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

FN void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> FN void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }

// Values that products write: whoever reads them does so after this, and whoever has written them did so before.
template <int N> FN void settle(float (&d)[N]) {
    #pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

// A matrix in local memory for `wgmma`: its address, bytes from 64 values of a row to the next 64, bytes from eight rows of
// 128 bytes to the next; the 16-byte pieces of a row exchanged by the row's number in its eight.
FN ulong matrix_at(uint address, uint columns_step, uint rows_step) {
    return (ulong)((address & 0x3ffff) >> 4) | (ulong)(columns_step >> 4) << 16 | (ulong)(rows_step >> 4) << 32
        | (ulong)1 << 62;
}
