// The draft length against simulated machines and texts: no clock, so the bounds are exact.
#include "draft_width.h"

#include <cmath>
#include <cstdio>
#include <functional>
#include <random>

using les::DraftRound;
using les::DraftWidth;
using Likely = std::function<double(int)>;

static int failures = 0;

static void expect(bool ok, const char * what, double value) {
    printf("%s: %s (%.3f)\n", ok ? "ok" : "FAILED", what, value);
    failures += !ok;
}

struct Machine {
    double compute_ms, wait_ms, slope, sharing;  // as in draft_width.h, with 24 experts of which 4 are used
    double draft_ms, draft_slot_ms, inject_ms;

    double decode(int n) const {
        const double more = (1 - std::pow(1 - 4.0 / 24, n)) * 6 - 1;
        return compute_ms * (1 + slope * (n - 1)) + wait_ms * (1 + sharing * more);
    }
    double draft(int w) const { return w > 0 ? draft_ms + w * draft_slot_ms : 0; }
};

static const Machine flash_bound   = { 4, 19, 0.4, 0.7, 0.9, 0.47, 0.35 };
static const Machine compute_bound = { 5, 0, 0.7, 0.7, 0.9, 0.47, 0.35 };

// Time per token over that of plain decoding. `likely`: how likely the next drafted token is accepted, at a place in
// the text; `honest`: whether the drafter knows.
static double once(const Machine & m, int tokens, const Likely & likely, bool honest, int fixed, unsigned seed) {
    std::mt19937 rng(seed);
    DraftWidth   width(6, 24, 4, int64_t(m.draft(6) * 1e6));
    width.restart(tokens);
    auto   uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(rng); };
    double spent   = 0;
    int    done    = 0;
    while (done < tokens) {
        const int  most = std::min(6, tokens - done - 1);
        DraftRound r;
        r.asked = fixed >= 0 ? std::min(fixed, most) : width.ask(most);
        for (int i = 0; i < r.asked; i++) {
            r.confidence.push_back(float(honest ? likely(done) : 0.95));
        }
        r.verified = fixed >= 0 ? r.asked : width.keep(r.confidence, r.asked);
        while (r.accepted < r.verified && uniform() < likely(done)) {
            r.accepted++;
        }
        const double noise = 0.95 + 0.1 * uniform();
        r.decode_ns        = int64_t(noise * m.decode(1 + r.verified) * 1e6);
        r.wait_ns   = int64_t(noise * (m.decode(1 + r.verified) - m.compute_ms * (1 + m.slope * r.verified)) * 1e6);
        r.bytes     = int64_t(1e6 * (1 + m.sharing * ((1 - std::pow(1 - 4.0 / 24, 1 + r.verified)) * 6 - 1)));
        r.draft_ns  = int64_t(m.draft(r.asked) * 1e6);
        r.inject_ns = r.asked > 0 ? int64_t(m.inject_ms * 1e6) : 0;
        spent += double(r.decode_ns + r.draft_ns + r.inject_ns) / 1e6;
        done += 1 + r.accepted;
        width.learn(r);
    }
    return spent / done / m.decode(1);
}

// The mean over texts.
static double run(const Machine & m, int tokens, const Likely & likely, bool honest = true, int fixed = -1) {
    double sum = 0;
    for (unsigned seed = 1; seed <= 20; seed++) {
        sum += once(m, tokens, likely, honest, fixed, seed) / 20;
    }
    return sum;
}

static double best_fixed(const Machine & m, int tokens, const Likely & likely) {
    double best = 1;
    for (int w = 1; w <= 6; w++) {
        best = std::min(best, run(m, tokens, likely, true, w));
    }
    return best;
}

int main() {
    const Likely never         = [](int) { return 0.02; };
    const Likely often         = [](int) { return 0.8; };
    const Likely nearly_always = [](int) { return 0.97; };
    const Likely turning       = [](int at) { return (at / 60) % 2 ? 0.03 : 0.97; };
    for (int tokens : { 64, 256, 1024 }) {
        for (bool honest : { true, false }) {
            const double flash   = run(flash_bound, tokens, never, honest),
                         compute = run(compute_bound, tokens, never, honest);
            expect(flash <= 1.03, "text that cannot be drafted, flash-bound, over plain", flash);
            expect(compute <= 1.03, "the same, compute-bound", compute);
        }
    }
    for (int tokens : { 128, 512 }) {
        for (const Likely & text : { often, nearly_always }) {
            const double best = best_fixed(flash_bound, tokens, text), adaptive = run(flash_bound, tokens, text);
            expect(best < 0.9, "text that can: the best fixed length over plain", best);
            expect(adaptive <= (tokens < 512 ? 1.1 : 1.05) * best, "adaptive over the best fixed length",
                   adaptive / best);
        }
    }
    const double turns = run(flash_bound, 960, turning) / best_fixed(flash_bound, 960, turning);
    expect(turns < 1, "text that turns: adaptive over the best fixed length", turns);
    printf(failures ? "%d failed\n" : "passed\n", failures);
    return failures != 0;
}
