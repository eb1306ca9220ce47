#include "row_program.h"

#include "backend.h"
#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace les {

bool is_streamed(const ggml_tensor * t) {
    return t && t->buffer && t->buffer->buft == streamed_buffer_type();
}

static bool is_streamed_matmul(const ggml_tensor * t) {
    return t && t->op == GGML_OP_MUL_MAT_ID && is_streamed(t->src[0]);
}

bool is_row_op(const ggml_tensor * t) {
    for (int depth = 0; t && depth < 8; depth++) {
        switch (t->op) {
            case GGML_OP_GLU:
            case GGML_OP_ADD_ID:
            case GGML_OP_UNARY:
            case GGML_OP_CLAMP:
            case GGML_OP_SQR:
            case GGML_OP_VIEW:
                break;
            default:
                return false;
        }
        t = t->src[0];
        if (is_streamed_matmul(t)) {
            return true;
        }
    }
    return false;
}

void Scratch::reset() {
    if (blocks_.size() > 1) {
        size_t total = 0;
        for (const auto & b : blocks_) {
            total += b.size();
        }
        blocks_.clear();
        blocks_.emplace_back(total);
    }
    used_ = 0;
}

uint8_t * Scratch::take(size_t bytes) {
    bytes = (bytes + 127) & ~size_t(63);
    if (blocks_.empty() || used_ + bytes > blocks_.back().size()) {
        blocks_.emplace_back(std::max<size_t>(bytes, 1 << 20));
        used_ = 0;
    }
    uint8_t * p = blocks_.back().data() + used_;
    used_ += bytes;
    return reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t(63));
}

RowProgram::RowProgram(ggml_cgraph * graph, int begin, const ExpertMap & map, Scratch & scratch)
    : map_(map), scratch_(scratch), end_(begin) {
    for (; end_ < graph->n_nodes; end_++) {
        ggml_tensor * node = graph->nodes[end_];
        if (is_streamed_matmul(node)) {
            const int layer = map.layer_of_block(atoi(node->src[0]->name + 4));
            if (layer_ >= 0 && (layer != layer_ || node->src[2]->data != ids_->data)) {
                break;
            }
            if (layer_ < 0) {
                layer_ = layer;
                ids_   = node->src[2];
                input_ = node->src[1];
            }
        } else if (!is_row_op(node)) {
            break;
        }
        nodes_.push_back(node);
    }
    for (ggml_tensor * n : nodes_) {
        const bool consumed = std::any_of(nodes_.begin(), nodes_.end(),
                                          [n](const ggml_tensor * m) { return m->src[0] == n || m->src[1] == n; });
        if (!consumed && n->op != GGML_OP_VIEW) {
            outputs_.push_back(n);
        }
    }
}

std::vector<Row> RowProgram::rows() const {
    std::vector<Row> rows;
    rows.reserve(size_t(ggml_nelements(ids_)));
    for (int64_t t = 0; t < ids_->ne[1]; t++) {
        for (int64_t k = 0; k < ids_->ne[0]; k++) {
            const auto * id = reinterpret_cast<const int32_t *>(static_cast<const char *>(ids_->data) +
                                                                t * ids_->nb[1] + k * ids_->nb[0]);
            rows.push_back({ int32_t(t), int32_t(k), *id });
        }
    }
    return rows;
}

float * RowProgram::shared_input() const {
    const bool shared = input_->type == GGML_TYPE_F32 && input_->ne[1] == 1 && ggml_is_contiguous(input_);
    return shared ? static_cast<float *>(input_->data) : nullptr;
}

std::vector<size_t> RowProgram::phase(int expert, size_t align) const {
    const MoeLayer &    layer = map_.layers[layer_];
    std::vector<size_t> offsets;
    for (size_t p = 0; p < layer.projections.size(); p++) {
        offsets.push_back(map_.slot_offset(layer, int(p), expert, align));
    }
    return offsets;
}

bool RowProgram::one_group(const std::vector<Row> & rows, const std::vector<int> & slots, const ExpertCache & cache,
                           size_t align) const {
    for (size_t i = 1; i < rows.size(); i++) {
        if (cache.in_pool(slots[i]) != cache.in_pool(slots[0])) {
            return false;
        }
        if (!map_.layers[layer_].uniform_phase && phase(rows[i].expert, align) != phase(rows[0].expert, align)) {
            return false;
        }
    }
    return true;
}

std::vector<RowProgram::Group> RowProgram::split(const std::vector<Row> & rows, const std::vector<int> & slots,
                                                 const ExpertCache & cache, size_t align) const {
    std::vector<Group> groups;
    if (one_group(rows, slots, cache, align)) {
        groups.push_back({ rows, slots });
    } else {
        std::map<std::pair<bool, std::vector<size_t>>, Group> parts;
        for (size_t i = 0; i < rows.size(); i++) {
            Group & g = parts[{ cache.in_pool(slots[i]), phase(rows[i].expert, align) }];
            g.rows.push_back(rows[i]);
            g.slots.push_back(slots[i]);
        }
        for (auto & part : parts) {
            groups.push_back(std::move(part.second));
        }
    }
    for (Group & g : groups) {
        const auto range = std::minmax_element(g.slots.begin(), g.slots.end());
        g.begin          = *range.first;
        g.count          = *range.second - g.begin + 1;
    }
    return groups;
}

ggml_tensor * RowProgram::arena(ggml_context * ctx, const ggml_tensor * weight, const Group & group,
                                const ExpertCache & cache, size_t align) const {
    const MoeLayer &  layer = map_.layers[layer_];
    const std::string name  = weight->name;
    const size_t      at    = name.find(".ffn_") + 5;
    const int         p     = layer.find(name.substr(at, name.find("_exps") - at));
    ggml_tensor *     a     = ggml_new_tensor_3d(ctx, weight->type, weight->ne[0], weight->ne[1], group.count);
    a->nb[2]                = cache.slot_bytes();
    a->nb[3]                = cache.slot_bytes() * size_t(group.count);
    a->data                 = cache.memory(group.begin) + map_.slot_offset(layer, p, group.rows[0].expert, align);
    return a;
}

void RowProgram::save_inputs() {
    if (saved_input_.empty()) {
        const size_t bytes = input_->nb[2] * size_t(input_->ne[2]);
        saved_input_.assign(static_cast<uint8_t *>(input_->data), static_cast<uint8_t *>(input_->data) + bytes);
    }
}

ggml_tensor * RowProgram::gather_input(ggml_context * ctx, const Group & group) const {
    const int64_t n = int64_t(group.rows.size());
    if (ids_->ne[1] == 1 && input_->ne[1] == 1) {
        ggml_tensor * x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, input_->ne[0], 1, 1);
        x->data         = const_cast<uint8_t *>(saved_input_.data());
        return x;
    }
    const bool    one_token = ids_->ne[1] == 1;
    ggml_tensor * x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, input_->ne[0], one_token ? n : 1, one_token ? 1 : n);
    x->data         = scratch_.take(ggml_nbytes(x));
    for (int64_t i = 0; i < n; i++) {
        const size_t choice = input_->ne[1] == 1 ? 0 : size_t(group.rows[i].choice);
        memcpy(static_cast<char *>(x->data) + size_t(i) * input_->ne[0] * sizeof(float),
               saved_input_.data() + choice * input_->nb[1] + size_t(group.rows[i].token) * input_->nb[2],
               size_t(input_->ne[0]) * sizeof(float));
    }
    return x;
}

void RowProgram::add_group(ggml_context * ctx, ggml_cgraph * out, const Group & group, const ExpertCache & cache,
                           size_t align, std::vector<ggml_tensor *> & results, Inputs & inputs) const {
    const int64_t n     = int64_t(group.rows.size());
    const int64_t dim_k = ids_->ne[1] == 1 ? n : 1;  // one token: its choices side by side
    const int64_t dim_t = ids_->ne[1] == 1 ? 1 : n;  // several: every row a token of its own

    ggml_tensor * slot_ids   = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, dim_k, dim_t);
    ggml_tensor * expert_ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, dim_k, dim_t);
    slot_ids->data           = scratch_.take(ggml_nbytes(slot_ids));
    expert_ids->data         = scratch_.take(ggml_nbytes(expert_ids));
    for (int64_t i = 0; i < n; i++) {
        static_cast<int32_t *>(slot_ids->data)[i]   = group.slots[i] - group.begin;
        static_cast<int32_t *>(expert_ids->data)[i] = group.rows[i].expert;
    }
    std::map<const ggml_tensor *, ggml_tensor *> mine;
    mine[input_] = gather_input(ctx, group);
    for (const ggml_tensor * node : nodes_) {
        ggml_tensor * src0 = node->src[0];
        ggml_tensor * r    = nullptr;
        if (node->op == GGML_OP_MUL_MAT_ID) {
            r = ggml_mul_mat_id(ctx, arena(ctx, src0, group, cache, align), mine.at(node->src[1]), slot_ids);
            memcpy(r->op_params, node->op_params, sizeof(r->op_params));
            inputs.push_back({ src0, r->src[1] });
        } else if (node->op == GGML_OP_ADD_ID) {
            r = ggml_add_id(ctx, mine.at(src0), node->src[1], expert_ids);
        } else if (node->op == GGML_OP_VIEW) {
            ggml_tensor * base = mine.at(src0);
            r                  = ggml_view_3d(ctx, base, node->ne[0], dim_k, dim_t, base->nb[1], base->nb[2],
                                              node->view_offs - src0->view_offs);
            mine[node]         = r;
            r->data            = static_cast<char *>(base->data) + r->view_offs - base->view_offs;
            continue;
        } else {
            r     = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, node->ne[0], dim_k, dim_t);
            r->op = node->op;
            memcpy(r->op_params, node->op_params, sizeof(r->op_params));
            for (int s = 0; s < 2 && node->src[s]; s++) {
                r->src[s] = mine.at(node->src[s]);
            }
        }
        r->data = scratch_.take(ggml_nbytes(r));
        r->flags |= GGML_TENSOR_FLAG_COMPUTE;
        out->nodes[out->n_nodes++] = r;
        mine[node]                 = r;
    }
    for (const ggml_tensor * o : outputs_) {
        results.push_back(mine.at(o));
    }
}

// One row per routed row, or one for all of them.
void RowProgram::add_inputs(const Group & group, const Inputs & inputs, InputSums & sums) {
    for (const auto & [weight, input] : inputs) {
        const bool   shared = ggml_nrows(input) == 1;
        const auto * rows   = static_cast<const float *>(input->data);
        for (size_t i = 0; i < group.rows.size(); i++) {
            sums.add_expert_row(weight, group.rows[i].expert, rows + (shared ? 0 : int64_t(i) * input->ne[0]));
        }
    }
}

// ggml contexts here hold only tensor descriptions.
static ggml_context * descriptions(std::vector<uint8_t> & memory, size_t tensors) {
    const size_t need = tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(tensors, false);
    if (memory.size() < need) {
        memory.resize(need);
    }
    return ggml_init({ memory.size(), memory.data(), true });
}

static thread_local std::vector<uint8_t> t_descriptions;

ggml_status RowProgram::run_all(const std::vector<Row> & rows, const std::vector<int> & slots, ExpertCache & cache,
                                size_t align, ggml_backend_t cpu) {
    scratch_.reset();
    const Group    group = split(rows, slots, cache, align)[0];
    const size_t   count = 3 * nodes_.size() + 4;
    ggml_context * ctx   = descriptions(t_descriptions, count);
    ggml_cgraph *  graph = ggml_new_graph_custom(ctx, count, false);

    ggml_tensor * slot_ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, ids_->ne[0], ids_->ne[1]);
    slot_ids->data         = scratch_.take(ggml_nbytes(slot_ids));
    for (size_t i = 0; i < rows.size(); i++) {
        static_cast<int32_t *>(slot_ids->data)[i] = slots[i] - group.begin;
    }
    std::map<const ggml_tensor *, ggml_tensor *> mine;
    for (ggml_tensor * node : nodes_) {
        ggml_tensor * copy = ggml_new_tensor(ctx, node->type, GGML_MAX_DIMS, node->ne);
        *copy              = *node;
        copy->buffer       = nullptr;
        for (auto & src : copy->src) {
            auto it = mine.find(src);
            src     = it == mine.end() ? src : it->second;
        }
        if (node->op == GGML_OP_MUL_MAT_ID) {
            copy->src[0] = arena(ctx, node->src[0], group, cache, align);
            copy->src[2] = slot_ids;
        }
        copy->flags |= GGML_TENSOR_FLAG_COMPUTE;
        mine[node]                     = copy;
        graph->nodes[graph->n_nodes++] = copy;
    }
    const ggml_status status = ggml_backend_graph_compute(cpu, graph);
    ggml_free(ctx);
    return status;
}

ggml_status RowProgram::run_wave(const std::vector<Row> & rows, const std::vector<int> & slots, ExpertCache & cache,
                                 size_t align, ggml_backend_t cpu, InputSums * sums) {
    save_inputs();
    scratch_.reset();
    const auto     groups = split(rows, slots, cache, align);
    const size_t   count  = groups.size() * (3 * nodes_.size() + 4);
    ggml_context * ctx    = descriptions(t_descriptions, count);
    ggml_cgraph *  graph  = ggml_new_graph_custom(ctx, count, false);

    std::vector<std::vector<ggml_tensor *>> results(groups.size());
    std::vector<Inputs>                     inputs(groups.size());
    for (size_t g = 0; g < groups.size(); g++) {
        add_group(ctx, graph, groups[g], cache, align, results[g], inputs[g]);
    }
    const ggml_status status = ggml_backend_graph_compute(cpu, graph);
    for (size_t g = 0; status == GGML_STATUS_SUCCESS && g < groups.size(); g++) {
        if (sums) {
            add_inputs(groups[g], inputs[g], *sums);
        }
        for (size_t o = 0; o < outputs_.size(); o++) {
            const size_t row_bytes = size_t(outputs_[o]->ne[0]) * sizeof(float);
            for (size_t i = 0; i < groups[g].rows.size(); i++) {
                const Row & row = groups[g].rows[i];
                memcpy(static_cast<char *>(outputs_[o]->data) + size_t(row.choice) * outputs_[o]->nb[1] +
                           size_t(row.token) * outputs_[o]->nb[2],
                       static_cast<char *>(results[g][o]->data) + i * row_bytes, row_bytes);
            }
        }
    }
    ggml_free(ctx);
    return status;
}

}  // namespace les
