// Which reads a layer's experts need, and in which order they are asked for.
#include "engine.h"

#include <algorithm>

namespace les {

// A merged read of adjacent experts stays below this, so that the first of them is not late.
static constexpr size_t k_merge_bytes = 8 << 20;
static constexpr size_t k_merge_parts = 16;

void Engine::add_parts(std::vector<ReadPart> & parts, int layer, int expert, int slot) const {
    const MoeLayer & l     = map_.layers[layer];
    auto             range = [&](int64_t offset, size_t bytes, int file, size_t region) {
        ReadPart part;
        part.slot   = slot;
        part.layer  = layer;
        part.expert = expert;
        part.file   = file;
        part.offset = offset / int64_t(align_) * int64_t(align_);
        part.need   = size_t(offset - part.offset) + bytes;
        part.length = (part.need + align_ - 1) / align_ * align_;
        part.target = cache_->memory(slot) + region;
        parts.push_back(part);
    };
    if (map_.contiguous) {
        const auto & p = l.projections[0];
        range(p.base + int64_t(expert) * int64_t(p.stride), p.stride, p.file, 0);
        return;
    }
    for (const auto & p : l.projections) {
        range(p.base + int64_t(expert) * int64_t(p.stride), p.bytes, p.file, p.region);
    }
}

// Adjacent experts of the contiguous layout become one read.
void Engine::submit(std::vector<ReadPart> parts, bool demand) {
    std::vector<ReadRequest> requests;
    for (auto & part : parts) {
        if (map_.contiguous && !requests.empty()) {
            auto &       last   = requests.back();
            const auto & before = last.parts.back();
            if (before.file == part.file && before.offset + int64_t(before.length) == part.offset &&
                before.length == before.need && last.parts.size() < k_merge_parts &&
                last.bytes() + part.length <= k_merge_bytes) {
                last.parts.push_back(part);
                continue;
            }
        }
        ReadRequest request;
        request.demand = demand;
        request.parts.push_back(part);
        requests.push_back(std::move(request));
    }
    flash_->submit(std::move(requests));
}

// Queued prefetches of this layer: those it needs become demand, the others are never read.
void Engine::reclaim_prefetch(int layer, const std::vector<Need> & needs) {
    std::vector<ReadPart> promoted;
    for (const auto & part : flash_->recall_prefetch(layer)) {
        const bool needed =
            std::any_of(needs.begin(), needs.end(), [&](const Need & n) { return n.expert == part.expert; });
        if (needed) {
            promoted.push_back(part);
            continue;
        }
        Slot & slot = cache_->slot(part.slot);
        if (slot.layer == layer && slot.expert == part.expert) {
            slot.prefetched = false;  // not wasted: at least this part of it is never read
            stats_.prefetch_issued--;
            cache_->drop(part.slot);
        }
        cache_->io(part.slot).pending.fetch_sub(1);
    }
    submit(std::move(promoted), true);
}

void Engine::issue_demand(int layer, std::vector<Need> & needs) {
    std::vector<ReadPart> parts;
    for (auto & need : needs) {
        if (need.done || need.slot >= 0) {
            continue;
        }
        const int s = cache_->acquire(layer, need.expert, false, need.keep);
        if (s < 0) {
            continue;
        }
        need.slot              = s;
        cache_->slot(s).pinned = true;
        const size_t before    = parts.size();
        add_parts(parts, layer, need.expert, s);
        cache_->io(s).pending.store(int(parts.size() - before));
        cache_->io(s).wanted.store(true);
    }
    submit(std::move(parts), true);
}

// Prefetch takes what the running layer leaves: nothing while one of its experts still waits for a slot.
void Engine::issue_prefetch(const std::vector<Need> & needs) {
    if (std::any_of(needs.begin(), needs.end(), [](const Need & n) { return n.slot < 0; })) {
        return;
    }
    std::vector<ReadPart> parts;
    size_t                taken = 0;
    for (; taken < to_prefetch_.size(); taken++) {
        const int expert = to_prefetch_[taken];
        const int s      = cache_->acquire(predicted_layer_, expert, true, true);
        if (s < 0) {
            break;
        }
        cache_->slot(s).pinned = true;
        const size_t before    = parts.size();
        add_parts(parts, predicted_layer_, expert, s);
        cache_->io(s).pending.store(int(parts.size() - before));
        stats_.prefetch_issued++;
    }
    to_prefetch_.erase(to_prefetch_.begin(), to_prefetch_.begin() + int64_t(taken));
    submit(std::move(parts), false);
}

}  // namespace les
