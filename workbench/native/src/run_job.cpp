#include "run_job.h"

#include "session.h"

#include <atomic>

namespace les {

namespace {

std::atomic<Session *> g_session{ nullptr };
std::atomic<bool>      g_begun{ false };

// The session that stop_job reaches, for as long as it lives.
struct Running {
    explicit Running(Session & s) {
        g_session.store(&s);
        g_begun.store(true);
    }

    ~Running() { g_session.store(nullptr); }
};

struct LogitsFile {
    std::string path;
    FILE *      file = nullptr;

    explicit LogitsFile(const std::string & p) : path(p) {
        if (!path.empty() && !(file = fopen(path.c_str(), "wb"))) {
            throw Error{ "file", "cannot write logits to " + path };
        }
    }

    ~LogitsFile() { close(); }

    bool write(const std::vector<float> & logits) {
        return !file || fwrite(logits.data(), sizeof(float), logits.size(), file) == logits.size();
    }

    bool close() {
        FILE * f = file;
        file     = nullptr;
        return !f || fclose(f) == 0;
    }
};

}  // namespace

Error run_job(const Job & job, const std::function<void(const std::string &)> & take) {
    Session    session(job);
    Running    running(session);
    LogitsFile logits(job.logits_path);
    const auto prompt = job.prompt_tokens.empty() ? session.tokenize(job.prompt) : job.prompt_tokens;
    auto       begin  = [&] { session.begin(prompt, job.n_predict, job.force_tokens, job.ignore_eos); };
    auto       emit   = [&] {
        const std::string lines = session.take_lines();
        if (job.telemetry_path.empty()) {
            take(lines);
        }
    };
    for (int pass = 0; pass < job.warm_up; pass++) {
        session.mute(true);
        begin();
        while (session.next()) {
        }
        session.mute(false);
    }
    begin();
    Error failed;
    bool  written = true;
    try {
        while (session.next()) {
            written = logits.write(session.logits()) && written;
            emit();
        }
    } catch (const Error & e) {
        failed = e;
    }
    session.finish(failed.what);
    emit();
    if (!logits.close() || !written) {
        failed = { "file", job.logits_path + " is incomplete: the disk is full?" };
    }
    return failed;
}

bool stop_job() {
    if (Session * session = g_session.load()) {
        session->interrupt();
    }
    return g_begun.load();
}

}  // namespace les
