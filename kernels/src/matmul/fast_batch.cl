// A group of 16 rows of quantised weights times M rows of int8 activations, blocks of 32 columns at a time: an item takes
// four rows and half the quads of some blocks. Where fewer rows of x are left, the last one stands for the others.

// Blocks whose loads are under way together: what hides the memory's latency.
#define BATCH (M == 1 ? 4 : 1)
