#include "gemm.h"

namespace looseleaf {

namespace {

bool has_avx2() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

}  // namespace

const GemmKernels* gemm_kernels(std::string_view name) {
  if (name == "portable") return gemm_portable();
  if (name == "avx2" && has_avx2()) return gemm_avx2();
  return nullptr;
}

const GemmKernels& gemm_kernels() {
  const GemmKernels* avx2 = gemm_kernels("avx2");
  return avx2 != nullptr ? *avx2 : *gemm_portable();
}

}  // namespace looseleaf
