// The expert FFN of one layer as the scheduler hands it over, and its execution for any subset of experts.
//
// Every (expert, token) row of it is independent of the others, so a wave of ready experts computes with the
// same kernels exactly what the whole batch would have.
#pragma once

#include "expert_cache.h"
#include "expert_map.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "imatrix.h"

#include <cstdint>
#include <vector>

struct ggml_cgraph;

namespace les {

// Whether `t` is an expert weight in the streamed buffer type.
bool is_streamed(const ggml_tensor * t);

// Whether `t` is computed row by row from a streamed MUL_MAT_ID (activation, bias, clamp, view of it).
bool is_row_op(const ggml_tensor * t);

// One routed row: which token, which of its k choices, and the expert chosen.
struct Row {
    int32_t token;
    int32_t choice;
    int32_t expert;
};

// Memory for intermediate rows; grows to the largest wave and is reused.
class Scratch {
  public:
    void      reset();
    uint8_t * take(size_t bytes);  // 64-byte aligned

  private:
    std::vector<std::vector<uint8_t>> blocks_;
    size_t                            used_ = 0;
};

class RowProgram {
  public:
    // Nodes of one layer, in graph order; empty if `begin` does not start one.
    RowProgram(ggml_cgraph * graph, int begin, const ExpertMap & map, Scratch & scratch);

    int              end() const { return end_; }
    int              layer() const { return layer_; }
    int64_t          n_tokens() const { return ids_->ne[1]; }
    std::vector<Row> rows() const;  // token by token, choices in rank order

    // The rows the experts read, [n_embd, n_tokens]; nullptr if they are not the router's input.
    float * shared_input() const;

    // All rows in one go, into the graph's own tensors. `slots` holds one slot per row of rows().
    ggml_status run_all(const std::vector<Row> & rows, const std::vector<int> & slots, ExpertCache & cache,
                        size_t align, ggml_backend_t cpu);

    // Some of the rows. The first call saves the inputs, since results may reuse their memory. What every matrix
    // reads is added to `sums`, if given.
    ggml_status run_wave(const std::vector<Row> & rows, const std::vector<int> & slots, ExpertCache & cache,
                         size_t align, ggml_backend_t cpu, InputSums * sums = nullptr);

    // Whether these rows can share one MUL_MAT_ID: one window of the arena, one in-slot phase.
    bool one_group(const std::vector<Row> & rows, const std::vector<int> & slots, const ExpertCache & cache,
                   size_t align) const;

  private:
    struct Group {
        std::vector<Row> rows;
        std::vector<int> slots;
        int              begin = 0;  // arena window
        int              count = 0;
    };

    std::vector<size_t> phase(int expert, size_t align) const;
    std::vector<Group>  split(const std::vector<Row> & rows, const std::vector<int> & slots, const ExpertCache & cache,
                              size_t align) const;
    ggml_tensor * arena(ggml_context * ctx, const ggml_tensor * weight, const Group & group, const ExpertCache & cache,
                        size_t align) const;
    ggml_tensor * gather_input(ggml_context * ctx, const Group & group) const;
    void          save_inputs();
    using Inputs = std::vector<std::pair<const ggml_tensor *, const ggml_tensor *>>;  // weight and what it reads

    void add_group(ggml_context * ctx, ggml_cgraph * out, const Group & group, const ExpertCache & cache, size_t align,
                   std::vector<ggml_tensor *> & results, Inputs & inputs) const;
    static void add_inputs(const Group & group, const Inputs & inputs, InputSums & sums);

    const ExpertMap &          map_;
    Scratch &                  scratch_;
    int                        end_;
    int                        layer_ = -1;
    ggml_tensor *              ids_   = nullptr;
    ggml_tensor *              input_ = nullptr;  // src[1] of the first MUL_MAT_ID
    std::vector<ggml_tensor *> nodes_;
    std::vector<ggml_tensor *> outputs_;
    std::vector<uint8_t>       saved_input_;
};

}  // namespace les
