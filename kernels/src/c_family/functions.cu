// What the general operators rely on beside the prelude.

#undef log
#if defined(__AMDGCN__)
extern "C" __attribute__((device, const)) float __ocml_log_f32(float);
#define log(x) __ocml_log_f32(x)
#else
#define log(x) logf(x)
#endif
