// Drafting: upstream's speculative decoders behind the checks that keep them from aborting the process.
#pragma once

#include "draft_feed.h"
#include "expert_map.h"
#include "llama.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct common_speculative;
struct common_params_speculative;

namespace les {

struct SpeculationOptions {
    std::string kind = "off";  // off | dspark | ngram-simple | ngram-mod | draft-simple
    std::string draft_model;
    int         draft_max = 0;    // tokens per round; 0: the trained block, or 4
    double      min_p     = 0.0;  // the draft ends at the first token less certain than this
    bool        adaptive  = false;

    bool on() const { return kind != "off"; }
};

// What a draft file says of itself, read before anything is loaded.
struct DraftFacts {
    std::string          arch;
    int                  n_embd     = 0;
    int64_t              n_vocab    = 0;
    int                  block_size = 0;
    bool                 markov     = false;
    bool                 confidence = false;
    bool                 mask       = false;
    std::vector<int32_t> target_layers;
};

DraftFacts read_draft(const std::string & path);  // throws Error (file)

class Speculator {
  public:
    // Throws Error (toggle | file | arch) for everything upstream would abort on.
    Speculator(const SpeculationOptions & options, llama_model * target, llama_context * context, int threads);
    ~Speculator();

    int  draft_max() const { return draft_max_; }
    void begin(const std::vector<int32_t> & prompt);

    // At most `n_max` tokens expected after `last` at position `n_past`, whose predecessors are `history`.
    std::vector<int32_t> draft(const std::vector<int32_t> & history, int32_t last, int n_past, int n_max);

    void processed(const llama_batch & batch);  // after every decode call of the target; the drafter sees it when asked
    void accepted(int n_accepted, int n_past);  // of the latest draft; forgets the rest
    void restart();                             // other text

    // Of the latest draft, per token: how likely the drafter thinks it is to be accepted. Empty where it cannot say.
    const std::vector<float> & confidence() const { return confidence_; }

    int64_t draft_ns = 0, inject_ns = 0;  // of the latest draft
    int64_t warm_ns = 0;                  // of a draft of full length, once warm; 0: no draft model

  private:
    void load_draft(const SpeculationOptions & options, llama_context * context, int threads);
    void warm_up();

    int                                        draft_max_ = 4;
    llama_model *                              model_     = nullptr;
    llama_context *                            context_   = nullptr;
    std::unique_ptr<common_params_speculative> params_;
    common_speculative *                       speculative_ = nullptr;
    std::unique_ptr<DraftFeed>                 feed_;
    std::vector<common_speculative *>          drafters_;  // by length: upstream's DSpark drafts its whole length
    bool                                       has_confidence_ = false;
    std::vector<int32_t>                       drafted_;
    std::vector<float>                         confidence_;
};

}  // namespace les
