// Sums of squared inputs of every weight matrix, per expert: what quantization weighs its errors by.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace les {

class InputSums {
  public:
    struct Entry {
        int64_t              width = 0;  // of one input row
        std::vector<double>  sums;       // [matrices, width]
        std::vector<int64_t> counts;     // rows seen, per expert; one count for a dense matrix
    };

    // ggml's evaluation callback; `self` is an InputSums. Streamed experts are left to the engine.
    static bool on_node(ggml_tensor * node, bool ask, void * self);

    // Rows that an expert read, `stride` bytes apart.
    void add_expert_row(const ggml_tensor * weight, int64_t expert, const float * row);

    const std::map<std::string, Entry> & entries() const { return entries_; }
    const std::string &                  error() const { return error_; }

  private:
    void    add_routed(const ggml_tensor * node);
    void    add_dense(const ggml_tensor * node);
    Entry & entry(const ggml_tensor * weight, int64_t n_matrix, int64_t n_count);
    void    add(Entry & e, const std::string & name, int64_t matrix, const float * row);

    std::map<std::string, Entry> entries_;
    std::string                  error_;
};

}  // namespace les
