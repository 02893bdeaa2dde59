// Sub-groups of 16 work items, in OpenCL C. Items are numbered in the order of the sub-groups, so that no
// kernel depends on how a driver divides a group.

#define WIDTH 16
#define SUB_GROUP ((uint)get_sub_group_id())
#define LANE ((uint)get_sub_group_local_id())

#undef ITEM
#define ITEM (SUB_GROUP * WIDTH + LANE)
#undef KERNEL
#define KERNEL(items) \
    __kernel __attribute__((intel_reqd_sub_group_size(WIDTH))) \
    __attribute__((reqd_work_group_size(items, 1, 1))) void

// The header of OpenCL C 1.2, from which SPIR-V is built, does not declare these functions.
#define BUILT_IN __attribute__((overloadable, convergent))
uint BUILT_IN get_sub_group_id(void);
uint BUILT_IN get_sub_group_local_id(void);
uint BUILT_IN sub_group_broadcast(uint value, uint lane);
float BUILT_IN sub_group_broadcast(float value, uint lane);
float BUILT_IN sub_group_reduce_add(float value);
float BUILT_IN sub_group_reduce_max(float value);
