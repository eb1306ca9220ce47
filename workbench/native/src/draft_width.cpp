#include "draft_width.h"

#include <algorithm>

namespace les {

static constexpr double k_forget    = 0.1;   // weight of the newest round
static constexpr double k_gain      = 1.02;  // drafting must promise this much
static constexpr int    k_try_every = 24;    // rounds between looks at a neighbouring width
static constexpr int    k_patience  = 6;
static constexpr int    k_longest   = 512;

DraftWidth::DraftWidth(int most) : ns_(size_t(most + 1), 0.0), accept_(size_t(most), 0.7) {}

double DraftWidth::expected_tokens(int width) const {
    double tokens = 1, reach = 1;
    for (int i = 0; i < width; i++) {
        reach *= accept_[size_t(i)];
        tokens += reach;
    }
    return tokens;
}

// Measured, or on the line through no draft and the widest measured one.
double DraftWidth::expected_ns(int width) const {
    if (ns_[size_t(width)] > 0) {
        return ns_[size_t(width)];
    }
    for (size_t w = ns_.size() - 1; w > 0; w--) {
        if (ns_[w] > 0) {
            return ns_[0] + (ns_[w] - ns_[0]) * width / double(w);
        }
    }
    return ns_[0] * (1 + 0.5 * width);
}

int DraftWidth::best() const {
    int    best = 0;
    double rate = k_gain * expected_tokens(0) / expected_ns(0);
    for (int w = 1; w < int(ns_.size()); w++) {
        if (expected_tokens(w) / expected_ns(w) > rate) {
            best = w;
            rate = expected_tokens(w) / expected_ns(w);
        }
    }
    return best;
}

int DraftWidth::choose() {
    const int most = int(accept_.size());
    if (nap_left_ > 0) {
        if (--nap_left_ == 0) {
            losing_ = k_patience - 2;  // two rounds to show that it pays by now
            return std::min(1, most);
        }
        return 0;
    }
    if (++rounds_ <= 4) {  // measure: none, one, none, two
        return rounds_ % 2 ? 0 : std::min(int(rounds_) / 2, most);
    }
    const int width = best();
    losing_         = width == 0 ? losing_ + 1 : 0;
    if (losing_ >= k_patience) {
        nap_left_ = nap_;
        nap_      = std::min(2 * nap_, k_longest);
        return 0;
    }
    if (width > 0) {
        nap_ = 32;
    }
    if (rounds_ % k_try_every == 0) {
        return std::clamp(width + ((rounds_ / k_try_every) % 2 ? 1 : -1), 0, most);
    }
    return width;
}

void DraftWidth::learn(int drafted, int accepted, int64_t round_ns) {
    double & ns = ns_[size_t(drafted)];
    ns          = ns > 0 ? ns + k_forget * (double(round_ns) - ns) : double(round_ns);
    for (int i = 0; i < drafted && i <= accepted; i++) {
        double & a = accept_[size_t(i)];
        a += k_forget * ((i < accepted ? 1.0 : 0.0) - a);
    }
}

}  // namespace les
