// How fast this machine computes at most: the limit for products that keep their operands in
// caches.
#pragma once

namespace looseleaf {

// Multiply-adds per second of unsigned with signed bytes that `threads` threads together reach on
// operands in registers, adding up in 16 bits: what a product of 4-bit weights does for each. On
// AVX2 that is vpmaddubsw and vpaddw. The best of several runs of some milliseconds.
double peak_int8_madds(int threads);

// Float32 operations per second that `threads` threads together reach on operands in registers. A
// fused multiply-add is two.
double peak_f32_flops(int threads);

}  // namespace looseleaf
