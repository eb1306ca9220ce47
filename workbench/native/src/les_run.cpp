// les-run CONFIG.json | - : one JSON job in, JSON Lines out. Exit code 0, 1 (the run failed), 2 (bad input).
#include "les_session.h"
#include "platform.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

namespace {

void on_signal(int) {
    if (!les_stop_job()) {
        _exit(130);  // still loading: nothing has been recorded that could be kept
    }
}

int refuse(const std::string & tag, const std::string & what) {
    fprintf(stderr, "error[%s]: %s\n", tag.c_str(), what.c_str());
    return 2;
}

void print_lines(const char * lines, void *) {
    fputs(lines, stdout);
    fflush(stdout);
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
            return refuse("file", std::string("cannot read ") + argv[1]);
        }
        text << in.rdbuf();
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    les_log_level(1);
    char      error[4096] = {};
    const int rc          = les_run_job(text.str().c_str(), print_lines, nullptr, error, sizeof(error));
    if (rc != 0) {
        const std::string reason(error);
        const size_t      colon = reason.find(": ");
        refuse(reason.substr(0, colon), reason.substr(colon + 2));
    }
    return rc;
}
