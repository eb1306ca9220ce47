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
    drop_context();
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
    params.flash_attn_type      = config_.flash_attn ? LLAMA_FLASH_ATTN_TYPE_AUTO : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.no_perf              = true;
    params.n_rs_seq             = uint32_t(config_.speculation.on() ? std::max(16, config_.speculation.draft_max) : 0);
    params.cb_eval              = sums_ ? InputSums::on_node : nullptr;
    params.cb_eval_user_data    = sums_;
    context_                    = llama_init_from_model(model_, params);
    if (!context_) {
        throw Error{ "run", "cannot create a context of " + std::to_string(params.n_ctx) + " tokens; lower n_ctx" };
    }
    try {
        start_drafting();
    } catch (...) {
        drop_context();  // else the next job would run plain
        throw;
    }
}

// What drafts holds the context: it goes first.
void Session::drop_context() {
    speculator_.reset();
    if (context_) {
        llama_free(context_);
        context_ = nullptr;
    }
}

void Session::start_drafting() {
    const uint32_t snapshots = llama_n_rs_seq(context_);
    if (snapshots > 0 && llama_n_ubatch(context_) <= snapshots + 1) {
        throw Error{ "toggle", "n_ubatch=" + std::to_string(llama_n_ubatch(context_)) + ": drafting with this model " +
                                   "needs n_batch and n_ubatch of at least " + std::to_string(snapshots + 2) +
                                   ", for its recurrent state to be rolled back" };
    }
    forgets_ = !(llama_model_is_recurrent(model_) || llama_model_is_hybrid(model_)) || snapshots > 0;
    if (config_.speculation.on()) {
        speculator_ = std::make_unique<Speculator>(config_.speculation, model_, context_, threads_);
        if (config_.speculation.adaptive && !width_) {
            const ExpertMap none = {};
            const auto &    map  = engine_ ? engine_->map() : none;
            width_ = std::make_unique<DraftWidth>(speculator_->draft_max(), map.n_expert, map.n_expert_used,
                                                  speculator_->warm_ns);
        }
    }
}

// With n_ctx = 0 the context is as large as the job needs, in steps of 256, and at most what the model was made for.
void Session::need_context(size_t tokens) {
    const size_t most = size_t(llama_model_n_ctx_train(model_));
    if (config_.n_ctx > 0 || (context_ && llama_n_ctx(context_) >= std::min(tokens, most))) {
        return;
    }
    drop_context();
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

}  // namespace les
