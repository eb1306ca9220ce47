// The few arguments of upstream's imatrix tool that the comparison needs: MODEL TEXT OUT CHUNK_TOKENS THREADS.
// Upstream's own parser would bring in a dozen more files.

#include "arg.h"
#include "common.h"

#include <fstream>
#include <sstream>

bool common_params_parse(int argc, char ** argv, common_params & params, llama_example, void (*)(int, char **)) {
    if (argc != 6) {
        return false;
    }
    std::stringstream text;
    text << std::ifstream(argv[2]).rdbuf();
    params.model.path                = argv[1];
    params.prompt                    = text.str();
    params.prompt_file               = argv[2];
    params.out_file                  = argv[3];
    params.n_ctx                     = std::stoi(argv[4]);
    params.n_batch                   = params.n_ctx;
    params.n_ubatch                  = params.n_ctx;
    params.cpuparams.n_threads       = std::stoi(argv[5]);
    params.cpuparams_batch.n_threads = std::stoi(argv[5]);
    params.no_extra_bufts            = true;  // repacked weights use other kernels
    params.fit_params                = false;
    params.compute_ppl               = false;
    return true;
}
