KERNEL(ITEMS) attention_flash(
    const GLOBAL uint *RESTRICT params, const GLOBAL float *RESTRICT q, const GLOBAL ushort *RESTRICT keys,
    const GLOBAL ushort *RESTRICT values, GLOBAL float *RESTRICT out, uint rows, uint sequences, uint table_blocks,
    uint logit_rows, uint heads, uint kv_heads, uint head_dim, uint cache_blocks, uint scale, uint stride, uint window,
    uint cap PARTIAL_PARAMETERS
) {
    extern __shared__ uchar dynamic[];
    SHARED uint found[4];
    BEGIN();
    uint memory = (local_address(dynamic) + 127) & ~127u, kv_head = blockIdx.x;
    Launch launch = LAUNCH;
    Tile tile = tile_of(params, rows, ROW_WORD);
    for (uint row = tile.row; row < tile.end;) {
        Run run = run_at<ITEMS>(launch, row, tile.end, found);
        if (run.next == row) write_nothing<ITEMS>(launch, row, kv_head);
        for (uint first = 0; first < (run.next - row) * (heads / kv_heads); first += QUERIES) {
            if (head_dim % 8 != 0 || head_dim > 128) attend<64, false>(launch, run, kv_head, first, memory);
            else if (head_dim <= 64) attend<64, true>(launch, run, kv_head, first, memory);
            else attend<128, true>(launch, run, kv_head, first, memory);
        }
        row = max(run.next, row + 1);
    }
}
