// How many tokens to draft: chosen each round from what rounds of each width took and yielded.
#pragma once

#include <cstdint>
#include <vector>

namespace les {

// A round's time holds everything a longer draft costs here and now: extra expert reads (what is cached, what the flash
// gives), the wider batch's compute, drafting itself. Where drafting does not pay, the drafter is left alone for
// longer and longer, since even keeping it informed costs.
class DraftWidth {
  public:
    explicit DraftWidth(int most);

    int  choose();
    bool informed() const { return nap_left_ <= k_inform; }  // whether the drafter must see the next decode call
    bool waking() const { return nap_left_ == k_inform; }    // it did not see the ones before
    void learn(int drafted, int accepted, int64_t round_ns);

  private:
    static constexpr int k_inform = 8;  // rounds of listening before the drafter is asked again

    double expected_tokens(int width) const;
    double expected_ns(int width) const;
    int    best() const;

    std::vector<double> ns_;      // by width; 0: never measured
    std::vector<double> accept_;  // by position: how often it was accepted once reached
    int64_t             rounds_   = 0;
    int                 losing_   = 0;  // rounds in a row in which drafting did not pay
    int                 nap_      = 32;
    int                 nap_left_ = 0;
};

}  // namespace les
