// Convolution as a product, weights times columns of the image that are never stored: a group computes a tile of one group's
// out channels and pixels.

KERNEL(ITEMS) conv2d(
    const GLOBAL ELEMENT *RESTRICT x, const GLOBAL ELEMENT *RESTRICT weights, GLOBAL float *RESTRICT out, uint batch,
    uint channels, uint height, uint width, uint out_channels, uint groups, uint kernel_height, uint kernel_width,
    uint stride_y, uint stride_x, uint padding_y, uint padding_x, uint dilation_y, uint dilation_x, uint out_height,
    uint out_width
) {
    BEGIN();
    SHARED float weight_tile[TILE_SPACE] ALIGNED;
    SHARED float pixel_tile[TILE_SPACE] ALIGNED;
    uint pixels = out_height * out_width, lines = out_channels / groups, taps = kernel_height * kernel_width;
    uint depth = channels / groups * taps;
    uint across = (pixels + TILE - 1) / TILE, down = (lines + TILE - 1) / TILE;
    uint first_pixel = GROUP(0) % across * TILE, first_line = GROUP(0) / across % down * TILE;
    uint part = GROUP(0) / across / down, group = part % groups;
    size_t image = part / groups;
    weights += (size_t)group * lines * depth;
    x += (image * channels + group * (channels / groups)) * height * width;
    out += (image * out_channels + group * lines) * pixels;
    float sums[4][8];
    clear_sums(sums);
    for (uint first = 0; first < depth; first += STEP) {
        fill_tile(weight_tile, weights, first_line, lines, depth, first, depth, 1);
        for (uint i = ITEM; i < STEP * QUADS; i += ITEMS) {
            uint quad = QUAD(i, true), d = first + DEPTH(i, true);
            // What lies before an edge is a large number, too.
            uint tap_y = d % taps / kernel_width * dilation_y - padding_y;
            uint tap_x = d % taps % kernel_width * dilation_x - padding_x;
            const GLOBAL ELEMENT *channel = x + (size_t)(d / taps) * height * width;
            float four[4];
            #pragma unroll
            for (uint j = 0; j < 4; j++) {
                uint pixel = first_pixel + quad * 4 + j;
                uint row = pixel / out_width * stride_y + tap_y, column = pixel % out_width * stride_x + tap_x;
                bool exists = d < depth && pixel < pixels && row < height && column < width;
                four[j] = exists ? LOAD_ELEMENT(channel, (size_t)row * width + column) : 0.0f;
            }
            put_quad(pixel_tile, quad, DEPTH(i, true), four);
        }
        BARRIER();
        multiply(weight_tile, pixel_tile, sums);
        BARRIER();
    }
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint line = first_line + LINE + i;
        #pragma unroll
        for (uint j = 0; j < 8; j++) {
            uint pixel = first_pixel + LANE_OF(j);
            if (line < lines && pixel < pixels) out[(size_t)line * pixels + pixel] = sums[i][j];
        }
    }
}
