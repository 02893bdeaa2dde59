// Sums and maxima over a group: each sub-group reduces its values, then every sub-group the results. A kernel
// calls each of the two functions at most once, because they do not wait for readers of earlier results.

FN float sum_of_group(LOCAL float *scratch, float value) {
    value = sub_group_reduce_add(value);
    if (LANE == 0) scratch[SUB_GROUP] = value;
    BARRIER();
    return sub_group_reduce_add(LANE < ITEMS / WIDTH ? scratch[LANE] : 0.0f);
}

// NaN is passed over.
FN float max_of_group(LOCAL float *scratch, float value) {
    value = sub_group_reduce_max(isnan(value) ? -INFINITE : value);
    if (LANE == 0) scratch[WIDTH + SUB_GROUP] = value;
    BARRIER();
    return sub_group_reduce_max(LANE < ITEMS / WIDTH ? scratch[WIDTH + LANE] : -INFINITE);
}

#define group_sum sum_of_group
#define group_max max_of_group
// Sums over one column, which all items share.
#define across(scratch, reduction, columns, value) (BARRIER(), sum_of_group(scratch, value))
