// One run as JSON describes it: the model, the toggles (RunConfig's names), and what to generate.
#pragma once

#include "engine.h"
#include "speculation.h"

#include <string>
#include <vector>

namespace les {

struct Config {
    bool               flash           = true;
    Lookahead          lookahead       = Lookahead::off;
    double             lookahead_width = 1.0;
    bool               ready_first     = false;
    int                cache_slots     = 0;
    bool               direct          = true;
    int                lanes           = 4;
    int                threads         = 0;
    FlashProfile       profile;
    SpeculationOptions speculation;
    int                telemetry       = 1;  // 0 off, 1 token, 2 layer, 3 io
    bool               logits_hash     = true;
    bool               flash_attn      = true;
    bool               batch_invariant = false;  // products do not depend on how many tokens are in the batch
    int                n_ctx = 0, n_batch = 512, n_ubatch = 512, n_seq_max = 1;
    double             temperature = 0.0;
    int                top_k       = 40;
    double             top_p       = 0.95;
    uint32_t           seed        = 1;
    std::string        json        = "{}";  // as given, for the header
};

struct Job {
    std::string          model;
    Config               config;
    std::string          run_id;
    std::string          model_sha256;
    std::string          telemetry_path;
    std::string          logits_path;
    std::string          prompt;
    std::vector<int32_t> prompt_tokens;
    std::vector<int32_t> force_tokens;
    int                  n_predict  = 64;
    int                  warm_up    = 0;  // unrecorded passes of the same generation first
    bool                 ignore_eos = false;
};

// Throws Error (toggle) for unknown names, impossible values and contradictions.
Job parse_job(const std::string & json);

}  // namespace les
