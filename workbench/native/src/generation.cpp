// The generation loop: prompt chunks, then one token (or one verified draft) per call.
#include "session.h"

#include <algorithm>
#include <cstring>

extern "C" bool ggml_batch_invariant;  // of our patched ggml-cpu

namespace les {

void Session::begin(std::vector<int32_t> prompt, int n_predict, std::vector<int32_t> force, bool ignore_eos) {
    if (prompt.empty()) {
        throw Error{ "toggle", "the prompt is empty: nothing to predict from" };
    }
    for (const auto * ids : { &prompt, &force }) {
        for (int32_t id : *ids) {
            check_token(id);
        }
    }
    const size_t need = prompt.size() + size_t(n_predict);
    need_context(need);
    if (need > llama_n_ctx(context_)) {
        throw Error{ "toggle", "prompt (" + std::to_string(prompt.size()) + ") plus n_predict (" +
                                   std::to_string(n_predict) + ") exceed the context of " +
                                   std::to_string(llama_n_ctx(context_)) + " tokens; raise n_ctx or shorten them" };
    }
    clear(-1);
    llama_sampler_reset(sampler_);
    if (speculator_) {
        speculator_->restart();
    }
    if (width_) {
        width_->restart(n_predict);
    }
    history_     = prompt;
    prompt_      = std::move(prompt);
    force_       = std::move(force);
    n_predict_   = n_predict;
    ignore_eos_  = ignore_eos;
    prompt_done_ = 0;
    n_chosen_    = 0;
    next_token_  = -1;
    reason_.clear();
    text_.clear();
    shown_      = 0;
    ttft_ns_    = -1;
    prefill_ns_ = decode_ns_ = late_ns_ = 0;
    begun_                              = true;
    interrupted_.store(false);
    cpu_begin_ = cpu_figures();
    begin_ns_  = mono_ns();
}

void Session::check_token(int32_t id) const {
    if (id < 0 || id >= n_vocab_) {
        throw Error{ "toggle",
                     "token " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(n_vocab_) };
    }
}

void Session::clear(int seq) {
    if (!context_) {
        return;
    }
    if (seq < 0) {
        llama_memory_clear(llama_get_memory(context_), false);
    } else {
        llama_memory_seq_rm(llama_get_memory(context_), seq, -1, -1);
    }
}

void Session::eval(const llama_batch & batch) {
    need_context(context_ ? 0 : 4096);
    const int n_batch = int(llama_n_batch(context_)), n_seq = int(llama_n_seq_max(context_));
    if (batch.n_tokens < 1 || batch.n_tokens > n_batch) {
        throw Error{ "toggle", std::to_string(batch.n_tokens) + " tokens in one call: 1 to n_batch=" +
                                   std::to_string(n_batch) + " can be evaluated" };
    }
    for (int i = 0; i < batch.n_tokens; i++) {
        check_token(batch.token[i]);
        if (batch.n_seq_id[i] < 1 || batch.seq_id[i][0] < 0 || batch.seq_id[i][batch.n_seq_id[i] - 1] >= n_seq) {
            throw Error{ "toggle", "token " + std::to_string(i) +
                                       " of the call belongs to no sequence below n_seq_max=" + std::to_string(n_seq) };
        }
    }
    decode(batch, "eval", 0, {});
}

// The flag is the process's: sessions that differ in it take turns, as calls do.
void Session::decode(const llama_batch & batch, const char * phase, int64_t index, const std::vector<int32_t> & draft) {
    ggml_batch_invariant = config_.batch_invariant;
    if (engine_) {
        engine_->begin_step();
    }
    const bool    restores = !draft.empty() && !forgets_;
    const int64_t t0       = mono_ns();
    if (restores) {
        save_state();
    }
    const int status = llama_decode(context_, batch);
    llama_synchronize(context_);
    int64_t   t1 = mono_ns();
    StepStats stats;
    if (engine_) {
        stats = engine_->end_step();
    }
    if (status != 0) {
        const std::string why = engine_ && !engine_->error().empty() ? engine_->error()
                                : status == 1                        ? "no room left in the context; raise n_ctx"
                                              : "llama_decode failed with status " + std::to_string(status);
        throw Error{ "run", why };
    }
    keep_logits(batch);
    if (speculator_ && strcmp(phase, "eval") != 0) {
        speculator_->processed(batch);
    }
    const int32_t fed = strcmp(phase, "decode") == 0 ? batch.token[0] : -1;
    choose(batch, strcmp(phase, "eval") != 0, draft);
    if (restores && chosen_.size() <= draft.size()) {
        t1 += replay(batch, stats);
    }
    (strcmp(phase, "prefill") == 0 ? prefill_ns_ : decode_ns_) += t1 - t0;
    late_ns_ += stats.flash.late_ns;
    if (width_ && fed >= 0) {
        DraftRound round = { asked_, int(draft.size()), int(chosen_.size()) - 1, speculator_->confidence(), t1 - t0 };
        round.wait_ns    = stats.stall_ns;
        round.bytes      = stats.flash.bytes;
        round.draft_ns   = speculator_->draft_ns;
        round.inject_ns  = speculator_->inject_ns;
        width_->learn(round);
    }
    if (width_ && strcmp(phase, "prefill") == 0) {
        width_->learn_prompt(batch.n_tokens, t1 - t0 - stats.stall_ns);
    }
    record_step(phase, index, batch.n_tokens, fed, int(draft.size()), t0, t1, engine_ ? &stats : nullptr);
    record_details(phase, index);
}

static constexpr llama_state_seq_flags k_recurrent = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

void Session::save_state() {
    checkpoint_.resize(llama_state_seq_get_size_ext(context_, 0, k_recurrent));
    llama_state_seq_get_data_ext(context_, checkpoint_.data(), checkpoint_.size(), 0, k_recurrent);
}

// A recurrent state that cannot drop rejected tokens is put back to before the batch, and the tokens that were right
// are decoded again. Returns the time it took; its reads are added to the step's.
int64_t Session::replay(llama_batch batch, StepStats & stats) {
    const int64_t t0 = mono_ns();
    batch.n_tokens   = int32_t(chosen_.size());
    std::fill(batch.logits, batch.logits + batch.n_tokens, int8_t(0));
    if (engine_) {
        engine_->resume_step();
    }
    const size_t read = llama_state_seq_set_data_ext(context_, checkpoint_.data(), checkpoint_.size(), 0, k_recurrent);
    if (read != checkpoint_.size() || !llama_memory_seq_rm(llama_get_memory(context_), 0, batch.pos[0], -1) ||
        llama_decode(context_, batch) != 0) {
        throw Error{ "run",
                     engine_ && !engine_->error().empty()
                         ? engine_->error()
                         : "this model's memory could not go back to before a rejected draft; use speculation=off" };
    }
    llama_synchronize(context_);
    if (engine_) {
        stats = engine_->end_step();
    }
    return mono_ns() - t0;
}

void Session::keep_logits(const llama_batch & batch) {
    logits_.clear();
    for (int i = 0; i < batch.n_tokens; i++) {
        if (batch.logits[i]) {
            const float * row = llama_get_logits_ith(context_, i);
            logits_.insert(logits_.end(), row, row + n_vocab_);
        }
    }
}

// The target's own sampler decides; a drafted token counts when it is the one chosen, so sampling stays exact.
void Session::choose(const llama_batch & batch, bool generating, const std::vector<int32_t> & draft) {
    chosen_.clear();
    piece_.clear();
    if (!generating || logits_.empty()) {
        return;
    }
    const llama_vocab * vocab = llama_model_get_vocab(model_);
    for (size_t i = 0; i <= draft.size(); i++) {
        const int row = draft.empty() ? batch.n_tokens - 1 : int(i);
        next_token_   = force_.empty() ? llama_sampler_sample(sampler_, context_, row) : force_[size_t(n_chosen_) + i];
        chosen_.push_back(next_token_);
        append_text();
        const bool ends = !ignore_eos_ && force_.empty() && llama_vocab_is_eog(vocab, next_token_);
        const bool full = n_chosen_ + int(chosen_.size()) >= n_predict_;
        if (ends || full) {
            reason_ = ends ? "eos" : "length";
            break;
        }
        if (i < draft.size() && draft[i] != next_token_) {
            break;
        }
    }
    logits_.resize(chosen_.size() * size_t(n_vocab_));
}

// The piece is what can be shown now: a character may need several tokens.
void Session::append_text() {
    char      piece[512];
    const int size = llama_token_to_piece(llama_model_get_vocab(model_), next_token_, piece, sizeof(piece), 0, false);
    text_.append(piece, size_t(std::max(0, size)));
    size_t end = text_.size();
    for (size_t back = 1; back <= 3 && back <= text_.size(); back++) {
        const auto c = static_cast<unsigned char>(text_[text_.size() - back]);
        if (c >= 0xc0) {  // first byte of a character of 2, 3 or 4
            const size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
            end               = need > back ? text_.size() - back : end;
            break;
        }
        if (c < 0x80) {
            break;
        }
    }
    piece_ += text_.substr(shown_, end - shown_);
    shown_ = end;
}

bool Session::next() {
    if (!begun_ || !reason_.empty()) {
        return false;
    }
    if (interrupted_.load()) {
        reason_ = "interrupted";
        return false;
    }
    const bool           prefill = prompt_done_ < prompt_.size();
    const int            n_past  = int(prompt_.size()) + n_chosen_ - 1;  // where the latest token goes
    std::vector<int32_t> draft;
    if (speculator_ && !prefill) {
        const int most = std::min(speculator_->draft_max(), n_predict_ - n_chosen_ - 1);
        asked_         = width_ ? width_->ask(most) : most;
        draft          = speculator_->draft(history_, next_token_, n_past, asked_);
        if (width_) {
            draft.resize(size_t(width_->keep(speculator_->confidence(), int(draft.size()))));
        }
    }
    const size_t n     = prefill ? std::min(size_t(config_.n_batch), prompt_.size() - prompt_done_) : 1 + draft.size();
    llama_batch  batch = llama_batch_init(int32_t(n), 0, 1);
    batch.n_tokens     = int32_t(n);
    for (size_t i = 0; i < n; i++) {
        batch.token[i]     = prefill ? prompt_[prompt_done_ + i] : i == 0 ? next_token_ : draft[i - 1];
        batch.pos[i]       = prefill ? llama_pos(prompt_done_ + i) : llama_pos(n_past + int(i));
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = !prefill || prompt_done_ + i + 1 == prompt_.size();
    }
    const int32_t fed = prefill ? -1 : next_token_;
    try {
        decode(batch, prefill ? "prefill" : "decode", prefill ? int64_t(prompt_done_) : n_chosen_ - 1, draft);
    } catch (const Error &) {
        llama_batch_free(batch);
        reason_ = "error";
        throw;
    }
    llama_batch_free(batch);
    if (prefill) {
        prompt_done_ += n;
    }
    if (prompt_done_ < prompt_.size()) {
        return true;
    }
    if (ttft_ns_ < 0) {
        ttft_ns_ = mono_ns() - begin_ns_;
    }
    n_chosen_ += int(chosen_.size());
    if (speculator_) {
        follow(prefill, fed, draft);
    }
    return true;
}

// Keeps the drafter and both contexts at what was really chosen.
void Session::follow(bool prefill, int32_t fed, const std::vector<int32_t> & draft) {
    if (prefill) {
        speculator_->begin(prompt_);
        return;
    }
    history_.push_back(fed);
    history_.insert(history_.end(), chosen_.begin(), chosen_.end() - 1);
    const int n_past = int(prompt_.size()) + n_chosen_ - 1;
    if (!draft.empty() && !llama_memory_seq_rm(llama_get_memory(context_), 0, n_past, -1)) {
        throw Error{ "run", "this model's memory cannot forget rejected tokens; run with speculation=off" };
    }
    speculator_->accepted(int(chosen_.size()) - 1, n_past);
}

}  // namespace les
