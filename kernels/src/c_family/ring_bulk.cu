// A warp's ring of STAGES stages of STAGE bytes in shared memory, filled by the copy engine (compute capability 9.0): one lane
// asks, and the arrival of bytes counts on a barrier in shared memory. PTX ISA 8.2: mbarrier, cp.async.bulk.

#define WARPS (ITEMS / 32)
// Barriers of a warp.
#define BARRIERS STAGES

FN uint shared_address(const void *pointer) {
    return (uint)__cvta_generic_to_shared(pointer);
}

typedef struct {
    uchar *stages;     // of this warp
    ulong *barriers;   // of this warp, one a stage
    uint fill, drain;  // the stages that are filled and read next
    uint phase;        // of the barrier of `drain`
} Ring;

FN void ring_start(Ring *ring, uchar *stages, ulong *barriers) {
    ring->stages = stages;
    ring->barriers = barriers;
    ring->fill = ring->drain = ring->phase = 0;
    if (ITEM % 32 == 0) {
        for (uint i = 0; i < STAGES; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(barriers + i)) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
}

// The lanes that fill.
#define FILLS (ITEM % 32 == 0)

// So many bytes will come into the next stage: then `ring_copy` for each part, then `ring_filled`.
FN void ring_expect(Ring *ring, uint bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(shared_address(ring->barriers + ring->fill)), "r"(bytes) : "memory");
}

// Weights are read once a step: they must not displace what others leave in the second-level cache.
FN void ring_copy(Ring *ring, uint offset, const uchar *from, uint bytes) {
    uint to = shared_address(ring->stages) + ring->fill * STAGE + offset;
    asm volatile(
        "{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy; }"
        :: "r"(to), "l"(from), "r"(bytes), "r"(shared_address(ring->barriers + ring->fill)) : "memory");
}

FN void ring_filled(Ring *ring) {
    ring->fill = ring->fill + 1 == STAGES ? 0 : ring->fill + 1;
}

// In the place of filling a stage, when there is nothing more.
FN void ring_skip(Ring *ring) {}

// The next stage, when its bytes are there.
FN const uchar *ring_await(Ring *ring) {
    uint barrier = shared_address(ring->barriers + ring->drain), there;
    do {
        asm volatile(
            "{ .reg .pred there; mbarrier.try_wait.parity.shared::cta.b64 there, [%1], %2; selp.u32 %0, 1, 0, there; }"
            : "=r"(there) : "r"(barrier), "r"(ring->phase) : "memory");
    } while (!there);
    return ring->stages + ring->drain * STAGE;
}

// All lanes have read the stage.
FN void ring_drained(Ring *ring) {
    __syncwarp();
    if (++ring->drain == STAGES) {
        ring->drain = 0;
        ring->phase ^= 1;
    }
}
