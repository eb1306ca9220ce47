// Slots: c per layer that keep experts after use (LRU), and a small pool for what does not fit there.
#pragma once

#include "expert_map.h"
#include "flash.h"

#include <memory>
#include <vector>

namespace les {

struct Slot {
    int     layer      = -1;  // -1: free
    int     expert     = -1;
    bool    prefetched = false;  // brought in by prediction and not used yet
    bool    pinned     = false;  // the running layer still needs it, or the next layer is predicted to
    int64_t last_use   = 0;      // 0: never used, first to go
};

struct CacheTotals {
    int64_t evictions             = 0;
    int64_t prefetch_wasted       = 0;
    int64_t prefetch_wasted_bytes = 0;
};

// Used by the compute thread only; lanes touch nothing but the SlotIo of parts they read.
class ExpertCache {
  public:
    ExpertCache(const ExpertMap & map, int slots_per_layer, int pool_slots);
    ~ExpertCache();

    int     find(int layer, int expert) const { return where_[size_t(layer) * n_expert_ + expert]; }
    // A slot, evicting if it must and may; -1: none. `home`: among those that keep experts, else the pool only.
    int     acquire(int layer, int expert, bool prefetch, bool home);
    int64_t stamp() { return ++clock_; }
    void    used(int slot, int64_t stamp);  // after compute; the larger stamp is the more recent use
    void    end_layer();                    // releases what only the pool holds
    void    drop(int slot);

    Slot &              slot(int s) { return slots_[s]; }
    SlotIo &            io(int s) { return io_[s]; }
    SlotIo *            io_all() { return io_.get(); }
    uint8_t *           memory(int s) const { return arena_ + size_t(s) * slot_bytes_; }
    int                 home_begin(int layer) const { return layer * per_layer_; }
    bool                in_pool(int s) const { return s >= pool_begin_; }
    int                 size() const { return int(slots_.size()); }
    size_t              slot_bytes() const { return slot_bytes_; }
    size_t              arena_bytes() const { return slots_.size() * slot_bytes_; }
    const CacheTotals & totals() const { return totals_; }

  private:
    int pick(int begin, int end, bool may_evict) const;

    size_t                    n_expert_;
    int                       per_layer_;
    int                       pool_begin_;
    size_t                    slot_bytes_;
    size_t                    expert_bytes_;
    std::vector<Slot>         slots_;
    std::unique_ptr<SlotIo[]> io_;
    std::vector<int>          where_;  // [layer][expert] -> slot or -1
    uint8_t *                 arena_ = nullptr;
    int64_t                   clock_ = 0;
    CacheTotals               totals_;
};

}  // namespace les
