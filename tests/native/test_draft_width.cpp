// The draft length against simulated machines, with simulated texts and with recorded drafts: no clock, so the bounds
// are exact.
#include "draft_width.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

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
// As measured with the embedded model on an emulated flash of 400 MB/s.
static const Machine emulated      = { 6, 18, 0.63, 0.64, 0.8, 0.85, 0.4 };

constexpr int k_most = 6;

// What a draft at a place in the text would give.
struct Draft {
    int                accepted;
    std::vector<float> confidence;
};
using Drafts = std::function<Draft(int)>;

// Time per token over that of plain decoding.
static double once(const Machine & m, int tokens, const Drafts & drafts, int fixed, std::mt19937 & rng) {
    DraftWidth width(k_most, 24, 4, int64_t(m.draft(k_most) * 1e6));
    width.restart(tokens);
    auto   uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(rng); };
    double spent   = 0;
    int    done    = 0;
    while (done < tokens) {
        const int   most  = std::min(k_most, tokens - done - 1);
        const Draft draft = drafts(done);
        DraftRound  r;
        r.asked = fixed >= 0 ? std::min(fixed, most) : width.ask(most);
        r.confidence.assign(draft.confidence.begin(), draft.confidence.begin() + r.asked);
        r.verified         = fixed >= 0 ? r.asked : width.keep(r.confidence, r.asked);
        r.accepted         = std::min(r.verified, draft.accepted);
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

// The mean over twenty texts. `likely`: how likely the next drafted token is accepted, at a place in the text;
// `honest`: whether the drafter knows.
static double run(const Machine & m, int tokens, const Likely & likely, bool honest = true, int fixed = -1) {
    double sum = 0;
    for (unsigned seed = 1; seed <= 20; seed++) {
        std::mt19937 rng(seed);
        const Drafts drafts = [&](int at) {
            Draft d = { 0, std::vector<float>(k_most, float(honest ? likely(at) : 0.95)) };
            while (d.accepted < k_most && std::uniform_real_distribution<double>(0, 1)(rng) < likely(at)) {
                d.accepted++;
            }
            return d;
        };
        sum += once(m, tokens, drafts, fixed, rng) / 20;
    }
    return sum;
}

static double best_fixed(const Machine & m, int tokens, const Likely & likely) {
    double best = 1;
    for (int w = 1; w <= k_most; w++) {
        best = std::min(best, run(m, tokens, likely, true, w));
    }
    return best;
}

struct Recorded {
    std::string        name;
    std::vector<Draft> drafts;
};

static std::vector<Recorded> read_drafts(const char * path) {
    std::vector<Recorded> texts;
    std::ifstream         file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        Recorded           text;
        int                positions = 0;
        if (line.empty() || line[0] == '#' || !(words >> text.name >> positions)) {
            continue;
        }
        for (int i = 0; i < positions && std::getline(file, line); i++) {
            std::istringstream numbers(line);
            Draft              d = {};
            numbers >> d.accepted;
            for (float percent; numbers >> percent;) {
                d.confidence.push_back(percent / 100);
            }
            text.drafts.push_back(d);
        }
        texts.push_back(text);
    }
    return texts;
}

// The length drafted for every recorded text, against none and against the length that turns out best for that text.
static void recorded(const std::vector<Recorded> & texts) {
    expect(texts.size() == 12, "recorded texts", double(texts.size()));
    for (const Machine & m : { emulated, compute_bound }) {
        double over_plain = 0, over_best = 0, mean = 0;
        for (const Recorded & text : texts) {
            const Drafts drafts = [&](int at) { return text.drafts[size_t(at)]; };
            const int    tokens = int(text.drafts.size());
            const auto   time   = [&](int fixed) {
                double sum = 0;
                for (unsigned seed = 1; seed <= 5; seed++) {
                    std::mt19937 rng(seed);
                    sum += once(m, tokens, drafts, fixed, rng) / 5;
                }
                return sum;
            };
            double best = time(0);
            for (int w = 1; w <= k_most; w++) {
                best = std::min(best, time(w));
            }
            const double adaptive = time(-1);
            printf("  %s: %.3f of plain, the best fixed length %.3f\n", text.name.c_str(), adaptive, best);
            over_plain = std::max(over_plain, adaptive);
            over_best  = std::max(over_best, adaptive / best);
            mean += std::log(adaptive / best) / double(texts.size());
        }
        expect(over_plain <= 1.03, "recorded drafts: the worst over plain", over_plain);
        expect(std::exp(mean) <= (m.wait_ms > 0 ? 1.01 : 1.04), "the mean over the best fixed length", std::exp(mean));
        expect(over_best <= 1.1, "the worst over the best fixed length", over_best);
    }
}

int main(int argc, char ** argv) {
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
    if (argc > 1) {
        recorded(read_drafts(argv[1]));
    }
    printf(failures ? "%d failed\n" : "passed\n", failures);
    return failures != 0;
}
