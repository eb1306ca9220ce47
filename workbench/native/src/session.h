// A model, its context and its engine; the generation loop; and the records it leaves.
#pragma once

#include "draft_width.h"
#include "engine.h"
#include "job.h"
#include "llama.h"
#include "speculation.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace les {

class Session {
  public:
    explicit Session(const Job & job);  // throws Error
    ~Session();

    void begin(std::vector<int32_t> prompt, int n_predict, std::vector<int32_t> force, bool ignore_eos);
    bool next();  // false: finished; throws Error
    void eval(const llama_batch & batch);
    void clear(int seq);
    void interrupt() { interrupted_.store(true); }

    // From now on what every matrix reads is added to `sums`; a pass is one unrecorded decode call from position 0.
    void observe(InputSums * sums);
    void observe_pass(const std::vector<int32_t> & tokens);

    // Unrecorded passes, to warm caches up.
    void mute(bool on) { muted_ = on; }

    const std::string & header() const { return header_; }
    std::string         take_lines();
    const std::string & finish(const std::string & error);

    const std::vector<float> & logits() const { return logits_; }
    int                        n_vocab() const { return n_vocab_; }
    int32_t                    next_token() const { return next_token_; }
    llama_model *              model() const { return model_; }
    llama_context *            context() const { return context_; }
    std::vector<int32_t>       tokenize(const std::string & text) const;

  private:
    void    load(const Job & job);
    void    make_context(int n_ctx);
    void    start_drafting();
    void    drop_context();
    void    need_context(size_t tokens);
    void    check_token(int32_t id) const;
    void    decode(const llama_batch & batch, const char * phase, int64_t index, const std::vector<int32_t> & draft);
    void    keep_logits(const llama_batch & batch);
    void    save_state();
    int64_t replay(llama_batch batch, StepStats & stats);
    void    choose(const llama_batch & batch, bool generating, const std::vector<int32_t> & draft);
    void    follow(bool prefill, int32_t fed, const std::vector<int32_t> & draft);
    void    append_text();
    std::string make_header(const Job & job) const;
    void        record_step(const char * phase, int64_t index, int n_tokens, int32_t token, int drafted, int64_t t0,
                            int64_t t1, const StepStats * stats);
    void        record_details(const char * phase, int64_t index);
    void        write(const std::string & line);

    Config                  config_;
    int                     threads_ = 1;
    std::unique_ptr<Engine> engine_;
    InputSums *             sums_    = nullptr;
    llama_model *           model_   = nullptr;
    llama_context *         context_ = nullptr;
    llama_sampler *         sampler_ = nullptr;
    int                     n_vocab_ = 0;

    std::unique_ptr<Speculator> speculator_;
    std::unique_ptr<DraftWidth> width_;  // set when the draft length adapts
    int                         asked_   = 0;
    bool                        forgets_ = true;  // whether the target's memory can drop rejected tokens
    std::vector<uint8_t>        checkpoint_;      // else: its recurrent state before the batch

    std::vector<int32_t> prompt_, force_;
    std::vector<int32_t> history_;  // prompt and what was chosen, without the token fed next
    std::vector<int32_t> chosen_;   // by the latest call: more than one where drafted tokens were accepted
    size_t               prompt_done_ = 0;
    int                  n_predict_ = 0, n_chosen_ = 0;
    bool                 ignore_eos_ = false, begun_ = false, muted_ = false;
    int32_t              next_token_ = -1;
    std::string          reason_;
    std::vector<float>   logits_;
    std::string          text_, piece_;
    size_t               shown_ = 0;  // bytes of text_ already in a record
    std::atomic<bool>    interrupted_{ false };

    FILE *      telemetry_ = nullptr;
    std::string header_, lines_, end_;

    int64_t    begin_ns_ = 0, ttft_ns_ = -1, prefill_ns_ = 0, decode_ns_ = 0, late_ns_ = 0;
    CpuFigures cpu_begin_;
};

}  // namespace les
