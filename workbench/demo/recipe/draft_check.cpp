// Runs a target and its DSpark drafter through llama.cpp's own speculative loop, greedily, and beside it without a draft.
//
//   draft_check TARGET.gguf DRAFT.gguf PROMPTS.txt N_PREDICT P_MIN > result.jsonl
//
// P_MIN cuts a draft at the first slot whose confidence is below it (0: never). PROMPTS.txt: one prompt per line,
// "kind id id id …". One JSON object per prompt: rounds, emitted and drafted tokens, how often each draft slot was
// reached and accepted, where the text first differs from decoding without a draft (-1: never), and by how much the
// best token led the second there (in logits).

#include "common.h"
#include "llama.h"
#include "speculative.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

static llama_token argmax(llama_context * ctx, int32_t row) {
    const float * logits = llama_get_logits_ith(ctx, row);
    const int32_t n      = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    return (llama_token) (std::max_element(logits, logits + n) - logits);
}

static float lead(llama_context * ctx, int32_t row) {
    const float * logits = llama_get_logits_ith(ctx, row);
    const int32_t n      = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    float best[2] = { -INFINITY, -INFINITY };
    for (int32_t i = 0; i < n; ++i) {
        if (logits[i] > best[0]) {
            best[1] = best[0];
            best[0] = logits[i];
        } else {
            best[1] = std::max(best[1], logits[i]);
        }
    }
    return best[0] - best[1];
}

struct Decoded {
    std::vector<llama_token> tokens;
    std::vector<float> leads;
};

static Decoded plain(llama_context * ctx, const std::vector<llama_token> & prompt, int n_predict) {
    llama_memory_clear(llama_get_memory(ctx), true);
    common_batch batch(ctx);
    for (size_t i = 0; i < prompt.size(); ++i) {
        batch.add(prompt[i], (llama_pos) i, 0, i + 1 == prompt.size());
    }
    Decoded out;
    for (int n = 0; n < n_predict; ++n) {
        llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get());
        out.tokens.push_back(argmax(ctx, batch.size() - 1));
        out.leads.push_back(lead(ctx, batch.size() - 1));
        batch.clear();
        batch.add(out.tokens.back(), (llama_pos) (prompt.size() + n), 0, true);
    }
    return out;
}

int main(int argc, char ** argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: draft_check TARGET.gguf DRAFT.gguf PROMPTS.txt N_PREDICT P_MIN\n");
        return 2;
    }
    const int n_predict = std::stoi(argv[4]);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();

    llama_model_params mparams = llama_model_default_params();
    mparams.use_extra_bufts    = false;
    llama_model * target = llama_model_load_from_file(argv[1], mparams);
    llama_model * draft  = llama_model_load_from_file(argv[2], mparams);
    if (!target || !draft) {
        fprintf(stderr, "error: cannot load the models\n");
        return 1;
    }
    char block_text[16] = {};
    llama_model_meta_val_str(draft, "dflash.block_size", block_text, sizeof(block_text));
    const int block = std::stoi(block_text);

    llama_context_params cparams = llama_context_default_params();
    cparams.n_ctx = cparams.n_batch = cparams.n_ubatch = 512;
    cparams.n_threads = cparams.n_threads_batch = 1;
    cparams.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context * ctx_plain = llama_init_from_model(target, cparams);
    llama_context * ctx_tgt   = llama_init_from_model(target, cparams);
    cparams.ctx_other = ctx_tgt;
    llama_context * ctx_dft = llama_init_from_model(draft, cparams);

    common_params_speculative params;
    params.types         = { COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK };
    params.draft.ctx_tgt = ctx_tgt;
    params.draft.ctx_dft = ctx_dft;
    params.draft.n_max   = block;
    params.draft.n_min   = 0;
    params.draft.p_min   = std::stof(argv[5]);
    params.draft.backend_sampling = false;
    common_speculative_ptr spec(common_speculative_init(params, 1));

    std::ifstream file(argv[3]);
    for (std::string line; std::getline(file, line);) {
        std::istringstream fields(line);
        std::string kind;
        fields >> kind;
        std::vector<llama_token> prompt;
        for (llama_token id; fields >> id;) {
            prompt.push_back(id);
        }
        llama_memory_clear(llama_get_memory(ctx_tgt), true);
        llama_memory_clear(llama_get_memory(ctx_dft), true);
        common_batch batch(ctx_tgt);
        for (size_t i = 0; i + 1 < prompt.size(); ++i) {
            batch.add(prompt[i], (llama_pos) i, 0, false);
        }
        llama_process(ctx_tgt, LLAMA_PROCESS_TYPE_DECODE, batch.get());
        common_speculative_process(spec.get(), batch);
        llama_tokens context(prompt.begin(), prompt.end() - 1);
        common_speculative_begin(spec.get(), 0, context);

        llama_token last = prompt.back();
        int rounds = 0, drafted = 0;
        std::vector<llama_token> out;
        std::vector<int> offered(block, 0), accepted(block, 0);
        while ((int) out.size() < n_predict) {
            const llama_pos n_past = (llama_pos) context.size();
            llama_tokens tokens;
            common_speculative_get_draft_params(spec.get(), 0) = { true, block, n_past, last, &context, &tokens };
            common_speculative_draft(spec.get());
            llama_memory_seq_rm(llama_get_memory(ctx_dft), 0, n_past, -1);

            batch.clear();
            batch.add(last, n_past, 0, true);
            for (size_t i = 0; i < tokens.size(); ++i) {
                batch.add(tokens[i], n_past + 1 + (llama_pos) i, 0, true);
            }
            llama_process(ctx_tgt, LLAMA_PROCESS_TYPE_DECODE, batch.get());
            common_speculative_process(spec.get(), batch);

            size_t n = 0;
            context.push_back(last);
            for (;; ++n) {
                const llama_token token = argmax(ctx_tgt, (int32_t) n);
                out.push_back(token);
                last = token;
                const bool offered_here = n < tokens.size();
                if (offered_here) {
                    offered[n]++;
                }
                if (!offered_here || tokens[n] != token) {
                    break;
                }
                accepted[n]++;
                context.push_back(token);
            }
            common_speculative_accept(spec.get(), 0, (uint16_t) n);
            llama_memory_seq_rm(llama_get_memory(ctx_tgt), 0, (llama_pos) context.size(), -1);
            llama_memory_seq_rm(llama_get_memory(ctx_dft), 0, (llama_pos) context.size(), -1);
            rounds++;
            drafted += (int) tokens.size();
        }
        const Decoded reference = plain(ctx_plain, prompt, n_predict);
        int differs = -1;
        for (int i = 0; i < n_predict && differs < 0; ++i) {
            differs = out[i] != reference.tokens[i] ? i : -1;
        }
        printf("{\"kind\": \"%s\", \"rounds\": %d, \"emitted\": %zu, \"drafted\": %d, \"first_difference\": %d, "
               "\"lead\": %g, \"offered\": [",
               kind.c_str(), rounds, out.size(), drafted, differs, differs < 0 ? 0.0 : (double) reference.leads[differs]);
        for (int i = 0; i < block; ++i) {
            printf("%s%d", i ? ", " : "", offered[i]);
        }
        printf("], \"accepted\": [");
        for (int i = 0; i < block; ++i) {
            printf("%s%d", i ? ", " : "", accepted[i]);
        }
        printf("]}\n");
        fflush(stdout);
    }
    return 0;
}
