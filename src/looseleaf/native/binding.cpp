#include <nanobind/nanobind.h>

#include "bandwidth.h"
#include "bench_binding.h"
#include "cpu.h"
#include "runtime_binding.h"
#include "sampler_binding.h"
#include "weights.h"
#include "weights_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_native, m) {
  m.doc() = "Looseleaf's compiled part.";

  m.attr("LAYOUT_VERSION") = looseleaf::kLayoutVersion;

  m.def(
      "cpu_features",
      [] {
        nb::dict features;
        for (const auto& [name, supported] : looseleaf::cpu_features()) {
          features[name.c_str()] = supported;
        }
        return features;
      },
      "Instruction sets that kernels are dispatched on -> whether this processor has them.");

  m.def("read_bandwidth", &looseleaf::read_bandwidth, "num_bytes"_a, "num_threads"_a,
        "repeats"_a = 3, nb::call_guard<nb::gil_scoped_release>(),
        "Bytes per second at which the threads together read memory, best of `repeats`.");

  looseleaf::bind_bench(m);
  looseleaf::bind_sampler(m);  // first, for the runtime hands out a ThreadPool
  looseleaf::bind_weights(m);
  looseleaf::bind_runtime(m);
}
