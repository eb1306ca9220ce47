#include "imatrix.h"
#include "les_session.h"
#include "machine.h"
#include "nlohmann/json.hpp"
#include "quantize.h"
#include "run_job.h"
#include "session.h"

#include <algorithm>
#include <cstring>

struct les_session {
    std::unique_ptr<les::InputSums> sums;
    std::unique_ptr<les::Session>   session;
    std::string                     error, lines;
};

namespace {

int g_log_level = 1;

void log_callback(ggml_log_level level, const char * text, void *) {
    const bool show = g_log_level >= 3 || (g_log_level == 2 && level == GGML_LOG_LEVEL_WARN) ||
                      (g_log_level >= 1 && level == GGML_LOG_LEVEL_ERROR);
    if (show) {
        fputs(text, stderr);
    }
}

template <typename F>
int guarded(les_session * s, F && f) {
    try {
        return f();
    } catch (const les::Error & e) {
        s->error = e.tag + ": " + e.what;
    } catch (const std::exception & e) {
        s->error = std::string("run: ") + e.what();
    }
    return -1;
}

}  // namespace

extern "C" {

les_session * les_open(const char * job_json, char * error, size_t error_size) {
    auto      s  = std::make_unique<les_session>();
    const int rc = guarded(s.get(), [&] {
        s->session = std::make_unique<les::Session>(les::parse_job(job_json));
        return 0;
    });
    if (rc != 0) {
        snprintf(error, error_size, "%s", s->error.c_str());
        return nullptr;
    }
    return s.release();
}

void les_close(les_session * s) {
    delete s;
}

int les_begin(les_session * s, const int32_t * prompt, int n_prompt, int n_predict, const int32_t * force,
              int ignore_eos) {
    return guarded(s, [&] {
        std::vector<int32_t> forced;
        if (force) {
            forced.assign(force, force + n_predict);
        }
        s->session->begin({ prompt, prompt + n_prompt }, n_predict, std::move(forced), ignore_eos != 0);
        return 0;
    });
}

int les_next(les_session * s) {
    return guarded(s, [&] { return s->session->next() ? 1 : 0; });
}

int les_eval(les_session * s, int n, const int32_t * tokens, const int32_t * pos, const int32_t * seq,
             const int32_t * n_seq, const int8_t * want) {
    llama_batch batch = llama_batch_init(n, 0, n > 0 ? std::max(1, *std::max_element(n_seq, n_seq + n)) : 1);
    batch.n_tokens    = n;
    for (int i = 0; i < n; i++) {
        batch.token[i]    = tokens[i];
        batch.pos[i]      = pos[i];
        batch.n_seq_id[i] = n_seq[i];
        for (int k = 0; k < n_seq[i]; k++) {
            batch.seq_id[i][k] = seq[i] + k;
        }
        batch.logits[i] = want[i];
    }
    const int rc = guarded(s, [&] {
        s->session->eval(batch);
        return 0;
    });
    llama_batch_free(batch);
    return rc;
}

int les_clear(les_session * s, int seq) {
    return guarded(s, [&] {
        s->session->clear(seq);
        return 0;
    });
}

const float * les_logits(les_session * s, int * n_rows, int * n_vocab) {
    const auto & logits = s->session->logits();
    *n_vocab            = s->session->n_vocab();
    *n_rows             = int(logits.size() / size_t(std::max(1, *n_vocab)));
    return logits.data();
}

int32_t les_next_token(les_session * s) {
    return s->session->next_token();
}

void les_interrupt(les_session * s) {
    s->session->interrupt();
}

const char * les_header(les_session * s) {
    return s->session->header().c_str();
}

const char * les_take_lines(les_session * s) {
    s->lines = s->session->take_lines();
    return s->lines.c_str();
}

const char * les_finish(les_session * s) {
    const size_t colon = s->error.find(": ");
    return s->session->finish(colon == std::string::npos ? "" : s->error.substr(colon + 2)).c_str();
}

const char * les_error(les_session * s) {
    return s->error.c_str();
}

int les_run_job(const char * job_json, les_take take, void * context, char * error, size_t error_size) {
    int        rc = 2;
    les::Error failed;
    try {
        failed = les::run_job(les::parse_job(job_json), [&](const std::string & l) { take(l.c_str(), context); });
        rc     = failed.tag.empty() ? 0 : 1;
    } catch (const les::Error & e) {
        failed = e;
    } catch (const std::exception & e) {
        failed = { "run", e.what() };
    }
    if (rc != 0) {
        snprintf(error, error_size, "%s: %s", failed.tag.c_str(), failed.what.c_str());
    }
    return rc;
}

int les_stop_job(void) {
    return les::stop_job() ? 1 : 0;
}

void * les_model(les_session * s) {
    return s->session->model();
}

void * les_context(les_session * s) {
    return s->session->context();
}

int les_imatrix_pass(les_session * s, const int32_t * tokens, int n_tokens) {
    return guarded(s, [&] {
        if (!s->sums) {
            s->sums = std::make_unique<les::InputSums>();
            s->session->observe(s->sums.get());
        }
        s->session->observe_pass({ tokens, tokens + n_tokens });
        return 0;
    });
}

int les_imatrix_entry(les_session * s, int index, les_imatrix_sums * entry) {
    if (!s->sums || index < 0 || size_t(index) >= s->sums->entries().size()) {
        return -1;
    }
    const auto & [name, e] = *std::next(s->sums->entries().begin(), index);
    *entry = { name.c_str(),  e.width,        int64_t(e.sums.size()) / e.width, int64_t(e.counts.size()),
               e.sums.data(), e.counts.data() };
    return 0;
}

const char * les_quantize_types(const char * job_json) {
    static std::string result;
    try {
        result = les::quantize_types_json(job_json);
    } catch (const les::Error & e) {
        result = nlohmann::json{ { "error", e.tag + ": " + e.what } }.dump();
    } catch (const std::exception & e) {
        result = nlohmann::json{ { "error", std::string("run: ") + e.what() } }.dump();
    }
    return result.c_str();
}

int les_convert_rows(const les_rows * rows, int to_type, void * to, int n_threads, char * error, size_t error_size) {
    try {
        les::convert_rows(*rows, to_type, to, n_threads);
        return 0;
    } catch (const les::Error & e) {
        snprintf(error, error_size, "%s: %s", e.tag.c_str(), e.what.c_str());
    } catch (const std::exception & e) {
        snprintf(error, error_size, "run: %s", e.what());
    }
    return -1;
}

const char * les_machine(const char * path) {
    static std::string result;
    result = les::machine_json(path ? path : "");
    return result.c_str();
}

const char * les_sample(const char * thermal_state) {
    static std::string result;
    result = les::sample_json(thermal_state ? thermal_state : "");
    return result.c_str();
}

const char * les_iobench(const char * job_json) {
    static std::string result;
    result = les::iobench_json(job_json);
    return result.c_str();
}

void les_log_level(int level) {
    g_log_level = level;
    llama_log_set(log_callback, nullptr);
}
}
