// Autocast on the simulated accelerator: the same lists of operations as on CUDA.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SINGLE_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SINGLE_PRECISION_BY_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTED(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(SINGLE_PRECISION)
  AT_FORALL_FP32_SET_OPT_DTYPE(SINGLE_PRECISION_BY_DTYPE)
  AT_FORALL_PROMOTE(PROMOTED)
}
