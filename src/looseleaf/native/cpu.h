// What the processor can do, asked at run time.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace looseleaf {

// Instruction sets that kernels are dispatched on, by name, and whether this processor and its
// operating system support them. All false on processors other than x86-64.
std::vector<std::pair<std::string, bool>> cpu_features();

// Whether the kernels called "avx2" can run: they use AVX2, FMA and F16C.
bool runs_avx2_kernels();

}  // namespace looseleaf
