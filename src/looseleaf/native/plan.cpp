#include "plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace looseleaf {

namespace {

std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

// Cuts the ops into passes.
class Planner {
 public:
  Planner(const std::vector<BufferRecord>& buffers, const std::vector<OpRecord>& ops,
          const std::vector<bool>& is_quantized)
      : buffers_(buffers),
        ops_(ops),
        is_quantized_(is_quantized),
        readers_(buffers.size()),
        read_as_floats_(buffers.size()) {
    for (const OpRecord& op : ops_) {
      for (std::int32_t id : {op.first, op.second}) {
        if (id >= 0) ++readers_[at(id)];
      }
    }
  }

  Plan plan() {
    while (next_ < ops_.size()) {
      const OpRecord& op = ops_[next_];
      switch (op.kind) {
        case OpKind::embed: add_embed(op); break;
        case OpKind::linear: add_products(); break;
        case OpKind::rms_norm: add_norm(op, op.first, false, 1); break;
        case OpKind::rope: add_rope(op); break;
        case OpKind::write_kv: add_write(op); break;
        case OpKind::paged_attention: add_attention(op); break;
        case OpKind::add: add_pair(PassKind::add, op); break;
        case OpKind::silu_mul: add_pair(PassKind::silu_mul, op); break;
        case OpKind::sampled_rows: add_sampled(op); break;
        case OpKind::logits:
          plan_.result = op.first;
          ++next_;
          break;
      }
    }
    for (Pass& pass : plan_.passes) {
      if (pass.quantized_out >= 0) pass.stores_target = read_as_floats_[at(pass.target)];
    }
    return std::move(plan_);
  }

 private:
  // The op `ahead` places on, if it is of that kind.
  const OpRecord* following(std::size_t ahead, OpKind kind) const {
    if (next_ + ahead >= ops_.size() || ops_[next_ + ahead].kind != kind) return nullptr;
    return &ops_[next_ + ahead];
  }

  Pass& start(PassKind kind, std::size_t num_ops) {
    Pass pass{};
    pass.kind = kind;
    pass.first_op = static_cast<std::int32_t>(next_);
    pass.layer = ops_[next_].layer;
    next_ += num_ops;
    return plan_.passes.emplace_back(std::move(pass));
  }

  void reads_floats(std::int32_t id) { read_as_floats_[at(id)] = true; }

  bool takes_quantized(const OpRecord& linear) const { return is_quantized_[at(linear.weight)]; }

  // Puts the rows of `id` into an area, which has space for as many groups as they have.
  void hold(int area, std::int32_t id) {
    held_[area] = id;
    plan_.area_groups[area] =
        std::max(plan_.area_groups[area], buffers_[at(id)].columns / kGroupSize);
  }

  void add_embed(const OpRecord& op) {
    Pass& pass = start(PassKind::embed, 1);
    pass.target = op.target;
    pass.weight = op.weight;
  }

  void add_norm(const OpRecord& op, std::int32_t source, bool reads_sampled, std::size_t num_ops) {
    Pass& pass = start(PassKind::norm, num_ops);
    pass.source = source;
    pass.target = op.target;
    pass.weight = op.weight;
    pass.number = op.number;
    pass.reads_sampled = reads_sampled;
    reads_floats(source);
    const OpRecord* linear = following(0, OpKind::linear);
    if (linear != nullptr && linear->first == op.target && takes_quantized(*linear)) {
      pass.quantized_out = 0;
      hold(0, op.target);
    }
  }

  void add_sampled(const OpRecord& op) {
    const OpRecord* norm = following(1, OpKind::rms_norm);
    if (norm != nullptr && norm->first == op.target && readers_[at(op.target)] == 1) {
      add_norm(*norm, op.first, true, 2);
      return;
    }
    Pass& pass = start(PassKind::sampled_rows, 1);
    pass.source = op.first;
    pass.target = op.target;
    reads_floats(op.first);
  }

  void add_products() {
    const OpRecord& first = ops_[next_];
    const bool quantized = takes_quantized(first);
    std::size_t count = 1;
    while (const OpRecord* other = following(count, OpKind::linear)) {
      if (other->first != first.first || takes_quantized(*other) != quantized) break;
      ++count;
    }
    const OpRecord* silu = following(count, OpKind::silu_mul);
    if (count == 2 && silu != nullptr && quantized && is_gate(first, ops_[next_ + 1], *silu)) {
      add_gate(first, ops_[next_ + 1], *silu);
      return;
    }
    const OpRecord* sum = following(count, OpKind::add);
    const std::int32_t residual =
        count == 1 && sum != nullptr && first.bias < 0 ? other_than(*sum, first.target) : -1;
    Pass& pass = start(PassKind::project, count + (residual >= 0 ? 1 : 0));
    take_source(pass, first.first, quantized);
    for (std::size_t i = 0; i < count; ++i) {
      const OpRecord& op = ops_[at(pass.first_op) + i];
      pass.products.push_back({op.weight, op.bias, -1, op.target});
    }
    if (residual >= 0) {
      pass.products[0].residual = residual;
      pass.products[0].target = sum->target;
      reads_floats(residual);
    }
  }

  // The other input of a sum that nobody else reads `id` for; -1 if there is none.
  std::int32_t other_than(const OpRecord& sum, std::int32_t id) const {
    if (readers_[at(id)] != 1 || sum.first == sum.second) return -1;
    return sum.first == id ? sum.second : sum.second == id ? sum.first : -1;
  }

  bool is_gate(const OpRecord& gate, const OpRecord& up, const OpRecord& silu) const {
    return silu.first == gate.target && silu.second == up.target &&
           readers_[at(gate.target)] == 1 && readers_[at(up.target)] == 1 &&
           buffers_[at(silu.target)].columns % kGroupSize == 0;
  }

  void add_gate(const OpRecord& gate, const OpRecord& up, const OpRecord& silu) {
    Pass& pass = start(PassKind::gate, 3);
    take_source(pass, gate.first, true);
    pass.target = silu.target;
    pass.products = {{gate.weight, gate.bias, -1, -1}, {up.weight, up.bias, -1, -1}};
    const OpRecord* linear = following(0, OpKind::linear);
    if (linear != nullptr && linear->first == silu.target && takes_quantized(*linear)) {
      // A gate's own source is never in area 1: nobody else writes there.
      pass.quantized_out = 1;
      hold(1, silu.target);
    }
  }

  void take_source(Pass& pass, std::int32_t source, bool quantized) {
    pass.source = source;
    if (quantized) {
      for (int area = 0; area < kNumAreas; ++area) {
        if (held_[area] == source && !(pass.kind == PassKind::gate && area == 1)) {
          pass.quantized_in = area;
          return;
        }
      }
      pass.quantized_in = 0;
      pass.quantizes_source = true;
      hold(0, source);
    }
    reads_floats(source);
  }

  void add_rope(const OpRecord& op) {
    const OpRecord* other = following(1, OpKind::rope);
    const OpRecord* write = following(2, OpKind::write_kv);
    const bool together = other != nullptr && write != nullptr && write->first == other->target &&
                          other->first != op.target;
    Pass& pass = start(PassKind::rope, together ? 3 : 1);
    pass.rotations.push_back({op.first, op.target, op.weight});
    reads_floats(op.first);
    if (!together) return;
    pass.rotations.push_back({other->first, other->target, other->weight});
    pass.keys = write->first;
    pass.values = write->second;
    pass.layer = write->layer;
    for (std::int32_t id : {other->first, write->first, write->second}) reads_floats(id);
  }

  void add_write(const OpRecord& op) {
    Pass& pass = start(PassKind::write_kv, 1);
    pass.keys = op.first;
    pass.values = op.second;
    reads_floats(op.first);
    reads_floats(op.second);
  }

  void add_attention(const OpRecord& op) {
    Pass& pass = start(PassKind::attention, 1);
    pass.source = op.first;
    pass.target = op.target;
    pass.number = op.number;
    pass.window = op.window;
    reads_floats(op.first);
  }

  void add_pair(PassKind kind, const OpRecord& op) {
    Pass& pass = start(kind, 1);
    pass.source = op.first;
    pass.second = op.second;
    pass.target = op.target;
    reads_floats(op.first);
    reads_floats(op.second);
  }

  const std::vector<BufferRecord>& buffers_;
  const std::vector<OpRecord>& ops_;
  const std::vector<bool>& is_quantized_;
  std::vector<int> readers_;           // ops that read a buffer
  std::vector<bool> read_as_floats_;   // whether a pass does
  std::int32_t held_[kNumAreas] = {-1, -1};
  std::size_t next_ = 0;
  Plan plan_;
};

// The buffers that a pass reads and writes as floats.
std::vector<std::int32_t> reads(const Pass& pass) {
  std::vector<std::int32_t> ids = {pass.second, pass.keys, pass.values};
  if (pass.quantized_in < 0 || pass.quantizes_source) ids.push_back(pass.source);
  for (const Product& product : pass.products) ids.push_back(product.residual);
  for (const Rotation& rotation : pass.rotations) ids.push_back(rotation.source);
  std::erase_if(ids, [](std::int32_t id) { return id < 0; });
  return ids;
}

std::vector<std::int32_t> writes(const Pass& pass) {
  std::vector<std::int32_t> ids;
  if (pass.target >= 0 && pass.stores_target) ids.push_back(pass.target);
  for (const Product& product : pass.products) ids.push_back(product.target);
  for (const Rotation& rotation : pass.rotations) ids.push_back(rotation.target);
  std::erase_if(ids, [](std::int32_t id) { return id < 0; });
  return ids;
}

// The buffers that may be overwritten by the buffer `target`, which a pass writes: it reads each
// number of them before it writes the one in that place, and not again.
std::vector<std::int32_t> replaceable(const Pass& pass, std::int32_t target) {
  switch (pass.kind) {
    case PassKind::add:
    case PassKind::silu_mul:
      return {pass.source, pass.second};
    case PassKind::norm:
      return {pass.reads_sampled ? -1 : pass.source};
    case PassKind::project:
      for (const Product& product : pass.products) {
        if (product.target == target) return {product.residual};
      }
      return {};
    case PassKind::rope:
      for (const Rotation& rotation : pass.rotations) {
        if (rotation.target == target) return {rotation.source};
      }
      return {};
    default:
      return {};
  }
}

// Gives each buffer a region of memory: one that is free at that moment, or the one of a buffer
// that it may overwrite and that nobody reads afterwards.
void assign_regions(const std::vector<BufferRecord>& buffers, Plan& plan) {
  std::vector<std::size_t> last_use(buffers.size(), 0);
  for (std::size_t i = 0; i < plan.passes.size(); ++i) {
    for (std::int32_t id : reads(plan.passes[i])) last_use[at(id)] = i;
    for (std::int32_t id : writes(plan.passes[i])) last_use[at(id)] = i;
  }
  plan.region_of.assign(buffers.size(), -1);
  std::vector<std::int32_t> free_regions;
  for (std::size_t i = 0; i < plan.passes.size(); ++i) {
    const Pass& pass = plan.passes[i];
    std::vector<std::int32_t> replaced;
    for (std::int32_t target : writes(pass)) {
      if (target == plan.result) continue;
      const std::int64_t wanted = buffers[at(target)].columns;
      auto& region = plan.region_of[at(target)];
      for (std::int32_t id : replaceable(pass, target)) {
        if (region < 0 && id >= 0 && last_use[at(id)] == i && plan.region_of[at(id)] >= 0 &&
            buffers[at(id)].columns == wanted) {
          region = plan.region_of[at(id)];
          replaced.push_back(id);
        }
      }
      if (region >= 0) continue;
      if (!free_regions.empty()) {
        region = free_regions.back();
        free_regions.pop_back();
        auto& width = plan.region_columns[at(region)];
        width = std::max(width, wanted);
      } else {
        region = static_cast<std::int32_t>(plan.region_columns.size());
        plan.region_columns.push_back(wanted);
      }
    }
    for (std::size_t id = 0; id < buffers.size(); ++id) {
      const bool was_replaced =
          std::find(replaced.begin(), replaced.end(), static_cast<std::int32_t>(id)) !=
          replaced.end();
      if (last_use[id] == i && plan.region_of[id] >= 0 && !was_replaced) {
        free_regions.push_back(plan.region_of[id]);
      }
    }
  }
}

}  // namespace

const char* name_of(PassKind kind) {
  switch (kind) {
    case PassKind::embed: return "embed";
    case PassKind::norm: return "norm";
    case PassKind::project: return "project";
    case PassKind::gate: return "gate";
    case PassKind::rope: return "rope";
    case PassKind::write_kv: return "write_kv";
    case PassKind::attention: return "attention";
    case PassKind::add: return "add";
    case PassKind::silu_mul: return "silu_mul";
    case PassKind::sampled_rows: return "sampled_rows";
  }
  return "";
}

Plan make_plan(const std::vector<BufferRecord>& buffers, const std::vector<OpRecord>& ops,
               const std::vector<bool>& is_quantized) {
  Plan plan = Planner(buffers, ops, is_quantized).plan();
  assign_regions(buffers, plan);
  return plan;
}

}  // namespace looseleaf
