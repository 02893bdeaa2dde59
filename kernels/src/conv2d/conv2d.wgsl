// Convolution as a matrix product of weights and image columns. The columns are never stored. A group
// computes a tile of pixels and of the out channels of one channel group.

struct Constants {
    first_group: vec3<u32>,
    batch: u32,
    channels: u32,
    height: u32,
    width: u32,
    out_channels: u32,
    groups: u32,
    kernel_height: u32,
    kernel_width: u32,
    stride_y: u32,
    stride_x: u32,
    padding_y: u32,
    padding_x: u32,
    dilation_y: u32,
    dilation_x: u32,
    out_height: u32,
    out_width: u32,
}
var<immediate> constants: Constants;

@group(0) @binding(0) var<storage, read> x: array<Word>;
@group(0) @binding(1) var<storage, read> weights: array<Word>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// Returns weight `d` of out channel `line`, or zero if the channel or the weight does not exist.
fn weight_value(base: u32, line: u32, lines: u32, d: u32, depth: u32) -> f32 {
    if line >= lines || d >= depth { return 0.0; }
    let i = base + line * depth + d;
    return value(weights[word(i)], i);
}

// Returns a value of an image channel, at an offset from a pixel. Returns zero beyond the edges. Coordinates
// before an edge wrap to large numbers.
fn pixel_value(channel: u32, pixel: u32, tap: vec2<u32>) -> f32 {
    let row = pixel / constants.out_width * constants.stride_y + tap.y;
    let column = pixel % constants.out_width * constants.stride_x + tap.x;
    let is_pixel = pixel < constants.out_height * constants.out_width;
    if !is_pixel || row >= constants.height || column >= constants.width { return 0.0; }
    let i = (channel * constants.height + row) * constants.width + column;
    return value(x[word(i)], i);
}

// Writes up to four pixels of an out channel.
fn put(at: u32, pixel: u32, four: vec4<f32>) {
    let pixels = constants.out_height * constants.out_width;
    for (var j = 0u; j < 4u && pixel + j < pixels; j++) { out[at + pixel + j] = four[j]; }
}

@compute @workgroup_size(ITEMS)
fn conv2d(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) item: u32) {
    let number = workgroup.x + constants.first_group.x;
    let pixels = constants.out_height * constants.out_width;
    let lines_of_group = constants.out_channels / constants.groups;
    let inner = constants.channels / constants.groups;
    let taps = constants.kernel_height * constants.kernel_width;
    let depth = inner * taps;
    let across = (pixels + TILE - 1u) / TILE;
    let down = (lines_of_group + TILE - 1u) / TILE;
    let first_pixel = number % across * TILE;
    let first_line = number / across % down * TILE;
    let part = number / across / down;
    let group = part % constants.groups;
    let image = part / constants.groups;
    let weights_base = group * lines_of_group * depth;
    let first_channel = image * constants.channels + group * inner;
    let padding = vec2<u32>(constants.padding_x, constants.padding_y);
    for (var first = 0u; first < depth; first += STEP) {
        for (var i = item; i < STEP * QUADS; i += ITEMS) {
            let quad = quad_of(i, false);
            let step = depth_of(i, false);
            let line = first_line + quad * 4u;
            let d = first + step;
            lines[step * COLUMN + quad] = vec4<f32>(
                weight_value(weights_base, line, lines_of_group, d, depth),
                weight_value(weights_base, line + 1u, lines_of_group, d, depth),
                weight_value(weights_base, line + 2u, lines_of_group, d, depth),
                weight_value(weights_base, line + 3u, lines_of_group, d, depth),
            );
        }
        for (var i = item; i < STEP * QUADS; i += ITEMS) {
            let quad = quad_of(i, true);
            let step = depth_of(i, true);
            let pixel = first_pixel + quad * 4u;
            let d = first + step;
            var four = vec4<f32>();
            if d < depth {
                let channel = first_channel + d / taps;
                let tap_y = d % taps / constants.kernel_width * constants.dilation_y;
                let tap_x = d % taps % constants.kernel_width * constants.dilation_x;
                let tap = vec2<u32>(tap_x, tap_y) - padding;
                four = vec4<f32>(
                    pixel_value(channel, pixel, tap), pixel_value(channel, pixel + 1u, tap),
                    pixel_value(channel, pixel + 2u, tap), pixel_value(channel, pixel + 3u, tap),
                );
            }
            lanes[step * COLUMN + quad] = four;
        }
        workgroupBarrier();
        multiply(item);
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let line = first_line + line_of(item) + i;
        if line >= lines_of_group { break; }
        let at = ((image * constants.groups + group) * lines_of_group + line) * pixels;
        put(at, first_pixel + lane_of(item), sums[2u * i]);
        put(at, first_pixel + lane_of(item) + 32u, sums[2u * i + 1u]);
    }
}
