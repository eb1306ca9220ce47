#include "draft_feed.h"

#include "common.h"
#include "expert_map.h"
#include "llama-ext.h"
#include "speculative.h"

#include <algorithm>

namespace les {

DraftFeed::DraftFeed(common_speculative * speculative, llama_context * target, llama_context * draft, bool features)
    : speculative_(speculative), target_(target), draft_(draft) {
    n_chunk_ = draft ? llama_n_ubatch(draft) : llama_n_batch(target);
    if (features) {
        const llama_model * model = llama_get_model(draft);
        const int32_t *     ids   = llama_model_target_layer_ids(model);
        layers_.assign(ids, ids + llama_model_target_layer_ids_n(model));
        n_embd_ = size_t(llama_model_n_embd(llama_get_model(target)));
    }
}

void DraftFeed::add(const llama_batch & batch) {
    if (!draft_) {
        return;
    }
    std::vector<const float *> taps;
    for (int32_t layer : layers_) {
        taps.push_back(llama_get_embeddings_layer_inp(target_, uint32_t(layer)));
        if (!taps.back()) {
            throw Error{ "run", "the target gave no input of layer " + std::to_string(layer) + " to draft from" };
        }
    }
    for (size_t i = 0; i < size_t(batch.n_tokens); i++) {
        tokens_.push_back(batch.token[i]);
        positions_.push_back(batch.pos[i]);
        for (const float * tap : taps) {
            features_.insert(features_.end(), tap + i * n_embd_, tap + (i + 1) * n_embd_);
        }
    }
    if (tokens_.size() >= n_chunk_) {
        flush();
    }
}

void DraftFeed::forget_from(int n_past) {
    while (!positions_.empty() && positions_.back() >= n_past) {
        positions_.pop_back();
    }
    tokens_.resize(positions_.size());
    features_.resize(positions_.size() * layers_.size() * n_embd_);
}

void DraftFeed::flush() {
    for (size_t first = 0; first < tokens_.size(); first += n_chunk_) {
        const size_t n = std::min(n_chunk_, tokens_.size() - first);
        if (!(layers_.empty() ? process(first, n) : inject(first, n))) {
            throw Error{ "run", "the drafter could not follow the target" };
        }
    }
    clear();
}

bool DraftFeed::process(size_t first, size_t n) {
    common_batch batch(target_);
    for (size_t i = first; i < first + n; i++) {
        batch.add(tokens_[i], positions_[i], 0, i + 1 == first + n);
    }
    return common_speculative_process(speculative_, batch);
}

// A batch of features instead of tokens: DFlash fuses them and keeps their keys and values.
bool DraftFeed::inject(size_t first, size_t n) {
    const size_t width = layers_.size() * n_embd_;
    common_batch batch(draft_);
    for (size_t i = first; i < first + n; i++) {
        const llama_pos at[4] = { positions_[i], positions_[i], positions_[i],
                                  0 };  // text has one position on all axes
        batch.add_embd({ features_.data() + i * width, 1, width }, at, 0, false);
    }
    return llama_process(draft_, LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0;
}

}  // namespace les
