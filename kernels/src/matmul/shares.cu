// The groups of 16 rows of weights that are a work group's: the first of them, and how many.

FN uint first_group(uint n) { return ((n + 15) / 16 + gridDim.x - 1) / gridDim.x * GROUP(0); }
FN uint own_groups(uint n) {
    uint groups = (n + 15) / 16, share = (groups + gridDim.x - 1) / gridDim.x;
    return share * GROUP(0) < groups ? min(share, groups - share * GROUP(0)) : 0;
}
