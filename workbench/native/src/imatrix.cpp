#include "imatrix.h"

#include "row_program.h"
#include "session.h"

#include <cmath>
#include <cstring>

namespace les {

namespace {

const char * input_row(const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3 = 0) {
    return static_cast<const char *>(t->data) + i1 * int64_t(t->nb[1]) + i2 * int64_t(t->nb[2]) +
           i3 * int64_t(t->nb[3]);
}

}  // namespace

// Which inputs count is upstream's rule: all expert matrices, and blocks' dense ones fed 16 rows or more.
bool InputSums::on_node(ggml_tensor * node, bool ask, void * self) {
    auto * sums = static_cast<InputSums *>(self);
    if (ask) {
        const ggml_tensor * weight = node->src[0];
        const ggml_tensor * input  = node->src[1];
        if (node->op == GGML_OP_MUL_MAT_ID) {
            return !is_streamed(weight);
        }
        return node->op == GGML_OP_MUL_MAT && input->type == GGML_TYPE_F32 && input->ne[1] >= 16 &&
               strncmp(weight->name, "blk.", 4) == 0;
    }
    if (node->op == GGML_OP_MUL_MAT_ID) {
        sums->add_routed(node);
    } else {
        sums->add_dense(node);
    }
    return sums->error_.empty();
}

InputSums::Entry & InputSums::entry(const ggml_tensor * weight, int64_t n_matrix, int64_t n_count) {
    Entry & e = entries_[weight->name];
    if (e.sums.empty()) {
        e.width = weight->ne[0];
        e.sums.resize(size_t(e.width * n_matrix));
        e.counts.resize(size_t(n_count));
    }
    return e;
}

void InputSums::add(Entry & e, const std::string & name, int64_t matrix, const float * row) {
    double * sums  = e.sums.data() + matrix * e.width;
    double   check = 0;
    for (int64_t j = 0; j < e.width; j++) {
        const double square = double(row[j]) * double(row[j]);
        sums[j] += square;
        check += square;
    }
    if (!std::isfinite(check) && error_.empty()) {
        error_ = "the inputs of " + name + " are not finite: the model's weights are damaged";
    }
}

void InputSums::add_expert_row(const ggml_tensor * weight, int64_t expert, const float * row) {
    Entry & e = entry(weight, weight->ne[2], weight->ne[2]);
    e.counts[size_t(expert)]++;
    add(e, weight->name, expert, row);
}

void InputSums::add_routed(const ggml_tensor * node) {
    const ggml_tensor * input = node->src[1];
    const ggml_tensor * ids   = node->src[2];
    for (int64_t t = 0; t < ids->ne[1]; t++) {
        for (int64_t k = 0; k < ids->ne[0]; k++) {
            const int32_t expert = *reinterpret_cast<const int32_t *>(
                static_cast<const char *>(ids->data) + t * int64_t(ids->nb[1]) + k * int64_t(ids->nb[0]));
            add_expert_row(node->src[0], expert,
                           reinterpret_cast<const float *>(input_row(input, k % input->ne[1], t)));
        }
    }
}

void InputSums::add_dense(const ggml_tensor * node) {
    const ggml_tensor * weight = node->src[0];
    const ggml_tensor * input  = node->src[1];
    const int64_t       n      = weight->ne[2] * weight->ne[3];
    Entry &             e      = entry(weight, n, 1);
    for (int64_t i3 = 0; i3 < input->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < input->ne[2]; i2++) {
            const int64_t matrix = (i3 % weight->ne[3]) * weight->ne[2] + i2 % weight->ne[2];
            for (int64_t i1 = 0; i1 < input->ne[1]; i1++) {
                add(e, weight->name, matrix, reinterpret_cast<const float *>(input_row(input, i1, i2, i3)));
            }
        }
    }
    e.counts[0] += ggml_nrows(input) / n;
}

void Session::observe(InputSums * sums) {
    if (context_) {
        llama_free(context_);
        context_ = nullptr;
    }
    sums_ = sums;
    if (engine_) {
        engine_->observe(sums);
    }
    if (config_.n_ctx > 0) {
        make_context(config_.n_ctx);
    }
}

// All positions want logits: the last layer's experts would see only those that do.
void Session::observe_pass(const std::vector<int32_t> & tokens) {
    need_context(tokens.size());
    clear(-1);
    const auto  n     = int32_t(tokens.size());
    llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens    = n;
    for (int32_t i = 0; i < n; i++) {
        batch.token[i]     = tokens[size_t(i)];
        batch.pos[i]       = i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = 1;
    }
    if (engine_) {
        engine_->begin_step();
    }
    const int status = llama_decode(context_, batch);
    llama_synchronize(context_);
    llama_batch_free(batch);
    if (engine_) {
        engine_->end_step();
    }
    const std::string why = !sums_->error().empty()                ? sums_->error()
                            : engine_ && !engine_->error().empty() ? engine_->error()
                            : status != 0 ? "llama_decode failed with status " + std::to_string(status)
                                          : "";
    if (!why.empty()) {
        throw Error{ "run", why };
    }
}

}  // namespace les
