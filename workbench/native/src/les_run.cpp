// les-run CONFIG.json | - : one JSON job in, JSON Lines out. Exit code 0, 1 (the run failed), 2 (bad input).
#include "les_session.h"
#include "platform.h"
#include "session.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

namespace {

les::Session *        g_session = nullptr;
volatile sig_atomic_t g_loading = 1;

void on_signal(int) {
    if (g_session) {
        g_session->interrupt();
    } else if (g_loading) {  // nothing has been recorded that could be kept
        _exit(130);
    }
}

int refuse(const les::Error & e) {
    fprintf(stderr, "error[%s]: %s\n", e.tag.c_str(), e.what.c_str());
    return 2;
}

void emit(les::Session & session, bool to_stdout) {
    const std::string lines = session.take_lines();
    if (to_stdout) {
        fwrite(lines.data(), 1, lines.size(), stdout);
        fflush(stdout);
    }
}

int generate(const les::Job & job) {
    les::Session session(job);
    g_session            = &session;
    g_loading            = 0;
    const bool to_stdout = job.telemetry_path.empty();
    FILE *     logits    = nullptr;
    if (!job.logits_path.empty()) {
        logits = fopen(job.logits_path.c_str(), "wb");
        if (!logits) {
            throw les::Error{ "file", "cannot write logits to " + job.logits_path };
        }
    }
    const auto prompt = job.prompt_tokens.empty() ? session.tokenize(job.prompt) : job.prompt_tokens;
    auto       begin  = [&] { session.begin(prompt, job.n_predict, job.force_tokens, job.ignore_eos); };
    for (int pass = 0; pass < job.warm_up; pass++) {
        session.mute(true);
        begin();
        while (session.next()) {
        }
        session.mute(false);
    }
    begin();
    std::string error;
    try {
        while (session.next()) {
            if (logits && !session.logits().empty()) {
                fwrite(session.logits().data(), sizeof(float), session.logits().size(), logits);
            }
            emit(session, to_stdout);
        }
    } catch (const les::Error & e) {
        error = e.what;
        fprintf(stderr, "error[%s]: %s\n", e.tag.c_str(), e.what.c_str());
    }
    session.finish(error);
    emit(session, to_stdout);
    if (logits && fclose(logits) != 0) {
        fprintf(stderr, "error[file]: %s is incomplete: the disk is full?\n", job.logits_path.c_str());
        return 1;
    }
    g_session = nullptr;
    return error.empty() ? 0 : 1;
}

// A bounded spin at OpenMP barriers is fastest idle and survives a busy neighbour; libgomp reads this at start.
void choose_waiting(char ** argv) {
    if (!getenv("GOMP_SPINCOUNT") && !getenv("OMP_WAIT_POLICY")) {
        setenv("GOMP_SPINCOUNT", "10000", 1);
        execv(les::self_path().c_str(), argv);
    }
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: les-run CONFIG.json   (or - for standard input)\n");
        return 2;
    }
    choose_waiting(argv);
    std::stringstream text;
    if (std::string(argv[1]) == "-") {
        text << std::cin.rdbuf();
    } else {
        std::ifstream in(argv[1]);
        if (!in) {
            return refuse({ "file", std::string("cannot read ") + argv[1] });
        }
        text << in.rdbuf();
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    les_log_level(1);
    try {
        return generate(les::parse_job(text.str()));
    } catch (const les::Error & e) {
        return refuse(e);
    } catch (const std::exception & e) {
        return refuse({ "run", e.what() });
    }
}
