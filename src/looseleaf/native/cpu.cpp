#include "cpu.h"

namespace looseleaf {

std::vector<std::pair<std::string, bool>> cpu_features() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  __builtin_cpu_init();
  return {
      {"avx2", __builtin_cpu_supports("avx2") != 0},
      {"fma", __builtin_cpu_supports("fma") != 0},
      {"avx512f", __builtin_cpu_supports("avx512f") != 0},
      {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
  };
#else
  return {{"avx2", false}, {"fma", false}, {"avx512f", false}, {"avx512vnni", false}};
#endif
}

bool runs_avx2_kernels() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

}  // namespace looseleaf
