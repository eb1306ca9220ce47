#include "speculation.h"

#include "common.h"
#include "gguf.h"
#include "llama-ext.h"
#include "log.h"
#include "platform.h"
#include "speculative.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace les {

namespace {

// Architectures whose layer inputs can be tapped; others abort when a tap is switched on.
constexpr const char * k_tapped[] = { "qwen3moe", "qwen35moe",  "qwen3next",      "gpt-oss",     "llama",
                                      "lfm2moe",  "minimax-m2", "nemotron_h_moe", "bailingmoe3", "mimo2" };

std::string architecture(const llama_model * model) {
    char text[128] = {};
    llama_model_meta_val_str(model, "general.architecture", text, sizeof(text));
    return strncmp(text, "les-", 4) == 0 ? text + 4 : text;
}

void check_dspark(const SpeculationOptions & options, const DraftFacts & draft, const llama_model * target) {
    const std::string arch = architecture(target);
    const std::string file = options.draft_model;
    if (std::none_of(std::begin(k_tapped), std::end(k_tapped), [&](const char * a) { return arch == a; })) {
        throw Error{ "arch", "speculation=dspark: architecture '" + arch +
                                 "' exposes no layer inputs to draft from; use speculation=ngram-simple" };
    }
    if (draft.arch != "dflash" || !draft.markov) {
        throw Error{
            "file", file + ": not a DSpark drafter (architecture dflash with markov_w1); use speculation=draft-simple"
        };
    }
    if (draft.n_embd != llama_model_n_embd(target)) {
        throw Error{ "file", file + ": drafts with hidden size " + std::to_string(draft.n_embd) + ", the target has " +
                                 std::to_string(llama_model_n_embd(target)) +
                                 "; use the drafter trained for this model" };
    }
    if (draft.target_layers.empty()) {
        throw Error{ "file", file + ": names no target layers" };
    }
    for (int32_t layer : draft.target_layers) {
        if (layer < 0 || layer >= llama_model_n_layer(target)) {
            throw Error{ "file", file + ": taps layer " + std::to_string(layer) + " of a target with " +
                                     std::to_string(llama_model_n_layer(target)) + " layers" };
        }
    }
    if (!draft.mask) {
        throw Error{ "file", file + ": has no mask token" };
    }
    if (options.min_p > 0 && !draft.confidence) {
        throw Error{ "toggle", "draft_min_p=" + std::to_string(options.min_p) + ": " + file +
                                   " has no confidence head; use draft_min_p=0" };
    }
    if (draft.block_size > 0 && options.draft_max > draft.block_size) {
        throw Error{ "toggle", "draft_max=" + std::to_string(options.draft_max) + ": " + file +
                                   " was trained for blocks of " + std::to_string(draft.block_size) };
    }
}

}  // namespace

DraftFacts read_draft(const std::string & path) {
    File       probe;
    const auto error = open_file(path, false, probe);
    if (!error.empty()) {
        throw Error{ "file", error };
    }
    close_file(probe);
    gguf_context * g = gguf_init_from_file(path.c_str(), { true, nullptr });
    if (!g) {
        throw Error{ "file", path + ": not a readable GGUF" };
    }
    DraftFacts f;
    auto       key    = [&](const std::string & name) { return gguf_find_key(g, name.c_str()); };
    auto       number = [&](const std::string & name, int64_t fallback) -> int64_t {
        const int64_t id = key(name);
        return id >= 0 && gguf_get_kv_type(g, id) == GGUF_TYPE_UINT32 ? int64_t(gguf_get_val_u32(g, id)) : fallback;
    };
    const int64_t arch = key("general.architecture");
    f.arch             = arch >= 0 ? gguf_get_val_str(g, arch) : "";
    f.n_embd           = int(number(f.arch + ".embedding_length", 0));
    f.block_size       = int(number(f.arch + ".block_size", 0));
    f.mask             = key("tokenizer.ggml.mask_token_id") >= 0;
    f.markov           = gguf_find_tensor(g, "markov_w1.weight") >= 0;
    f.confidence       = gguf_find_tensor(g, "conf_proj.weight") >= 0;
    const int64_t head = key(f.arch + ".has_confidence_head");
    if (head >= 0 && gguf_get_kv_type(g, head) == GGUF_TYPE_BOOL) {
        f.confidence = f.confidence && gguf_get_val_bool(g, head);
    }
    const int64_t tokens = key("tokenizer.ggml.tokens");
    f.n_vocab            = tokens >= 0 ? int64_t(gguf_get_arr_n(g, tokens)) : 0;
    const int64_t layers = key(f.arch + ".target_layers");
    if (layers >= 0 && gguf_get_kv_type(g, layers) == GGUF_TYPE_ARRAY) {
        const auto * ids = static_cast<const int32_t *>(gguf_get_arr_data(g, layers));
        f.target_layers.assign(ids, ids + gguf_get_arr_n(g, layers));
    }
    gguf_free(g);
    return f;
}

Speculator::Speculator(const SpeculationOptions & options, llama_model * target, llama_context * context, int threads)
    : params_(std::make_unique<common_params_speculative>()) {
    const bool needs_file = options.kind == "dspark" || options.kind == "draft-simple";
    if (needs_file != !options.draft_model.empty()) {
        throw Error{ "toggle", needs_file ? "speculation=" + options.kind + " needs draft_model"
                                          : "draft_model contradicts speculation=" + options.kind };
    }
    common_log_set_verbosity_thold(LOG_LEVEL_ERROR);
    draft_max_ = options.draft_max > 0 ? options.draft_max : 4;
    if (needs_file) {
        const DraftFacts draft = read_draft(options.draft_model);
        const int        vocab = llama_vocab_n_tokens(llama_model_get_vocab(target));
        if (draft.n_vocab != vocab) {
            throw Error{ "file", options.draft_model + ": has " + std::to_string(draft.n_vocab) +
                                     " tokens, the target " + std::to_string(vocab) +
                                     "; the vocabularies must be one" };
        }
        if (options.kind == "dspark") {
            check_dspark(options, draft, target);
            draft_max_      = options.draft_max > 0 ? options.draft_max : draft.block_size;
            has_confidence_ = draft.confidence;
        }
    }
    params_->draft.n_max   = draft_max_;
    params_->draft.p_min   = float(options.min_p);
    params_->draft.ctx_tgt = context;
    if (options.kind == "dspark") {
        params_->types = { COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK };
    } else if (options.kind == "draft-simple") {
        params_->types = { COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE };
    } else if (options.kind == "ngram-mod") {
        params_->types     = { COMMON_SPECULATIVE_TYPE_NGRAM_MOD };
        params_->ngram_mod = { 4, draft_max_, 1 };
    } else {
        params_->types        = { COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE };
        params_->ngram_simple = { 3, uint16_t(draft_max_), 1 };
    }
    try {
        if (needs_file) {
            load_draft(options, context, threads);
        }
        speculative_ = common_speculative_init(*params_, 1);
    } catch (const std::exception & e) {
        throw Error{ "toggle", "speculation=" + options.kind + ": " + e.what() };
    }
    if (!speculative_) {
        throw Error{ "toggle", "speculation=" + options.kind + " cannot run with this model" };
    }
    feed_ = std::make_unique<DraftFeed>(speculative_, context, context_, options.kind == "dspark");
    if (options.kind == "dspark") {
        for (params_->draft.n_max = 1; params_->draft.n_max < draft_max_; params_->draft.n_max++) {
            drafters_.push_back(common_speculative_init(*params_, 1));
        }
    }
    drafters_.push_back(speculative_);
    if (options.kind == "dspark") {
        warm_up();
    }
}

// The first draft pages its weights in; the second tells what one takes.
void Speculator::warm_up() {
    const llama_vocab *        vocab   = llama_model_get_vocab(model_);
    const std::vector<int32_t> history = { 0 };
    for (int i = 0; i < 2; i++) {
        draft(history, std::max(0, llama_vocab_bos(vocab)), 1, draft_max_);
        warm_ns = draft_ns;
        restart();
    }
}

void Speculator::load_draft(const SpeculationOptions & options, llama_context * context, int threads) {
    llama_model_params params = llama_model_default_params();
    params.use_extra_bufts    = false;
    model_                    = llama_model_load_from_file(options.draft_model.c_str(), params);
    if (!model_) {
        throw Error{ "file", options.draft_model + ": llama.cpp could not load it" };
    }
    llama_context_params cparams  = llama_context_default_params();
    cparams.n_ctx                 = llama_n_ctx(context);
    cparams.n_batch               = llama_n_batch(context);
    cparams.n_ubatch              = llama_n_ubatch(context);
    cparams.n_seq_max             = 1;
    cparams.n_threads             = threads;
    cparams.n_threads_batch       = threads;
    cparams.n_outputs_max         = uint32_t(draft_max_ + 1);
    cparams.n_outputs_max_per_seq = uint32_t(draft_max_ + 1);
    cparams.ctx_other             = context;
    cparams.no_perf               = true;
    context_                      = llama_init_from_model(model_, cparams);
    if (!context_) {
        throw Error{ "run", options.draft_model + ": no context could be made for the draft model" };
    }
    params_->draft.ctx_dft = context_;
}

Speculator::~Speculator() {
    for (common_speculative * speculative : drafters_) {
        if (speculative) {
            common_speculative_free(speculative);
        }
    }
    if (context_) {
        llama_free(context_);
    }
    if (model_) {
        llama_model_free(model_);
    }
}

void Speculator::begin(const std::vector<int32_t> & prompt) {
    feed_->flush();
    common_speculative_begin(speculative_, 0, prompt);
}

std::vector<int32_t> Speculator::draft(const std::vector<int32_t> & history, int32_t last, int n_past, int n_max) {
    const int64_t t0 = mono_ns();
    drafted_.clear();
    confidence_.clear();
    inject_ns = 0;
    if (n_max > 0) {
        feed_->flush();
        inject_ns                                           = mono_ns() - t0;
        common_speculative * speculative                    = drafters_[std::min(size_t(n_max), drafters_.size()) - 1];
        common_speculative_get_draft_params(speculative, 0) = { true, n_max, n_past, last, &history, &drafted_ };
        common_speculative_draft(speculative);
        if (int(drafted_.size()) > n_max) {
            drafted_.resize(size_t(n_max));
        }
        const float * row = has_confidence_ ? llama_get_embeddings_nextn(context_) : nullptr;
        for (size_t i = 0; row && i < drafted_.size(); i++) {
            confidence_.push_back(row[i * size_t(llama_model_n_embd(model_))]);
        }
        if (context_) {
            llama_memory_seq_rm(llama_get_memory(context_), 0, n_past, -1);
        }
    }
    draft_ns = mono_ns() - t0 - inject_ns;
    return drafted_;
}

void Speculator::processed(const llama_batch & batch) {
    const int64_t t0 = mono_ns();
    feed_->add(batch);
    inject_ns += mono_ns() - t0;
}

void Speculator::accepted(int n_accepted, int n_past) {
    if (!drafted_.empty()) {
        common_speculative_accept(speculative_, 0, uint16_t(n_accepted));
    }
    feed_->forget_from(n_past);
}

void Speculator::restart() {
    drafted_.clear();
    feed_->clear();
    if (context_) {
        llama_memory_seq_rm(llama_get_memory(context_), 0, -1, -1);
    }
}

}  // namespace les
