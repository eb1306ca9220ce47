#include "session.h"

#include "backend.h"
#include "ggml-cpu.h"
#include "gguf.h"

#include <algorithm>
#include <cstring>

namespace les {

Session::Session(const Job & job) : config_(job.config) {
    threads_ = config_.threads > 0 ? config_.threads : std::max(1, cpu_count() - (config_.flash ? 1 : 0));
    if (!job.telemetry_path.empty()) {
        telemetry_ = fopen(job.telemetry_path.c_str(), "w");
        if (!telemetry_) {
            throw Error{ "file", "cannot write telemetry to " + job.telemetry_path };
        }
    }
    try {
        load(job);
        if (config_.n_ctx > 0) {
            make_context(config_.n_ctx);
        }
    } catch (...) {
        // the destructor of a half-made object does not run
        speculator_.reset();
        if (context_) {
            llama_free(context_);
        }
        if (model_) {
            llama_model_free(model_);
        }
        if (telemetry_) {
            fclose(telemetry_);
        }
        throw;
    }
    llama_sampler_chain_params params = llama_sampler_chain_default_params();
    sampler_                          = llama_sampler_chain_init(params);
    if (config_.temperature > 0) {
        llama_sampler_chain_add(sampler_, llama_sampler_init_top_k(config_.top_k));
        llama_sampler_chain_add(sampler_, llama_sampler_init_top_p(float(config_.top_p), 1));
        llama_sampler_chain_add(sampler_, llama_sampler_init_temp(float(config_.temperature)));
        llama_sampler_chain_add(sampler_, llama_sampler_init_dist(config_.seed));
    } else {
        llama_sampler_chain_add(sampler_, llama_sampler_init_greedy());
    }
    header_ = make_header(job);
    write(header_);
}

Session::~Session() {
    if (sampler_) {
        llama_sampler_free(sampler_);
    }
    speculator_.reset();
    if (context_) {
        llama_free(context_);
    }
    llama_model_free(model_);
    if (telemetry_) {
        fclose(telemetry_);
    }
}

void Session::load(const Job & job) {
    llama_model_params params = llama_model_default_params();
    params.use_extra_bufts    = false;  // repacked weights use other kernels: nothing could be bit-exact
    params.load_mode          = LLAMA_LOAD_MODE_MMAP;

    llama_model_tensor_buft_override overrides[2] = {};
    llama_model_kv_override          keys[2]      = {};
    std::unique_ptr<LoadingFor>      loading;
    if (config_.flash) {
        ExpertMap map = read_expert_map(job.model);
        check_architecture(map);
        EngineOptions options;
        options.lookahead       = config_.lookahead;
        options.lookahead_width = config_.lookahead_width;
        options.ready_first     = config_.ready_first;
        options.cache_slots     = config_.cache_slots;
        options.direct          = config_.direct;
        options.lanes           = config_.lanes;
        options.n_batch         = config_.n_batch;
        options.profile         = config_.profile;
        options.log_layers      = config_.telemetry >= 2;
        options.log_io          = config_.telemetry >= 3;
        engine_                 = std::make_unique<Engine>(std::move(map), options);

        register_backend();
        loading      = std::make_unique<LoadingFor>(*engine_);
        overrides[0] = { "blk\\.[0-9]+\\.ffn_(gate|up|down|gate_up)_exps\\.weight$", streamed_buffer_type() };
        params.tensor_buft_overrides = overrides;
        params.load_mode             = LLAMA_LOAD_MODE_NONE;
        if (engine_->map().contiguous) {
            keys[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
            snprintf(keys[0].key, sizeof(keys[0].key), "general.architecture");
            snprintf(keys[0].val_str, sizeof(keys[0].val_str), "%s", engine_->map().arch.c_str());
            params.kv_overrides = keys;
        }
    } else {
        File       probe;
        const auto error = open_file(job.model, false, probe);
        if (!error.empty()) {
            throw Error{ "file", error };
        }
        close_file(probe);
        gguf_context *    g       = gguf_init_from_file(job.model.c_str(), { true, nullptr });
        const int64_t     arch_id = g ? gguf_find_key(g, "general.architecture") : -1;
        const std::string arch    = arch_id >= 0 ? gguf_get_val_str(g, arch_id) : "";
        gguf_free(g);
        if (arch.empty()) {
            throw Error{ "file",
                         job.model + ": not a readable GGUF (wrong magic, or its header is truncated or corrupt)" };
        }
        if (arch.compare(0, 4, "les-") == 0) {
            throw Error{ "file", job.model + ": an expert-contiguous file cannot run resident; run it with " +
                                     "experts=flash, or restore the original with `workbench unpack`" };
        }
    }
    model_ = llama_model_load_from_file(job.model.c_str(), params);
    if (!model_) {
        throw Error{ "file", job.model + ": llama.cpp could not load it (truncated file or unknown architecture); " +
                                 "`workbench inspect` says what is in it" };
    }
    if (engine_) {
        engine_->attach(*model_);
    }
    n_vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
}

void Session::make_context(int n_ctx) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = uint32_t(n_ctx);
    params.n_batch              = uint32_t(config_.n_batch);
    params.n_ubatch             = uint32_t(std::min(config_.n_ubatch, config_.n_batch));
    params.n_seq_max            = uint32_t(config_.n_seq_max);
    params.kv_unified           = config_.n_seq_max > 1;
    params.n_threads            = threads_;
    params.n_threads_batch      = threads_;
    params.no_perf              = true;
    params.n_rs_seq             = uint32_t(config_.speculation.on() ? std::max(16, config_.speculation.draft_max) : 0);
    params.cb_eval              = sums_ ? InputSums::on_node : nullptr;
    params.cb_eval_user_data    = sums_;
    context_                    = llama_init_from_model(model_, params);
    if (!context_) {
        throw Error{ "run", "cannot create a context of " + std::to_string(params.n_ctx) + " tokens; lower n_ctx" };
    }
    if (config_.speculation.on()) {
        speculator_ = std::make_unique<Speculator>(config_.speculation, model_, context_, threads_);
    }
}

// With n_ctx = 0 the context is as large as the job needs, in steps of 256, and at most what the model was made for.
void Session::need_context(size_t tokens) {
    const size_t most = size_t(llama_model_n_ctx_train(model_));
    if (config_.n_ctx > 0 || (context_ && llama_n_ctx(context_) >= std::min(tokens, most))) {
        return;
    }
    if (context_) {
        speculator_.reset();
        llama_free(context_);
        context_ = nullptr;
    }
    make_context(int(std::min((tokens + 255) / 256 * 256, most)));
}

std::vector<int32_t> Session::tokenize(const std::string & text) const {
    const llama_vocab *  vocab = llama_model_get_vocab(model_);
    std::vector<int32_t> ids(text.size() + 8);
    const int n = llama_tokenize(vocab, text.data(), int32_t(text.size()), ids.data(), int32_t(ids.size()), true, true);
    if (n <= 0) {
        throw Error{ "run", "the prompt has no tokens (does the model carry a tokenizer?); pass prompt_tokens" };
    }
    ids.resize(size_t(n));
    return ids;
}

void Session::begin(std::vector<int32_t> prompt, int n_predict, std::vector<int32_t> force, bool ignore_eos) {
    if (prompt.empty()) {
        throw Error{ "toggle", "the prompt is empty: nothing to predict from" };
    }
    for (const auto * ids : { &prompt, &force }) {
        for (int32_t id : *ids) {
            if (id < 0 || id >= n_vocab_) {
                throw Error{ "toggle", "token " + std::to_string(id) + " is outside the vocabulary of " +
                                           std::to_string(n_vocab_) };
            }
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
    width_.reset();
    if (speculator_ && config_.speculation.adaptive) {
        width_ = std::make_unique<DraftWidth>(speculator_->draft_max());
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

void Session::clear(int seq) {
    if (!context_) {
        return;
    }
    llama_memory_seq_rm(llama_get_memory(context_), seq, -1, -1);
}

void Session::eval(const llama_batch & batch) {
    need_context(context_ ? 0 : 4096);
    decode(batch, "eval", 0, {});
}

void Session::decode(const llama_batch & batch, const char * phase, int64_t index, const std::vector<int32_t> & draft) {
    if (engine_) {
        engine_->begin_step();
    }
    const int64_t t0     = mono_ns();
    const int     status = llama_decode(context_, batch);
    llama_synchronize(context_);
    const int64_t t1 = mono_ns();
    StepStats     stats;
    if (engine_) {
        stats = engine_->end_step();
        late_ns_ += stats.flash.late_ns;
    }
    if (status != 0) {
        const std::string why = engine_ && !engine_->error().empty() ? engine_->error()
                                : status == 1                        ? "no room left in the context; raise n_ctx"
                                              : "llama_decode failed with status " + std::to_string(status);
        throw Error{ "run", why };
    }
    (strcmp(phase, "prefill") == 0 ? prefill_ns_ : decode_ns_) += t1 - t0;
    keep_logits(batch);
    if (speculator_ && strcmp(phase, "eval") != 0) {
        speculator_->processed(batch);
    }
    const int32_t fed = strcmp(phase, "decode") == 0 ? batch.token[0] : -1;
    choose(batch, strcmp(phase, "eval") != 0, draft);
    if (width_ && fed >= 0) {
        const int64_t round_ns = t1 - t0 + speculator_->draft_ns + speculator_->inject_ns;
        width_->learn(int(draft.size()), int(chosen_.size()) - 1, round_ns);
    }
    record_step(phase, index, batch.n_tokens, fed, int(draft.size()), t0, t1, engine_ ? &stats : nullptr);
    record_details(phase, index);
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
        draft = speculator_->draft(history_, next_token_, n_past, width_ ? std::min(width_->choose(), most) : most);
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
