#include "expert_cache.h"

namespace les {

ExpertCache::ExpertCache(const ExpertMap & map, int slots_per_layer, int pool_slots)
    : n_expert_(size_t(map.n_expert)),
      per_layer_(slots_per_layer),
      pool_begin_(slots_per_layer * int(map.layers.size())),
      slot_bytes_(map.slot_bytes),
      expert_bytes_(map.layers[0].expert_bytes()),
      slots_(size_t(pool_begin_ + pool_slots)),
      io_(new SlotIo[size_t(pool_begin_ + pool_slots)]),
      where_(map.layers.size() * n_expert_, -1) {
    arena_ = static_cast<uint8_t *>(reserve_memory(arena_bytes()));
    if (!arena_) {
        throw Error{ "toggle", "cache_slots=" + std::to_string(slots_per_layer) + ": cannot reserve " +
                                   std::to_string(arena_bytes()) + " bytes of address space; lower it" };
    }
}

ExpertCache::~ExpertCache() {
    unreserve_memory(arena_, arena_bytes());
}

int ExpertCache::pick(int begin, int end, bool may_evict) const {
    int best = -1;
    for (int s = begin; s < end; s++) {
        if (io_[s].pending.load(std::memory_order_acquire) != 0 || slots_[s].pinned) {
            continue;
        }
        if (slots_[s].layer < 0) {
            return s;
        }
        if (may_evict && (best < 0 || slots_[s].last_use < slots_[best].last_use)) {
            best = s;
        }
    }
    return best;
}

void ExpertCache::drop(int s) {
    Slot & slot = slots_[s];
    if (slot.layer < 0) {
        return;
    }
    where_[size_t(slot.layer) * n_expert_ + slot.expert] = -1;
    if (slot.prefetched) {
        totals_.prefetch_wasted++;
        totals_.prefetch_wasted_bytes += int64_t(expert_bytes_);
    }
    slot = Slot();
}

int ExpertCache::acquire(int layer, int expert, bool prefetch, bool home) {
    int s = home ? pick(home_begin(layer), home_begin(layer) + per_layer_, true) : -1;
    if (s < 0) {
        s = pick(pool_begin_, size(), !prefetch);
    }
    if (s < 0) {
        return -1;
    }
    if (slots_[s].layer >= 0) {
        totals_.evictions++;
        drop(s);
    }
    slots_[s].layer                            = layer;
    slots_[s].expert                           = expert;
    slots_[s].prefetched                       = prefetch;
    where_[size_t(layer) * n_expert_ + expert] = s;
    io_[s].ready_at.store(0);
    return s;
}

void ExpertCache::used(int s, int64_t stamp) {
    slots_[s].last_use   = stamp;
    slots_[s].prefetched = false;
    slots_[s].pinned     = false;
}

void ExpertCache::end_layer() {
    for (int s = pool_begin_; s < size(); s++) {
        if (slots_[s].layer >= 0 && !slots_[s].pinned && io_[s].pending.load(std::memory_order_acquire) == 0) {
            drop(s);
        }
    }
}

}  // namespace les
