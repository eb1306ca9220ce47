#include "draft_width.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace les {

static constexpr double k_forget      = 0.15;   // weight of the newest round
static constexpr double k_share       = 0.008;  // of the time spent that may be lost by trying
static constexpr double k_upfront     = 0.02;   // of the time expected for the whole text, given at once
static constexpr double k_most_credit = 12;     // plain steps
static constexpr double k_slope       = 0.45;   // compute of a further token over a plain step's, at least at first
static constexpr double k_probe       = 0.25;   // of a plain step: what a first draft may take
static constexpr int    k_refresh     = 48;     // rounds that ask between plain ones, the first sooner

static constexpr double k_prior  = 8;      // tokens for which the drafter's confidence is believed
static constexpr double k_doubt  = 0.02;   // weight of the newest token in how far it is
static constexpr double k_recent = 0.2;    // weight of the newest confidence in what the next draft may expect
static constexpr double k_accept = 0.8;    // of a drafted token, before any was seen
static constexpr double k_heed   = 0.05;   // weight of the newest drafted token
static constexpr double k_sure   = 0.995;  // at most

static void blend(double & average, double sample, double weight = k_forget) {
    average = average > 0 ? average + weight * (std::min(sample, 4 * average) - average) : sample;
}

DraftWidth::DraftWidth(int most, int n_expert, int n_expert_used, int64_t draft_ns)
    : most_(most),
      n_expert_(n_expert),
      n_used_(n_expert_used),
      correction_(size_t(most + 2), 1.0),
      draft_ns_(size_t(most + 1), 0.0) {
    draft_ns_.back() = double(draft_ns);
    restart(0);
}

void DraftWidth::restart(int n_predict) {
    n_predict_    = n_predict;
    accept_       = k_accept;
    likely_       = -1;
    accepted_sum_ = confidence_sum_ = k_prior;
    balance_ns_                     = k_upfront * n_predict_ * step_ns_;
    tried_                          = false;
    since_plain_                    = 0;
}

// A wide batch spends on a token what a verified one at least will.
void DraftWidth::learn_prompt(int n_tokens, int64_t compute_ns) {
    prompt_ns_ = n_tokens > 1 ? double(compute_ns) / n_tokens : prompt_ns_;
}

// Experts that n tokens routed independently would read, over those of one.
double DraftWidth::union_of(int n_tokens) const {
    return n_used_ > 0 ? (1 - std::pow(1 - double(n_used_) / n_expert_, n_tokens)) * n_expert_ / n_used_ : n_tokens;
}

double DraftWidth::plain_ns(int n_tokens) const {
    const double compute = (step_ns_ - wait_ns_) * (1 + slope_ * (n_tokens - 1));
    return compute + wait_ns_ * (1 + sharing_ * (union_of(n_tokens) - 1));
}

double DraftWidth::expected_ns(int n_tokens) const {
    return n_tokens > 1 ? correction_[size_t(n_tokens)] * plain_ns(n_tokens) : step_ns_;
}

double DraftWidth::draft_ns(int asked) const {
    if (draft_ns_[size_t(asked)] > 0) {
        return draft_ns_[size_t(asked)];
    }
    for (size_t w = draft_ns_.size() - 1; w > 0; w--) {
        if (draft_ns_[w] > 0) {
            return draft_ns_[w] * (1 + double(asked)) / (1 + double(w));
        }
    }
    return 0;
}

// The longest draft that costs little beside a step.
int DraftWidth::probe_width(int most) const {
    int width = std::min(2, most);
    while (width < most && draft_ns(width + 1) <= k_probe * step_ns_) {
        width++;
    }
    return width;
}

double DraftWidth::belief(double confidence) const {
    return std::clamp(confidence * accepted_sum_ / confidence_sum_, 0.0, k_sure);
}

// The best by how sure the drafter was lately, or else by what was accepted.
int DraftWidth::ask_width(int most) const {
    const double accept = likely_ >= 0 ? belief(likely_) : accept_;
    int          best   = 0;
    double       value = 0, reach = 1, tokens = 1;
    for (int w = 1; w <= most; w++) {
        reach *= accept;
        tokens += reach;
        const double rate = tokens / (expected_ns(1 + w) + draft_ns(w));
        if (best == 0 || rate > value) {
            best  = w;
            value = rate;
        }
    }
    return best;
}

int DraftWidth::ask(int most) {
    most = std::min(most, most_);
    if (step_ns_ <= 0 || most < 1) {
        return 0;
    }
    const int    probe = probe_width(most);
    const double cost  = draft_ns(probe) + inject_ns_ + expected_ns(2) - step_ns_;  // of the least that can be tried
    const bool   affordable = balance_ns_ >= cost;
    tried_                  = tried_ && affordable;
    if (!tried_) {
        return affordable ? probe : 0;
    }
    if (++since_plain_ >= (n_plain_ < 2 ? k_refresh / 3 : k_refresh)) {
        since_plain_ = 0;
        return 0;
    }
    return ask_width(most);
}

int DraftWidth::keep(const std::vector<float> & confidence, int drafted) const {
    int    best  = 0;
    double value = 1 / step_ns_, reach = 1, tokens = 1;
    for (int i = 0; i < std::min(drafted, most_); i++) {
        reach *= size_t(i) < confidence.size() ? belief(double(confidence[size_t(i)])) : accept_;
        tokens += reach;
        const double cost = expected_ns(i + 2);
        if (tokens / cost > value && cost - step_ns_ <= balance_ns_) {
            best  = i + 1;
            value = tokens / cost;
        }
    }
    return best;
}

void DraftWidth::learn_times(const DraftRound & r) {
    const int    n    = 1 + r.verified;
    const double wait = double(std::min(r.wait_ns, r.decode_ns));
    if (r.verified == 0) {
        const bool first = n_plain_++ == 0;
        blend(step_ns_, double(r.decode_ns));
        blend(wait_ns_, wait);
        blend(step_bytes_, double(r.bytes));
        wait_ns_ = std::min(wait_ns_, step_ns_);
        if (slope_ == 0) {
            slope_ = std::clamp(prompt_ns_ / std::max(1.0, step_ns_ - wait_ns_), k_slope, 1.2);
        }
        balance_ns_ = first ? k_upfront * n_predict_ * step_ns_ : balance_ns_;
    } else if (step_ns_ > 0) {
        if (step_ns_ > wait_ns_) {
            const double compute = (double(r.decode_ns) - wait) / (step_ns_ - wait_ns_);
            blend(slope_, std::clamp((compute - 1) / r.verified, 0.05, 2.0));
        }
        if (step_bytes_ > 0 && union_of(n) > 1) {
            blend(sharing_, std::clamp((double(r.bytes) / step_bytes_ - 1) / (union_of(n) - 1), 0.05, 2.0));
        }
        // A width also tells of its neighbours.
        const double off = std::clamp(double(r.decode_ns) / plain_ns(n), 0.5, 2.0);
        for (int w = 2; w < int(correction_.size()); w++) {
            blend(correction_[size_t(w)], off, k_forget / (1 + std::abs(w - n)));
        }
    }
    if (r.asked > 0 && r.draft_ns > 0) {
        blend(draft_ns_[size_t(r.asked)], double(r.draft_ns));
    }
    if (r.inject_ns > 0) {
        blend(inject_ns_, double(r.inject_ns));
    }
}

void DraftWidth::learn_acceptance(const DraftRound & r) {
    for (float c : r.confidence) {
        likely_ = likely_ < 0 ? double(c) : likely_ + k_recent * (double(c) - likely_);
    }
    for (int i = 0; i < r.verified && i <= r.accepted; i++) {
        const double was = i < r.accepted ? 1 : 0;
        accept_ += k_heed * (was - accept_);
        if (size_t(i) < r.confidence.size()) {
            accepted_sum_   = (1 - k_doubt) * accepted_sum_ + was;
            confidence_sum_ = (1 - k_doubt) * confidence_sum_ + double(r.confidence[size_t(i)]);
        }
    }
}

void DraftWidth::learn(const DraftRound & r) {
    learn_times(r);
    learn_acceptance(r);
    const double tokens   = 1 + r.accepted;
    const double overhead = double(r.draft_ns + r.inject_ns);
    const double gain     = (r.verified > 0 ? tokens * step_ns_ - double(r.decode_ns) : 0) - overhead;
    balance_ns_           = std::min(balance_ns_ + gain + k_share * tokens * step_ns_, k_most_credit * step_ns_);
    tried_                = tried_ || r.asked > 0;
}

}  // namespace les
