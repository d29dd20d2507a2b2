#include "attention_plan.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>

namespace looseleaf {

namespace {

// Sequences of up to so many rows per KV head are run together where they share blocks. One of more
// rows reads its blocks often enough to hardly gain by it.
constexpr std::int32_t kSharedRows = kAttentionRows / 2;

// Reading the cache at a position costs about as much as computing this many rows there.
constexpr std::int64_t kReadingCost = 8;

// Units are cut until they are a small part of a thread's share. Tasks are smaller still, as long as
// they are worth handing out.
constexpr std::int64_t kUnitsPerThread = 8;
constexpr std::int64_t kTasksPerThread = 16;
constexpr std::int64_t kLeastTaskCost = 500;

constexpr std::int32_t round_up(std::int32_t x, std::int32_t step) {
  return (x + step - 1) / step * step;
}

// Rows of each unit, where `num_rows` go to as few units as possible: about equally many, and a
// multiple of the three that the kernels like best.
std::int32_t rows_per_unit(std::int32_t num_rows) {
  const std::int32_t units = (num_rows + kAttentionRows - 1) / kAttentionRows;
  return std::min(kAttentionRows, round_up((num_rows + units - 1) / units, 3));
}

// The entries of a block table that a split uses.
struct Entries {
  std::int32_t first;
  std::int32_t last;
};

Entries entries_of(std::int32_t split, std::int32_t block_size) {
  return {split * kAttentionSplit / block_size, ((split + 1) * kAttentionSplit - 1) / block_size};
}

std::uint64_t hash_of(const std::int32_t* block_table, Entries entries) {
  const auto first = static_cast<std::uint32_t>(block_table[entries.first]);
  const auto last = static_cast<std::uint32_t>(block_table[entries.last]);
  return ((std::uint64_t{first} << 32 | last) * 0x9E3779B97F4A7C15u) >> 32;
}

}  // namespace

void AttentionPlan::build(const AttentionShape& shape, const AttentionSequence* sequences,
                          std::int32_t num_sequences, int num_threads) {
  AttentionWork work{};
  work.shape = shape;
  work_ = work;
  num_threads_ = num_threads;
  rows_.clear();
  homes_.clear();
  tables_.clear();
  candidates_.clear();
  runs_.clear();
  members_.clear();
  spans_.clear();
  for (std::int32_t i = 0; i < num_sequences; ++i) {
    if (sequences[i].num_tokens > 0) add_homes(sequences[i]);
  }
  if (candidates_.size() > 1) find_runs();
  for (const Run& run : runs_) {
    for (std::int32_t i = 0; i < run.num_members; ++i) {
      const Candidate& candidate = candidates_[member_of(run, i)];
      add_own(candidate.home, candidate.covered, run.first_split);
    }
    add_run(run);
  }
  // Candidates are in the order of their homes.
  std::size_t next = 0;
  for (std::int32_t home = 0; home < static_cast<std::int32_t>(homes_.size()); ++home) {
    const AttentionHome& of_home = homes_[static_cast<std::size_t>(home)];
    std::int32_t covered = of_home.first_split;
    if (next < candidates_.size() && candidates_[next].home == home) {
      covered = candidates_[next++].covered;
    }
    add_own(home, covered, of_home.end_split);
  }
  cut_spans();
  place_slots();
  make_tasks();
}

void AttentionPlan::add_homes(const AttentionSequence& sequence) {
  const AttentionShape& shape = work_.shape;
  const std::int32_t group = shape.num_heads / shape.num_kv_heads;
  const std::int32_t total = sequence.num_tokens * group;
  const std::int32_t most = rows_per_unit(total);
  for (std::int32_t first = 0; first < total; first += most) {
    AttentionHome home{};
    home.first_row = static_cast<std::int32_t>(rows_.size());
    home.num_rows = std::min(most, total - first);
    for (std::int32_t i = 0; i < home.num_rows; ++i) {
      const std::int32_t token = (first + i) / group;
      AttentionRow row{};
      row.offset = ((sequence.first_row + token) * shape.num_heads + (first + i) % group) *
                   shape.head_dim;
      row.end = sequence.first_position + token + 1;
      row.begin = shape.window > 0 ? std::max(0, row.end - shape.window) : 0;
      row.home = static_cast<std::int32_t>(homes_.size());
      row.index = i;
      rows_.push_back(row);
    }
    const AttentionRow& front = rows_[static_cast<std::size_t>(home.first_row)];
    const AttentionRow& back = rows_.back();
    home.first_split = front.begin / kAttentionSplit;
    home.end_split = (back.end - 1) / kAttentionSplit + 1;
    home.fold_end = home.first_split;
    home.slots_per_row = 1;
    if (total <= kSharedRows) {
      Candidate candidate{};
      candidate.home = back.home;
      candidate.begin = (back.begin + kAttentionSplit - 1) / kAttentionSplit;
      candidate.end = front.end / kAttentionSplit;
      candidate.covered = home.first_split;
      candidate.block_table = sequence.block_table;
      candidate.run = -1;
      candidates_.push_back(candidate);
    }
    homes_.push_back(home);
    tables_.push_back(sequence.block_table);
  }
}

// Finds where candidates have the same blocks: split by split, and over as many splits as the same
// ones share.
void AttentionPlan::find_runs() {
  std::int32_t first = candidates_[0].begin;
  std::int32_t end = 0;
  for (const Candidate& candidate : candidates_) {
    first = std::min(first, candidate.begin);
    end = std::max(end, candidate.end);
  }
  hashed_.resize(std::max(hashed_.size(), std::bit_ceil(2 * candidates_.size())));
  counts_.resize(std::max(counts_.size(), candidates_.size()));
  for (std::int32_t split = first; split < end; ++split) {
    group_by_blocks(split);
    extend_runs(split);
  }
}

// Sets the leaders, -1 for candidates that do not see all of the split, and how many each leads.
void AttentionPlan::group_by_blocks(std::int32_t split) {
  const Entries entries = entries_of(split, work_.shape.block_size);
  std::fill(hashed_.begin(), hashed_.end(), 0);
  const std::size_t mask = hashed_.size() - 1;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    counts_[i] = 0;
    candidate.leader = -1;
    if (split < candidate.begin || split >= candidate.end) continue;
    for (std::size_t slot = hash_of(candidate.block_table, entries) & mask;;
         slot = (slot + 1) & mask) {
      if (hashed_[slot] == 0) {
        hashed_[slot] = static_cast<std::int32_t>(i) + 1;
        candidate.leader = static_cast<std::int32_t>(i);
        break;
      }
      const auto other = static_cast<std::size_t>(hashed_[slot] - 1);
      if (std::equal(candidate.block_table + entries.first,
                     candidate.block_table + entries.last + 1,
                     candidates_[other].block_table + entries.first)) {
        candidate.leader = static_cast<std::int32_t>(other);
        break;
      }
    }
    ++counts_[static_cast<std::size_t>(candidate.leader)];
  }
}

// Lengthens the runs whose members are together in this split too, and begins others.
void AttentionPlan::extend_runs(std::int32_t split) {
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& leader = candidates_[i];
    if (leader.leader != static_cast<std::int32_t>(i) || counts_[i] < 2) continue;
    if (leader.run >= 0) {
      Run& run = runs_[static_cast<std::size_t>(leader.run)];
      const auto first = members_.begin() + run.first_member;
      const bool goes_on =
          run.end_split == split && run.num_members == counts_[i] &&
          std::all_of(first, first + run.num_members, [&](std::int32_t member) {
            return candidates_[static_cast<std::size_t>(member)].leader == leader.leader;
          });
      if (goes_on) {
        run.end_split = split + 1;
        continue;
      }
    }
    const auto first_member = static_cast<std::int32_t>(members_.size());
    for (std::size_t j = i; j < candidates_.size(); ++j) {
      if (candidates_[j].leader != static_cast<std::int32_t>(i)) continue;
      candidates_[j].run = static_cast<std::int32_t>(runs_.size());
      members_.push_back(static_cast<std::int32_t>(j));
    }
    runs_.push_back({split, split + 1, first_member, counts_[i]});
  }
}

std::size_t AttentionPlan::member_of(const Run& run, std::int32_t index) const {
  return static_cast<std::size_t>(members_[static_cast<std::size_t>(run.first_member + index)]);
}

// The rows of all members, in as few units as possible.
void AttentionPlan::add_run(const Run& run) {
  const auto first_row = static_cast<std::int32_t>(rows_.size());
  bool folds = true;
  for (std::int32_t i = 0; i < run.num_members; ++i) {
    Candidate& candidate = candidates_[member_of(run, i)];
    candidate.covered = run.end_split;
    const AttentionHome& home = homes_[static_cast<std::size_t>(candidate.home)];
    folds = folds && home.first_split == run.first_split;
    for (std::int32_t j = 0; j < home.num_rows; ++j) {
      const AttentionRow row = rows_[static_cast<std::size_t>(home.first_row + j)];
      rows_.push_back(row);
    }
  }
  const std::int32_t total = static_cast<std::int32_t>(rows_.size()) - first_row;
  const std::int32_t most = rows_per_unit(total);
  const auto leader = member_of(run, 0);
  for (std::int32_t i = 0; i < total; i += most) {
    AttentionUnit unit{};
    unit.block_table = candidates_[leader].block_table;
    unit.first_row = first_row + i;
    unit.num_rows = std::min(most, total - i);
    unit.first_split = run.first_split;
    unit.end_split = run.end_split;
    unit.folds = folds;
    add_span(unit, most);
  }
}

void AttentionPlan::add_own(std::int32_t home, std::int32_t first_split, std::int32_t end_split) {
  if (first_split >= end_split) return;
  const AttentionHome& of_home = homes_[static_cast<std::size_t>(home)];
  AttentionUnit unit{};
  unit.block_table = tables_[static_cast<std::size_t>(home)];
  unit.first_row = of_home.first_row;
  unit.num_rows = of_home.num_rows;
  unit.first_split = first_split;
  unit.end_split = end_split;
  unit.folds = first_split == of_home.first_split;
  unit.whole = unit.folds && end_split == of_home.end_split;
  add_span(unit, unit.num_rows);
}

// `cut_rows` is how many rows it counts for when it is cut: all units of a run are cut alike.
void AttentionPlan::add_span(const AttentionUnit& unit, std::int32_t cut_rows) {
  const AttentionRow& front = rows_[static_cast<std::size_t>(unit.first_row)];
  const AttentionRow& back = rows_[static_cast<std::size_t>(unit.first_row + unit.num_rows - 1)];
  const std::int64_t begin = std::max(front.begin, unit.first_split * kAttentionSplit);
  const std::int64_t end = std::min(back.end, unit.end_split * kAttentionSplit);
  Piece span{};
  span.unit = unit;
  span.cost = (end - begin) * (unit.num_rows + kReadingCost);
  span.cut_cost = (end - begin) * (cut_rows + kReadingCost);
  span.together = std::clamp(kAttentionRows / cut_rows, 1,
                             std::min(kAttentionHeads, work_.shape.num_kv_heads));
  spans_.push_back(span);
}

void AttentionPlan::cut_spans() {
  total_cost_ = 0;
  for (const Piece& span : spans_) total_cost_ += span.cost * work_.shape.num_kv_heads;
  most_cost_ =
      num_threads_ > 1 ? std::max<std::int64_t>(1, total_cost_ / (num_threads_ * kUnitsPerThread))
                       : total_cost_;
  pieces_.clear();
  for (const Piece& span : spans_) {
    const std::int32_t first = span.unit.first_split;
    const std::int64_t splits = span.unit.end_split - first;
    const std::int64_t most = std::max<std::int64_t>(1, most_cost_ / span.together);
    const std::int64_t count = std::clamp<std::int64_t>((span.cut_cost + most - 1) / most, 1, splits);
    for (std::int64_t i = 0; i < count; ++i) {
      add_piece(span, first + static_cast<std::int32_t>(splits * i / count),
                first + static_cast<std::int32_t>(splits * (i + 1) / count));
    }
  }
}

void AttentionPlan::add_piece(const Piece& span, std::int32_t first_split, std::int32_t end_split) {
  Piece piece = span;
  const std::int64_t splits = span.unit.end_split - span.unit.first_split;
  piece.unit.first_split = first_split;
  piece.unit.end_split = end_split;
  piece.unit.folds = span.unit.folds && first_split == span.unit.first_split;
  piece.unit.whole = span.unit.whole && end_split - first_split == splits;
  piece.cost = span.cost * (end_split - first_split) / splits;
  piece.order = static_cast<std::int32_t>(pieces_.size());
  pieces_.push_back(piece);
  if (piece.unit.whole) {
    homes_[static_cast<std::size_t>(rows_[static_cast<std::size_t>(piece.unit.first_row)].home)]
        .slots_per_row = 0;
    return;
  }
  std::int32_t last = -1;
  for (std::int32_t i = 0; i < piece.unit.num_rows; ++i) {
    const std::int32_t id = rows_[static_cast<std::size_t>(piece.unit.first_row + i)].home;
    if (id == last) continue;
    last = id;
    AttentionHome& home = homes_[static_cast<std::size_t>(id)];
    ++home.num_units;
    if (piece.unit.folds) home.fold_end = end_split;
  }
}

void AttentionPlan::place_slots() {
  std::int64_t total = 0;
  for (AttentionHome& home : homes_) {
    if (home.slots_per_row == 0) continue;
    home.first_slot = total;
    home.slots_per_row = 1 + home.end_split - home.fold_end;
    total += std::int64_t{home.num_rows} * home.slots_per_row;
  }
  const auto heads = static_cast<std::size_t>(work_.shape.num_kv_heads);
  work_.num_slots = total;
  work_.slot_floats = 8 + round_up(work_.shape.head_dim, 8);
  constexpr std::size_t kLine = 64 / sizeof(float);
  const std::size_t floats = heads * static_cast<std::size_t>(total * work_.slot_floats) + kLine;
  if (slots_.size() < floats) slots_.resize(floats);
  const auto address = reinterpret_cast<std::uintptr_t>(slots_.data());
  work_.slots = slots_.data() + (64 - address % 64) % 64 / sizeof(float);
  pending_.resize(homes_.size() * heads);
  for (std::size_t i = 0; i < pending_.size(); ++i) pending_[i] = homes_[i / heads].num_units;
}

void AttentionPlan::make_tasks() {
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.order < b.order;
  });
  const std::int64_t enough =
      std::max(kLeastTaskCost, total_cost_ / (num_threads_ * kTasksPerThread));
  units_.clear();
  task_begins_.clear();
  std::int64_t cost = enough;
  for (const Piece& piece : pieces_) {
    const bool stays = piece.cost * piece.together <= most_cost_;
    for (std::int32_t kv_head = 0; kv_head < work_.shape.num_kv_heads; ++kv_head) {
      if (cost >= enough && !(stays && kv_head % piece.together > 0)) {
        task_begins_.push_back(static_cast<std::int64_t>(units_.size()));
        cost = 0;
      }
      cost += piece.cost;
      units_.push_back(piece.unit);
      units_.back().kv_head = kv_head;
    }
  }
  task_begins_.push_back(static_cast<std::int64_t>(units_.size()));
  work_.units = units_.data();
  work_.task_begins = task_begins_.data();
  work_.rows = rows_.data();
  work_.homes = homes_.data();
  work_.pending = pending_.data();
}

std::size_t AttentionPlan::memory_bytes() const {
  const auto bytes = [](const auto& list) { return list.capacity() * sizeof(list[0]); };
  return bytes(rows_) + bytes(homes_) + bytes(tables_) + bytes(candidates_) + bytes(runs_) +
         bytes(members_) + bytes(hashed_) + bytes(counts_) + bytes(spans_) + bytes(pieces_) +
         bytes(units_) + bytes(task_begins_) + bytes(pending_) + bytes(slots_);
}

bool end_part(const AttentionWork& work, std::int32_t home, std::int32_t kv_head) {
  std::int32_t& pending = work.pending[home * work.shape.num_kv_heads + kv_head];
  // What other units left in the slots is seen by the one that comes last.
  if (std::atomic_ref(pending).fetch_sub(1, std::memory_order_acq_rel) > 1) return false;
  pending = work.homes[home].num_units;
  return true;
}

}  // namespace looseleaf
