#include "sampler_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "philox.h"
#include "sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace looseleaf {

namespace {

// (row, temperature, top_k, top_p, min_p, seed, sample_index, position, num_logprobs)
using DrawTuple = std::tuple<std::int64_t, double, std::int64_t, double, double, std::uint64_t,
                             std::uint64_t, std::uint64_t, std::int32_t>;
// (draw, tokens, their new logits, whether only these can be drawn, whether the edited row is listed)
using EditTuple =
    std::tuple<std::size_t, nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>,
               nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>, bool, bool>;
using ScoreTuple = std::pair<std::int64_t, std::int64_t>;
// (token, log-probability, most likely tokens with theirs)
using DrawnTuple = std::tuple<std::int32_t, double, std::vector<std::pair<std::int32_t, double>>>;

std::pair<std::vector<DrawnTuple>, std::vector<double>> sample(
    ThreadPool* threads, nb::ndarray<const float, nb::ndim<2>, nb::device::cpu> logits,
    std::int64_t num_columns, const std::vector<DrawTuple>& draw_tuples,
    const std::vector<ScoreTuple>& score_tuples, const std::vector<EditTuple>& edit_tuples,
    const std::string& kernels) {
  if (logits.shape(1) > 1 && logits.stride(1) != 1) {
    throw std::invalid_argument("the logits of a row do not lie next to each other");
  }
  const auto num_rows = static_cast<std::int64_t>(logits.shape(0));
  if (num_columns < 1 || num_columns > static_cast<std::int64_t>(logits.shape(1))) {
    throw std::invalid_argument("there are not as many columns of logits");
  }
  std::vector<Draw> draws;
  draws.reserve(draw_tuples.size());
  for (const auto& [row, temperature, top_k, top_p, min_p, seed, sample_index, position,
                    num_logprobs] : draw_tuples) {
    draws.push_back({row, temperature, top_k, top_p, min_p, seed, sample_index, position,
                     num_logprobs, {}});
  }
  for (const auto& [draw, tokens, values, only, lists] : edit_tuples) {
    if (draw >= draws.size() || tokens.shape(0) != values.shape(0)) {
      throw std::out_of_range("an edit of no draw, or not with one logit for each token");
    }
    const auto count = static_cast<std::int64_t>(tokens.shape(0));
    for (std::int64_t i = 0; i < count; ++i) {
      if (tokens.data()[i] < 0 || tokens.data()[i] >= num_columns) {
        throw std::out_of_range("an edit of a token that no row of logits has");
      }
    }
    draws[draw].edit = {tokens.data(), values.data(), count, only, lists};
  }
  std::vector<Score> wanted;
  wanted.reserve(score_tuples.size());
  for (const auto& [row, token] : score_tuples) wanted.push_back({row, token});
  for (const Draw& draw : draws) {
    if (draw.row < 0 || draw.row >= num_rows) throw std::out_of_range("no such row of logits");
  }
  for (const Score& score : wanted) {
    if (score.row < 0 || score.row >= num_rows || score.token < 0) {
      throw std::out_of_range("no such row of logits, or a negative token");
    }
  }
  const SamplerKernels* table =
      kernels == "auto" ? &sampler_kernels() : sampler_kernels(kernels);
  if (table == nullptr) throw std::invalid_argument("this processor cannot run kernels " + kernels);

  std::vector<Drawn> drawn;
  std::vector<double> scores;
  {
    nb::gil_scoped_release release;
    ThreadPool alone(1);
    sample_rows(*table, threads == nullptr ? alone : *threads,
                {logits.data(), logits.stride(0), num_columns}, draws, wanted, drawn, scores);
  }
  std::vector<DrawnTuple> results;
  results.reserve(drawn.size());
  for (Drawn& one : drawn) results.emplace_back(one.token, one.logprob, std::move(one.top));
  return {std::move(results), std::move(scores)};
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool", "Threads that split one loop at a time.")
      .def(nb::init<int>(), "num_threads"_a, "`num_threads` in all, the caller among them.")
      .def_prop_ro("size", &ThreadPool::size);
  m.def("uniform", &uniform, "seed"_a, "sample_index"_a, "position"_a,
        "The number in [0, 1) of `looseleaf.sampling.random`.");
  m.def("sample", &sample, "threads"_a.none(), "logits"_a, "num_columns"_a, "draws"_a, "scores"_a,
        "edits"_a = std::vector<EditTuple>{}, "kernels"_a = "auto",
        "Draw and score tokens from the first `num_columns` of rows of `logits`, without the GIL.\n\n"
        "`draws` are (row, temperature, top_k, top_p, min_p, seed, sample_index, position, number "
        "of log-probabilities or -1), `scores` are (row, token); `edits` are (draw, tokens, their new "
        "logits, whether only these can be drawn, whether tokens are listed by the edited row). Returns (token, log-probability, "
        "[(token, log-probability), ...]) for each of the first, with token -1 where a row has no "
        "finite maximum, and the log-probability for each of the second. Without `threads` the "
        "calling one does all; not to be called while they are in use.");
}

}  // namespace looseleaf
