// The router lookahead: a layer's own selection rule applied to another layer's router input.
#pragma once

#include "expert_map.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <cstdint>
#include <vector>

struct llama_model;

namespace les {

enum class Gating { softmax, sigmoid, softmax_after, sqrt_softplus };

// How an architecture's router turns logits into a ranking of experts.
struct RouterRule {
    Gating gating        = Gating::softmax;
    int    n_groups      = 1;
    int    n_groups_used = 1;
};

// What the runtime knows of an architecture; Throws Error(arch) for one that cannot be streamed yet.
RouterRule router_rule(const ExpertMap & map, const llama_model & model);
void       check_architecture(const ExpertMap & map);

// Runs the same ggml operations, kernels and tie-breaking as the model's graph, so that the layer's own
// fresh input predicts exactly the experts the model selects.
class Predictor {
  public:
    Predictor(const ExpertMap & map, const llama_model & model);

    // Experts ranked best first, [n_tokens][width], for `input` [n_embd, n_tokens] (contiguous F32).
    // Empty on failure.
    std::vector<int32_t> predict(int layer, float * input, int64_t n_tokens, int width, ggml_backend_t cpu);

  private:
    struct Router {
        ggml_tensor * weight    = nullptr;
        ggml_tensor * bias      = nullptr;  // added to the logits
        ggml_tensor * selection = nullptr;  // added to the probabilities, for selection only
    };

    ggml_tensor * rank(ggml_context * ctx, const Router & router, ggml_tensor * input, int width) const;

    RouterRule           rule_;
    int64_t              n_expert_;
    std::vector<Router>  routers_;
    std::vector<uint8_t> memory_;
};

}  // namespace les
