// How many tokens to draft, and how many of them to verify, decided anew each round.
#pragma once

#include <cstdint>
#include <vector>

namespace les {

// What a round cost and gave. Without verified tokens it is a plain step.
struct DraftRound {
    int                asked = 0, verified = 0, accepted = 0;
    std::vector<float> confidence;  // of the drafted tokens; empty where the drafter has none
    int64_t            decode_ns = 0, wait_ns = 0, bytes = 0;  // the target's call, its wait for flash, what it read
    int64_t            draft_ns = 0, inject_ns = 0;
};

// A batch of n tokens is expected to take the compute of a plain step and more for each further token, and its wait for
// flash times the experts it must read over a plain step's. Both are learned from the rounds, so what is cached and
// what the flash gives are in them. The drafter's confidence, checked against what was accepted, says how many tokens
// that buys.
//
// Trying is paid from a small share of the time spent, most of it in advance, and from what drafting gained; no round
// may lose more than is there. Where it does not pay for the least that can be tried, the drafter rests until it does:
// text that cannot be drafted costs at most that share.
class DraftWidth {
  public:
    // `draft_ns`: what a draft of `most` tokens takes, if known.
    DraftWidth(int most, int n_expert, int n_expert_used, int64_t draft_ns);

    void restart(int n_predict);                          // other text, same machine
    void learn_prompt(int n_tokens, int64_t compute_ns);  // of the prompt's latest batch
    int  ask(int most);                                   // tokens to ask the drafter for; 0: a plain step
    int  keep(const std::vector<float> & confidence, int drafted) const;  // how many of them to verify
    void learn(const DraftRound & round);

    double expected_ns(int n_tokens) const;  // of verifying

  private:
    double union_of(int n_tokens) const;
    double plain_ns(int n_tokens) const;
    double draft_ns(int asked) const;
    int    ask_width(int most) const;
    double belief(double confidence) const;  // how likely a token is accepted that the drafter is so sure of
    int    probe_width(int most) const;
    void   learn_times(const DraftRound & round);
    void   learn_acceptance(const DraftRound & round);

    int                 most_, n_expert_, n_used_;
    double              step_ns_ = 0, wait_ns_ = 0, step_bytes_ = 0;  // of a plain step
    double              slope_     = 0;                               // compute of a further token, over a plain step's
    double              prompt_ns_ = 0;                               // compute of a token of the prompt
    double              sharing_   = 0.75;  // reads beyond a plain step's, over those of tokens routed independently
    double              inject_ns_ = 0;
    std::vector<double> correction_;  // measured over expected, by tokens verified
    std::vector<double> draft_ns_;    // by tokens asked for; 0: never measured

    double accept_       = 0;   // how often a drafted token was accepted once reached
    double likely_       = -1;  // the drafter's confidence of late; negative: it has none
    double accepted_sum_ = 0, confidence_sum_ = 0;

    bool   tried_       = false;  // since it last began to ask
    double balance_ns_  = 0;      // what may be lost by trying
    double n_predict_   = 0;
    int    since_plain_ = 0;
    int    n_plain_     = 0;
};

}  // namespace les
