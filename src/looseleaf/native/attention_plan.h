// How the attention of a step is cut into units of work, once for all its layers.
//
//     sequences that share blocks    A  |#########|aaaa|         #: one unit reads this for A, B and C
//                                    B  |#########|bb|           a, b, c: a unit for each
//                                    C  |#########|cccccc|
//     few, long sequences            |1111|2222|3333|            a unit for each part
//     prefill                        tiles of `kAttentionRows` rows, each over all that it sees
//
// Splits are independent, and merged in rising order whoever computed them: so results do not depend
// on the plan. The units of a plan come in falling order of size, in tasks of about equal
// size; those that differ only in their KV head stay together, unless threads would go idle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention.h"

namespace looseleaf {

class AttentionPlan {
 public:
  // Plans for sequences with these new tokens. Block tables must stay as they are until the step is
  // over. Memory of earlier plans is used again, and grows only where a plan is larger than all
  // before.
  void build(const AttentionShape& shape, const AttentionSequence* sequences,
             std::int32_t num_sequences, int num_threads);

  // Tasks to share among threads, one at a time. Valid, as is the work, until the next `build`.
  std::int64_t num_tasks() const { return static_cast<std::int64_t>(task_begins_.size()) - 1; }
  const AttentionWork& work() const { return work_; }

  std::size_t memory_bytes() const;

 private:
  // Splits in which several sequences have the same blocks.
  struct Run {
    std::int32_t first_split;
    std::int32_t end_split;
    std::int32_t first_member;  // in `members_`
    std::int32_t num_members;
  };

  // A sequence of so few rows that it is worth running them together with those of others.
  struct Candidate {
    const std::int32_t* block_table;
    std::int32_t home;
    std::int32_t begin;    // the splits that all its rows see in full
    std::int32_t end;
    std::int32_t covered;  // up to this split, its units are planned
    std::int32_t leader;   // in the split at hand: the first with the same blocks
    std::int32_t run;      // of the leader's last group
  };

  // Units of all KV heads that differ in nothing else.
  struct Piece {
    AttentionUnit unit;
    std::int64_t cost;      // of one unit, in rows times positions, more or less
    std::int64_t cut_cost;  // what decides into how many it is cut: the same for all of a run
    std::int32_t together;  // units that take turns
    std::int32_t order;
  };

  void add_homes(const AttentionSequence& sequence);
  void find_runs();
  void group_by_blocks(std::int32_t split);
  void extend_runs(std::int32_t split);
  std::size_t member_of(const Run& run, std::int32_t index) const;  // in `candidates_`
  void add_run(const Run& run);
  void add_own(std::int32_t home, std::int32_t first_split, std::int32_t end_split);
  void add_span(const AttentionUnit& unit, std::int32_t cut_rows);
  void cut_spans();
  void add_piece(const Piece& span, std::int32_t first_split, std::int32_t end_split);
  void place_slots();
  void make_tasks();

  AttentionWork work_{};
  int num_threads_ = 1;
  std::int64_t total_cost_ = 0;
  std::int64_t most_cost_ = 0;  // of units that take turns

  std::vector<AttentionRow> rows_;
  std::vector<AttentionHome> homes_;
  std::vector<const std::int32_t*> tables_;  // of each home
  std::vector<Candidate> candidates_;
  std::vector<Run> runs_;
  std::vector<std::int32_t> members_;  // indices of candidates
  std::vector<std::int32_t> hashed_;   // hash table: candidate + 1, or 0
  std::vector<std::int32_t> counts_;   // of each leader
  std::vector<Piece> spans_;           // before they are cut
  std::vector<Piece> pieces_;
  std::vector<AttentionUnit> units_;
  std::vector<std::int64_t> task_begins_ = {0};
  std::vector<std::int32_t> pending_;
  std::vector<float> slots_;
};

}  // namespace looseleaf
