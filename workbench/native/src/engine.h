// The scheduler: what one layer does with its routed experts, and the account of it.
#pragma once

#include "expert_cache.h"
#include "expert_map.h"
#include "flash.h"
#include "predictor.h"
#include "row_program.h"

#include <memory>
#include <string>
#include <vector>

namespace les {

enum class Lookahead { off, router, control };

struct EngineOptions {
    Lookahead    lookahead       = Lookahead::off;
    double       lookahead_width = 1.0;
    bool         ready_first     = false;
    int          cache_slots     = 0;
    bool         direct          = true;
    int          lanes           = 1;
    int          n_batch         = 1;
    FlashProfile profile;
    bool         log_layers = false;
    bool         log_io     = false;
};

// Account of one decode call; times in ns.
struct StepStats {
    int64_t     lookups = 0, hits = 0, prefetch_issued = 0, prefetch_used = 0;
    int64_t     recall_hit = 0, recall_total = 0;
    int64_t     dense_ns = 0, expert_ns = 0, predict_ns = 0, stall_ns = 0;
    CacheTotals cache;
    FlashTotals flash;
};

struct Span {
    int64_t t0_ns = 0, t1_ns = 0;
    int     experts = 0;  // computed in it; 0 for a wait
};

struct LayerRecord {
    int                  block = 0;
    int64_t              t0_ns = 0, t1_ns = 0, stall_ns = 0, expert_ns = 0;
    int                  hits = 0, waves = 0, n_used = 0;
    std::vector<int32_t> routed;  // n_used ids per token
    std::vector<int32_t> predicted;
    bool                 has_prediction = false;
    std::vector<Span>    wave_spans, wait_spans;  // at telemetry level io
};

class Engine {
  public:
    Engine(ExpertMap map, EngineOptions options);  // throws Error

    void attach(const llama_model & model);  // the routers, once the model is loaded
    void observe(InputSums * sums) { sums_ = sums; }

    void      begin_step();
    void      resume_step();  // the step goes on after it ended
    StepStats end_step();

    ggml_status run_layer(RowProgram & program, ggml_backend_t cpu);

    const ExpertMap &        map() const { return map_; }
    const EngineOptions &    options() const { return options_; }
    const std::string &      error() const { return error_; }
    bool                     direct() const { return align_ > 1; }
    size_t                   align() const { return align_; }
    size_t                   arena_bytes() const { return cache_->arena_bytes(); }
    int                      slots() const { return cache_->size(); }
    std::vector<LayerRecord> take_layers();
    std::vector<ReadRequest> take_io() { return flash_->take_log(); }

  private:
    // One expert the running layer needs.
    struct Need {
        int              expert = 0;
        int              slot   = -1;
        bool             done   = false;
        bool             keep   = true;  // among the c most recently routed, so worth a place in the cache
        int64_t          stamp  = 0;     // of its last use, in routing order whatever order reads finish in
        std::vector<Row> rows;
    };

    std::vector<Need> collect(const std::vector<Row> & rows);
    void              reclaim_prefetch(int layer, const std::vector<Need> & needs);
    void              classify(int layer, std::vector<Need> & needs, LayerRecord & record);
    void              issue_demand(int layer, std::vector<Need> & needs);
    void        score_prediction(const std::vector<Row> & rows, int layer, int64_t n_tokens, LayerRecord & record);
    void        predict(const RowProgram & program, ggml_backend_t cpu);
    void        issue_prefetch(const std::vector<Need> & needs);
    void        retire_prediction();
    void        add_parts(std::vector<ReadPart> & parts, int layer, int expert, int slot) const;
    void        submit(std::vector<ReadPart> parts, bool demand);
    ggml_status run_waves(RowProgram & program, const std::vector<Row> & rows, std::vector<Need> & needs,
                          ggml_backend_t cpu, LayerRecord & record);
    bool        wait_for_wave(const std::vector<Need> & needs, LayerRecord & record);
    ggml_status compute(RowProgram & program, const std::vector<Row> & rows, std::vector<Need *> & wave,
                        ggml_backend_t cpu);
    ggml_status fail(const std::string & why);

    ExpertMap                    map_;
    EngineOptions                options_;
    size_t                       align_ = 1;
    std::unique_ptr<ExpertCache> cache_;
    std::unique_ptr<Flash>       flash_;
    std::unique_ptr<Predictor>   predictor_;
    InputSums *                  sums_ = nullptr;  // what experts read is added here, if set

    // the latest prediction: ranked ids per token for one layer, and what of it is still to be read
    int                  predicted_layer_  = -1;
    int64_t              predicted_tokens_ = 0;
    int                  predicted_width_  = 0;
    std::vector<int32_t> predicted_;
    std::vector<int>     to_prefetch_;

    StepStats                stats_;
    int64_t                  left_ns_ = 0;  // when the last layer returned
    CacheTotals              cache_mark_;
    FlashTotals              flash_mark_;
    std::vector<LayerRecord> layers_;
    std::string              error_;
};

}  // namespace les
