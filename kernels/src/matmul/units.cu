// Up to TOKENS rows of f16 activations times weights that warps decode on their way to the matrix units, on compute capability
// 9.0a: no launch writes widened weights to memory.
//
// A warp decodes groups of 16 rows of weights, which come through its own ring, into the left factor of `wgmma`. The right
// factor is a tile of x of TOKENS rows and 64 columns, which one more warpgroup copies into local memory. A cluster of SPLIT work
// groups takes a range of groups of rows, in rounds of up to one group for each of the CONSUMERS warps that multiply. Its work
// groups share the columns, and each adds up a part of the sums. Where a half or a quarter of the warps suffice for all groups,
// two or four teams of warps share the columns of a work group. While a warp decodes, the matrix units work, also for this warp.

// Which of 16 words of x, two columns each, is the i-th that the matrix units read: a lane's four columns of a row are
// consecutive.
#define X_WORD(i) ((i) / 8 * 8 + (i) % 4 * 2 + (i) / 4 % 2)
#define X_STAGE (TOKENS * TILE_ROW)
#define X_STAGE_BITS 3
// Tiles of x that a chunk of columns needs.
#define CHUNK_TILES (CHUNK / TILE_K)
// Floats from one row of x to the next among partial sums: so the lanes of a warp write to different banks.
#define SUM_ROW (CONSUMERS * 16 + 8)
// Rows of x that each thread copies half of at once.
#define COPIES 2


// All threads of the cluster have come here, and see what the others wrote before.
FN void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// All threads of the cluster have come here.
FN void cluster_leave() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

// Four values of the local memory of work group `rank` of the cluster.
FN float4 read_of_rank(uint address, uint rank) {
    float4 out;
    asm volatile("{ .reg .b32 at; mapa.shared::cluster.u32 at, %4, %5; "
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at]; }"
        : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w) : "r"(address), "r"(rank) : "memory");
    return out;
}

// What a work group computes: its groups of rows, `per_round` of them at once, and its part of the columns.
typedef struct {
    uint first, end, per_round;
    uint begin, last;
    // Number of teams, and its logarithm: a shift takes the place of a division. Each team has 2^stage_bits stages of x.
    uint teams, team_bits, stage_bits;
} Share;

FN Share share_of(uint n, uint columns) {
    uint clusters = gridDim.x / SPLIT, cluster = blockIdx.x / SPLIT, rank = blockIdx.x % SPLIT;
    uint all = (n + 15) / 16, each = (all + clusters - 1) / clusters, chunks = (columns + CHUNK - 1) / CHUNK;
    uint rounds = (each + CONSUMERS - 1) / CONSUMERS;
    Share share;
    share.first = min(all, each * cluster);
    share.end = min(all, share.first + each);
    share.per_round = (each + rounds - 1) / rounds;
    share.begin = chunks * rank / SPLIT * CHUNK;
    share.last = min(chunks * (rank + 1) / SPLIT * CHUNK, columns);
    share.team_bits = each * 4 <= CONSUMERS ? 2 : each * 2 <= CONSUMERS ? 1 : 0;
    share.teams = 1 << share.team_bits;
    share.stage_bits = X_STAGE_BITS - share.team_bits;
    return share;
}

// Where a team's tile `tile` of x comes.
typedef struct {
    uint index, phase;
} Stage;

FN Stage stage_of(const Share *share, uint team, uint tile) {
    uint bits = share->stage_bits;
    Stage stage = {(team << bits) + (tile & ((1 << bits) - 1)), tile >> bits & 1};
    return stage;
}

FN uint chunk_bytes(uint columns) {
    uint total = 0;
    #pragma unroll
    for (uint s = 0; s < SECTIONS; s++) total += columns * SECTION_BYTES(s) / 256;
    return total;
}

// A chunk's sections stand in a stage as those of a group of CHUNK columns.
FN void copy_chunk(Ring *ring, const uchar *group, uint k, uint column, uint columns) {
    if (!FILLS) return;
    uint to = 0;
    #pragma unroll
    for (uint s = 0; s < SECTIONS; s++) {
        ring_copy(ring, to, group + column / 32 * SECTION_BYTES(s) / 8, columns * SECTION_BYTES(s) / 256);
        to += CHUNK * SECTION_BYTES(s) / 256;
        group += k / 32 * SECTION_BYTES(s) / 8;
    }
}

// The way of a warp through its groups of rows: in each, chunk after chunk of its team.
typedef struct {
    uint group, end, column;
} Way;

FN void fill(Ring *ring, Way *way, const uchar *weights, uint k, const Share *share, uint team) {
    if (way->group >= way->end || way->column >= share->last) {
        ring_skip(ring);
        return;
    }
    uint columns = min((uint)CHUNK, share->last - way->column);
    if (FILLS) ring_expect(ring, chunk_bytes(columns));
    __syncwarp();
    copy_chunk(ring, weights + (size_t)way->group * group_bytes(k), k, way->column, columns);
    ring_filled(ring);
    way->column += CHUNK * share->teams;
    if (way->column >= share->last) {
        way->column = share->begin + team * CHUNK;
        way->group += share->per_round;
    }
}

// Copies the tiles of the rows of x from `first` on to the stages at `to`. Each team has stages of its own, and has had `before`
// tiles in earlier rounds. Each warp copies every COPIERS-th tile, so that the others' loads are under way while it waits.
FN void copy_x(
    const GLOBAL ushort *x, uint to, uint full, uint empty, uint first, uint used, uint pitch, const Share *share, uint before
) {
    uint warp = threadIdx.x / 32 - CONSUMERS, half = threadIdx.x % 2, row = threadIdx.x % 32 / 2;
    #pragma unroll 1
    for (uint i = warp;; i += COPIERS) {
        uint team = i & (share->teams - 1), tile = i >> share->team_bits;
        uint chunk = share->begin + ((tile / CHUNK_TILES << share->team_bits) + team) * CHUNK;
        // Of other teams, earlier chunks may be left.
        if (chunk - team * CHUNK >= share->last) break;
        if (chunk >= share->last) continue;
        Stage stage = stage_of(share, team, before + tile);
        uint place = to + stage.index * X_STAGE, column = chunk + tile % CHUNK_TILES * TILE_K;
        // x is zero beyond the last column.
        bool is_there = column < pitch;
        const GLOBAL ushort *from = x + (is_there ? column : 0) + half * 32;
        #pragma unroll 1
        for (uint above = 0; above < TOKENS; above += COPIES * 16) {
            uint4 words[COPIES][4];
            #pragma unroll
            for (uint c = 0; c < COPIES; c++) {
                const GLOBAL ushort *at = from + (size_t)min(first + above + c * 16 + row, used - 1) * pitch;
                #pragma unroll
                for (uint i = 0; i < 4; i++) words[c][i] = *(const GLOBAL uint4 *)(at + i * 8);
            }
            if (above == 0) await(empty + stage.index * 8, stage.phase ^ 1);
            #pragma unroll
            for (uint c = 0; c < COPIES; c++) {
                if (!is_there) words[c][0] = words[c][1] = words[c][2] = words[c][3] = make_uint4(0, 0, 0, 0);
                const uint *w = (const uint *)words[c];
                #pragma unroll
                for (uint i = 0; i < 4; i++) {
                    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                        :: "r"(place + piece_of(above + c * 16 + row, half * 4 + i)), "r"(w[X_WORD(i * 4)]),
                        "r"(w[X_WORD(i * 4 + 1)]), "r"(w[X_WORD(i * 4 + 2)]), "r"(w[X_WORD(i * 4 + 3)]) : "memory");
                }
            }
        }
        show_to_matrix_units();
        arrive(full + stage.index * 8);
    }
}

// Adds the products of a warpgroup's four groups of rows, in the chunks of its team, to `d`. A warp without a group adds nothing of use. `tile` counts the team's tiles of all rounds. While the matrix units multiply a block, the warp decodes the next.
FN void multiply(
    float (&d)[TOKENS / 2], Ring *ring, Way *way, const uchar *weights, uint k, const Share *share, uint team, bool has_group,
    uint x, uint full, uint empty, uint tile
) {
    uint a[2][8], last = 0;
    Stage stage;
    #pragma unroll
    for (uint i = 0; i < 8; i++) a[0][i] = a[1][i] = 0;
    bool signals = threadIdx.x % 32 == 0;
    #pragma unroll 1
    for (uint column = share->begin + team * CHUNK; column < share->last; column += CHUNK * share->teams) {
        const uchar *part = has_group ? ring_await(ring) : (const uchar *)0;
        #pragma unroll
        for (uint i = 0; i < CHUNK_BLOCKS; i++) {
            await_products<1>();
            if (i % 2) {
                if (signals && last) arrive(last);
                last = empty + stage.index * 8;
            } else {
                stage = stage_of(share, team, tile++);
            }
            if (has_group) decode(part, i, a[i % 2]);
            if (i % 2 == 0) await(full + stage.index * 8, stage.phase);
            ulong right = matrix_at(x + stage.index * X_STAGE, 16, 8 * TILE_ROW) + i % 2 * 4;
            begin_products();
            tile_product(d, a[i % 2], right);
            tile_product(d, a[i % 2] + 4, right + 2);
            end_products();
        }
        if (has_group) {
            ring_drained(ring);
            fill(ring, way, weights, k, share, team);
        }
    }
    await_products<0>();
    if (signals && last) arrive(last);
    settle(d);
}

// Writes the sums of a warp's group for `read_of_rank`.
FN void write_sums(const float (&d)[TOKENS / 2], uint base) {
    uint lane = threadIdx.x % 32, to = base + ((lane % 4 * 2) * SUM_ROW + threadIdx.x / 32 * 16 + lane / 4 * 2) * 4;
    #pragma unroll
    for (uint i = 0; i < TOKENS / 2; i += 4) {
        #pragma unroll
        for (uint t = 0; t < 2; t++) {
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(to + (i * 2 + t) * SUM_ROW * 4),
                "f"(d[i + t]), "f"(d[i + 2 + t]) : "memory");
        }
    }
}

// The cluster's work groups share the sums of a round's groups of rows from `group` on, of the rows of x from `first` on.
FN void add_up(Output out, uint base, uint first, uint group, const Share *share) {
    cluster_barrier();
    uint quads = min(share->per_round, share->end - group) * 4, total = min((uint)TOKENS, out.rows - first) * quads;
    #pragma unroll 1
    for (uint i = blockIdx.x % SPLIT * ITEMS + threadIdx.x; i < total; i += SPLIT * ITEMS) {
        uint row = i / quads, column = i % quads * 4;
        float4 sum = FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
        #pragma unroll 1
        for (uint team = 0; team < share->teams; team++) {
            uint at = base + (row * SUM_ROW + team * ((CONSUMERS >> share->team_bits) * 16) + column) * 4;
            #pragma unroll
            for (uint rank = 0; rank < SPLIT; rank++) {
                float4 more = read_of_rank(at, rank);
                sum.x += more.x; sum.y += more.y; sum.z += more.z; sum.w += more.w;
            }
        }
        const float down = 1.0f / UP;
        float4 scaled = FLOAT4(sum.x * down, sum.y * down, sum.z * down, sum.w * down);
        write_four(out, first + row, group * 16 + column, scaled);
    }
    cluster_leave();
}

extern "C" __global__ void __attribute__((cluster_dims(SPLIT, 1, 1))) __launch_bounds__(ITEMS, 1) matmul_units(
    const GLOBAL uint *RESTRICT params, const GLOBAL uchar *RESTRICT weights, const GLOBAL ushort *RESTRICT x,
    GLOBAL float *RESTRICT y, uint rows, uint word, uint n, uint k, uint accumulate, uint stride
) {
    extern SHARED uchar dynamic[];
    SHARED ulong ring_barriers[CONSUMERS * BARRIERS], x_barriers[2 * X_STAGES];
    uint base = (local_address(dynamic) + 1023) & ~1023u;
    uchar *rings = dynamic + (base - local_address(dynamic)) + X_BYTES;
    uint full = local_address(x_barriers), empty = full + X_STAGES * 8;
    Share share = share_of(n, k);
    if (threadIdx.x == 0) {
        for (uint s = 0; s < X_STAGES; s++) {
            start_barrier(full + s * 8, 32);
            start_barrier(empty + s * 8, CONSUMERS >> share.team_bits);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    LAUNCH_NEXT();
    uint warp = threadIdx.x / 32;
    uint used = count(params, word, rows), first = blockIdx.y * TOKENS;
    // All of the cluster return.
    if (first >= used || share.first >= share.end) {
        AWAIT_LAST();
        return;
    }
    // Only a single team has several rounds.
    uint tiles = (share.last - share.begin + CHUNK - 1) / CHUNK * CHUNK_TILES;
    // Blocks beyond the last column meet zeros of x: they must be numbers.
    if (k % CHUNK) {
        for (uint i = threadIdx.x; i < CONSUMERS * STAGES * STAGE / 4; i += ITEMS) ((uint *)rings)[i] = 0;
        __syncthreads();
    }
    Output out = {y, used, n, stride, accumulate != 0, has_whole_pieces(y, n, stride)};
    if (warp >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COPIER_REGISTERS));
        AWAIT_LAST();
        uint before = 0;
        #pragma unroll 1
        for (uint group = share.first; group < share.end; group += share.per_round, before += tiles) {
            copy_x(x, base, full, empty, first, used, pitch_of(k), &share, before);
            add_up(out, base, first, group, &share);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));
        uint warps = CONSUMERS >> share.team_bits, team = warp / warps, member = warp - team * warps;
        Ring ring;
        ring_start(&ring, rings + warp * STAGES * STAGE, ring_barriers + warp * BARRIERS);
        // A warp that has no group in the first round has none in others, which are not larger.
        Way way = {share.first + member, member < share.per_round ? share.end : 0, share.begin + team * CHUNK};
        #pragma unroll 1
        for (uint i = 0; i < STAGES; i++) fill(&ring, &way, weights, k, &share, team);
        AWAIT_LAST();
        uint before = 0;
        #pragma unroll 1
        for (uint group = share.first; group < share.end; group += share.per_round, before += tiles) {
            float d[TOKENS / 2];
            #pragma unroll
            for (uint i = 0; i < TOKENS / 2; i++) d[i] = 0.0f;
            bool has_group = group + member < min(share.end, group + share.per_round);
            multiply(d, &ring, &way, weights, k, &share, team, has_group, base, full, empty, before);
            asm volatile("bar.sync 1, %0;" :: "n"(32 * CONSUMERS) : "memory");
            write_sums(d, base);
            add_up(out, base, first, group, &share);
        }
    }
}
