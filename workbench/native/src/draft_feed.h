// What the drafter must know of the target's tokens, kept until it is asked: a resting drafter costs a copy.
#pragma once

#include "llama.h"

#include <vector>

struct common_speculative;

namespace les {

class DraftFeed {
  public:
    // `draft` null: a drafter without a model. `features`: it reads the target's layer inputs, not its tokens.
    DraftFeed(common_speculative * speculative, llama_context * target, llama_context * draft, bool features);

    void add(const llama_batch & batch);  // right after the target's call
    void forget_from(int n_past);
    void flush();  // throws Error (run)
    void clear() { tokens_.clear(), positions_.clear(), features_.clear(); }

    size_t size() const { return tokens_.size(); }

  private:
    bool inject(size_t first, size_t n);  // features
    bool process(size_t first, size_t n);

    common_speculative * speculative_;
    llama_context *      target_;
    llama_context *      draft_;
    std::vector<int32_t> layers_;       // the tapped ones; empty: tokens only
    size_t               n_embd_  = 0;  // of the target
    size_t               n_chunk_ = 0;

    std::vector<int32_t>   tokens_;
    std::vector<llama_pos> positions_;
    std::vector<float>     features_;  // one row of layers x n_embd per token
};

}  // namespace les
