// A warp's ring of STAGES stages of STAGE bytes in shared memory, filled by its lanes' asynchronous copies (compute capability
// 8.0). PTX ISA 8.2: cp.async. As many groups of copies are committed as stages are filled or skipped, so that the oldest of
// STAGES is the next stage's.

#define WARPS (ITEMS / 32)
// Barriers of a warp: there are none.
#define BARRIERS 1

FN uint shared_address(const void *pointer) {
    return (uint)__cvta_generic_to_shared(pointer);
}

typedef struct {
    uchar *stages; // of this warp
    uint fill, drain;
} Ring;

FN void ring_start(Ring *ring, uchar *stages, ulong *barriers) {
    ring->stages = stages;
    ring->fill = ring->drain = 0;
}

// The lanes that fill.
#define FILLS true

// So many bytes will come into the next stage: then `ring_copy` for each part, then `ring_filled`.
FN void ring_expect(Ring *ring, uint bytes) {}

FN void ring_copy(Ring *ring, uint offset, const uchar *from, uint bytes) {
    uint to = shared_address(ring->stages) + ring->fill * STAGE + offset;
    for (uint i = ITEM % 32 * 16; i < bytes; i += 512) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to + i), "l"(from + i) : "memory");
    }
}

// In the place of filling a stage, when there is nothing more.
FN void ring_skip(Ring *ring) { asm volatile("cp.async.commit_group;" ::: "memory"); }

FN void ring_filled(Ring *ring) {
    ring_skip(ring);
    ring->fill = ring->fill + 1 == STAGES ? 0 : ring->fill + 1;
}

// The next stage, when its bytes are there.
FN const uchar *ring_await(Ring *ring) {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 1) : "memory");
    __syncwarp();
    return ring->stages + ring->drain * STAGE;
}

// All lanes have read the stage.
FN void ring_drained(Ring *ring) {
    __syncwarp();
    ring->drain = ring->drain + 1 == STAGES ? 0 : ring->drain + 1;
}
