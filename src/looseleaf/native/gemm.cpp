#include "gemm.h"

#include "cpu.h"

namespace looseleaf {

const GemmKernels* gemm_kernels(std::string_view name) {
  if (name == "portable") return gemm_portable();
  if (name == "avx2" && runs_avx2_kernels()) return gemm_avx2();
  return nullptr;
}

const GemmKernels& gemm_kernels() {
  const GemmKernels* avx2 = gemm_kernels("avx2");
  return avx2 != nullptr ? *avx2 : *gemm_portable();
}

}  // namespace looseleaf
