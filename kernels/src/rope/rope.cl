// Rotary position embedding. Angles are integers, in 2^32ths of a turn.

FN uint angle_of(uint position, uint low, uint high) {
    uint a = position & 0xffff, b = position >> 16, c = low & 0xffff, d = low >> 16;
    uint middle = a * d + ((a * c) >> 16), other = b * c + (middle & 0xffff); // neither can overflow
    return position * high + b * d + (middle >> 16) + (other >> 16);
}

// The value that comes first in a pair is turned to the first place, the other one to the second.
FN void turn_pair(uint angle, PRIVATE float *first, PRIVATE float *second) {
    uint quarter = (angle + (1u << 29)) >> 30;
    float x = (float)(int)(angle - (quarter << 30)) * 1.4629180793e-9f, z = x * x;
    float sine = fma(x * z, fma(z, fma(z, fma(z, 2.75573192e-6f, -1.98412698e-4f), 8.33333333e-3f), -0.166666667f), x);
    float cosine = fma(z, fma(z, fma(z, fma(z, 2.48015873e-5f, -1.38888889e-3f), 4.16666667e-2f), -0.5f), 1.0f);
    float s = quarter == 0 ? sine : quarter == 1 ? cosine : quarter == 2 ? -sine : -cosine;
    float c = quarter == 0 ? cosine : quarter == 1 ? -sine : quarter == 2 ? -cosine : sine;
    float a = *first, b = *second;
    *first = fma(a, c, -(b * s));
    *second = fma(a, s, b * c);
}

KERNEL(ITEMS) rope(
    const GLOBAL uint *RESTRICT positions, const GLOBAL uint *RESTRICT turns, const GLOBAL float *RESTRICT x,
    GLOBAL float *RESTRICT out, uint rows, uint heads, uint head_dim, uint rope_dims, uint pairing
) {
    BEGIN();
    uint pairs = rope_dims / 2, width = head_dim - pairs, place = GROUP(0) * ITEMS + ITEM;
    uint head = place / width, i = place % width;
    if (head >= rows * heads) return;
    const GLOBAL float *from = x + (size_t)head * head_dim;
    GLOBAL float *to = out + (size_t)head * head_dim;
    if (i >= pairs) {
        to[pairs + i] = from[pairs + i];
        return;
    }
    uint a = pairing == 0 ? 2 * i : i, b = pairing == 0 ? 2 * i + 1 : i + pairs;
    float first = from[a], second = from[b];
    turn_pair(angle_of(positions[head / heads], turns[2 * i], turns[2 * i + 1]), &first, &second);
    to[a] = first;
    to[b] = second;
}
