#include "predictor.h"

#include "llama-model.h"

#include <cmath>

namespace les {

namespace {

// Architectures whose expert FFN and router this runtime reproduces; `from_file` reads the gating key.
struct Architecture {
    const char * name;
    Gating       gating;
    bool         from_file;
};

constexpr Architecture k_architectures[] = {
    { "qwen3moe", Gating::softmax, false },      { "olmoe", Gating::softmax, false },
    { "gpt-oss", Gating::softmax_after, false }, { "qwen35moe", Gating::softmax, false },
    { "qwen3next", Gating::softmax, false },     { "qwen2moe", Gating::softmax, false },
    { "deepseek2", Gating::softmax, true },      { "glm4moe", Gating::sigmoid, true },
    { "bailingmoe2", Gating::sigmoid, true },    { "granitemoe", Gating::softmax, false },
    { "hunyuan-moe", Gating::softmax, false },   { "llama", Gating::softmax, false },
    { "ernie4_5-moe", Gating::softmax, false },  { "dots1", Gating::softmax, true },
    { "minimax-m2", Gating::sigmoid, true },     { "lfm2moe", Gating::sigmoid, true },
};

const Architecture * find_architecture(const std::string & name) {
    for (const auto & a : k_architectures) {
        if (name == a.name) {
            return &a;
        }
    }
    return nullptr;
}

}  // namespace

void check_architecture(const ExpertMap & map) {
    if (find_architecture(map.arch)) {
        return;
    }
    std::string known;
    for (const auto & a : k_architectures) {
        known += std::string(known.empty() ? "" : ", ") + a.name;
    }
    throw Error{ "arch", "architecture '" + map.arch + "' (" + map.paths[0] +
                             ") cannot be streamed yet; use experts=resident. Streamed: " + known };
}

RouterRule router_rule(const ExpertMap & map, const llama_model & model) {
    check_architecture(map);
    const auto * arch = find_architecture(map.arch);
    RouterRule   rule;
    rule.gating = arch->gating;
    if (arch->from_file) {
        switch (model.hparams.expert_gating_func) {
            case LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX:
                rule.gating = Gating::softmax;
                break;
            case LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID:
                rule.gating = Gating::sigmoid;
                break;
            case LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX_WEIGHT:
                rule.gating = Gating::softmax_after;
                break;
            case LLAMA_EXPERT_GATING_FUNC_TYPE_SQRT_SOFTPLUS:
                rule.gating = Gating::sqrt_softplus;
                break;
            default:
                break;
        }
    }
    rule.n_groups      = int(model.hparams.n_expert_groups);
    rule.n_groups_used = int(model.hparams.n_group_used);
    return rule;
}

Predictor::Predictor(const ExpertMap & map, const llama_model & model)
    : rule_(router_rule(map, model)), n_expert_(map.n_expert) {
    for (const auto & layer : map.layers) {
        const std::string blk = "blk." + std::to_string(layer.block);
        auto              get = [&](const char * suffix) {
            return const_cast<ggml_tensor *>(model.get_tensor((blk + suffix).c_str()));
        };
        Router r;
        r.weight    = get(".ffn_gate_inp.weight");
        r.bias      = get(".ffn_gate_inp.bias");
        r.selection = get(".exp_probs_b.bias");
        if (!r.weight) {
            throw Error{ "arch", blk + ".ffn_gate_inp.weight is missing: there is no router to look ahead with" };
        }
        routers_.push_back(r);
    }
}

ggml_tensor * Predictor::rank(ggml_context * ctx, const Router & router, ggml_tensor * input, int width) const {
    const int64_t n_tokens = input->ne[1];
    ggml_tensor * scores   = ggml_mul_mat(ctx, router.weight, input);
    if (rule_.gating == Gating::sqrt_softplus) {
        ggml_prec_set_acc(scores, GGML_PREC_F32);
    }
    if (router.bias) {
        scores = ggml_add(ctx, scores, router.bias);
    }
    switch (rule_.gating) {
        case Gating::softmax:
            scores = ggml_soft_max(ctx, scores);
            break;
        case Gating::sigmoid:
            scores = ggml_sigmoid(ctx, scores);
            break;
        case Gating::sqrt_softplus:
            scores = ggml_sqrt(ctx, ggml_softplus(ctx, scores));
            break;
        case Gating::softmax_after:
            break;
    }
    if (router.selection) {
        scores = ggml_add(ctx, scores, router.selection);
    }
    if (rule_.n_groups > 1) {
        const int64_t per_group = n_expert_ / rule_.n_groups;
        ggml_tensor * groups    = ggml_reshape_3d(ctx, scores, per_group, rule_.n_groups, n_tokens);
        ggml_tensor * best      = ggml_argsort_top_k(ctx, groups, 2);
        best = ggml_get_rows(ctx, ggml_reshape_4d(ctx, groups, 1, per_group, rule_.n_groups, n_tokens), best);
        best = ggml_sum_rows(ctx, ggml_reshape_3d(ctx, best, 2, rule_.n_groups, n_tokens));
        best = ggml_reshape_2d(ctx, best, rule_.n_groups, n_tokens);
        ggml_tensor * kept = ggml_argsort_top_k(ctx, best, rule_.n_groups_used);
        scores             = ggml_get_rows(ctx, groups, kept);
        scores             = ggml_set_rows(ctx, ggml_fill(ctx, groups, -INFINITY), scores, kept);
        scores             = ggml_reshape_2d(ctx, scores, n_expert_, n_tokens);
    }
    return ggml_argsort_top_k(ctx, scores, width);
}

std::vector<int32_t> Predictor::predict(int layer, float * input, int64_t n_tokens, int width, ggml_backend_t cpu) {
    const Router & router = routers_[layer];
    const size_t   need   = size_t(16 * n_expert_ * n_tokens) * sizeof(float) + 64 * ggml_tensor_overhead() +
                        ggml_graph_overhead_custom(64, false);
    if (memory_.size() < need) {
        memory_.resize(need);
    }
    ggml_context * ctx = ggml_init({ memory_.size(), memory_.data(), false });
    ggml_set_no_alloc(ctx, true);
    ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, router.weight->ne[0], n_tokens);
    x->data         = input;
    ggml_set_no_alloc(ctx, false);
    ggml_tensor * ids   = rank(ctx, router, x, width);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, 64, false);
    ggml_build_forward_expand(graph, ids);

    std::vector<int32_t> ranked;
    if (ggml_backend_graph_compute(cpu, graph) == GGML_STATUS_SUCCESS) {
        ranked.reserve(size_t(n_tokens) * width);
        for (int64_t t = 0; t < n_tokens; t++) {
            const auto * row = reinterpret_cast<const int32_t *>(static_cast<const char *>(ids->data) + t * ids->nb[1]);
            ranked.insert(ranked.end(), row, row + width);
        }
    }
    ggml_free(ctx);
    return ranked;
}

}  // namespace les
