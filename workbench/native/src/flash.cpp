#include "flash.h"

#include <algorithm>

namespace les {

// Short waits end with yields: a sleep of the scheduler is only exact to some tens of microseconds.
static constexpr int64_t k_yield_ns = 60000;

size_t ReadRequest::bytes() const {
    size_t n = 0;
    for (const auto & p : parts) {
        n += p.length;
    }
    return n;
}

Flash::Flash(std::vector<File> files, int lanes, FlashProfile profile, SlotIo * slots, bool keep_log)
    : files_(std::move(files)),
      profile_(profile),
      slots_(slots),
      keep_log_(keep_log),
      device_free_ns_(size_t(std::max(1, profile.depth)), 0) {
    for (int i = 0; i < lanes; i++) {
        threads_.emplace_back([this, i] { lane(i); });
    }
}

Flash::~Flash() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    work_.notify_all();
    for (auto & t : threads_) {
        t.join();
    }
    for (auto & f : files_) {
        close_file(f);
    }
}

void Flash::submit(std::vector<ReadRequest> requests) {
    if (requests.empty()) {
        return;
    }
    const int64_t now = mono_ns();
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto & r : requests) {
            r.queued_ns = now;
            (r.demand ? demand_ : prefetch_).push_back(std::move(r));
        }
    }
    for (size_t i = 0; i < std::min(requests.size(), threads_.size()); i++) {
        work_.notify_one();
    }
}

std::vector<ReadPart> Flash::recall_prefetch(int layer) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<ReadPart>       taken;
    for (auto it = prefetch_.begin(); it != prefetch_.end();) {
        if (it->parts.front().layer == layer) {
            taken.insert(taken.end(), it->parts.begin(), it->parts.end());
            it = prefetch_.erase(it);
        } else {
            ++it;
        }
    }
    return taken;
}

int64_t Flash::emulated_end(int64_t start_ns, size_t bytes) {
    auto          place    = std::min_element(device_free_ns_.begin(), device_free_ns_.end());
    const int64_t begin    = std::max(start_ns, *place);
    const int64_t transfer = int64_t(double(bytes) * 1e9 / double(profile_.bandwidth_bytes_s));
    const int64_t end      = std::max(begin + profile_.latency_ns, bus_free_ns_) + transfer;
    bus_free_ns_           = end;
    *place                 = end;
    totals_.busy_ns += std::max<int64_t>(0, end - std::max(start_ns, busy_until_));
    busy_until_ = std::max(busy_until_, end);
    return end;
}

void Flash::lane(int index) {
    precise_timers();
    int64_t lane_free_ns = 0;  // emulated time: a late wake-up must not slow the device
    for (;;) {
        ReadRequest request;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            work_.wait(lock, [&] { return stop_ || !demand_.empty() || !prefetch_.empty(); });
            if (stop_) {
                return;
            }
            auto & queue = demand_.empty() ? prefetch_ : demand_;
            request      = std::move(queue.front());
            queue.pop_front();
            request.lane     = index;
            request.start_ns = mono_ns();
            if (in_flight_++ == 0) {
                busy_since_ = request.start_ns;
            }
            if (profile_.emulated()) {
                request.start_ns = std::max(request.queued_ns, lane_free_ns);
                request.due_ns   = emulated_end(request.start_ns, request.bytes());
            }
        }
        std::vector<iovec> iov;
        for (const auto & p : request.parts) {
            iov.push_back({ p.target, p.length });
        }
        const auto &  last  = request.parts.back();
        const int64_t first = request.parts.front().offset;
        const auto    error =
            read_vector(files_[last.file], iov.data(), int(iov.size()), first, size_t(last.offset - first) + last.need);
        request.end_ns = std::max(request.due_ns, mono_ns());
        finish(request, error);
        if (profile_.emulated()) {
            lane_free_ns = request.end_ns;
            sleep_until_ns(request.end_ns);
        }
    }
}

void Flash::finish(ReadRequest & request, const std::string & error) {
    std::lock_guard<std::mutex> lock(mutex_);
    totals_.bytes += int64_t(request.bytes());
    totals_.reads++;
    if (profile_.emulated()) {
        totals_.late_ns += request.end_ns - request.due_ns;
    }
    if (--in_flight_ == 0 && !profile_.emulated()) {
        totals_.busy_ns += request.end_ns - busy_since_;
    }
    if (!error.empty() && error_.empty()) {
        error_ = error;
    }
    bool wake = !error.empty();
    for (const auto & p : request.parts) {
        SlotIo & io = slots_[p.slot];
        io.ready_at.store(std::max(io.ready_at.load(), request.end_ns));
        const bool complete = io.pending.fetch_sub(1, std::memory_order_acq_rel) == 1;
        wake |= complete && (p.slot == waiting_slot_ || (waiting_any_ && io.wanted.load()));
    }
    if (keep_log_) {
        log_.push_back(request);
    }
    wake |= in_flight_ == 0 && demand_.empty() && prefetch_.empty();
    if (wake) {
        done_.notify_one();
    }
}

void Flash::wait_slot(int slot, bool any, const std::vector<int> & slots) {
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_slot_ = any ? -1 : slot;
    waiting_any_  = any;
    while (error_.empty()) {
        const int64_t now     = mono_ns();
        int64_t       arrival = INT64_MAX;  // soonest known emulated arrival
        bool          ready   = false;
        for (int s : slots) {
            if (!any && s != slot) {
                continue;
            }
            if (slots_[s].pending.load(std::memory_order_acquire) == 0) {
                ready |= slots_[s].ready_at.load() <= now;
                arrival = std::min(arrival, slots_[s].ready_at.load());
            }
        }
        if (ready) {
            break;
        }
        if (arrival == INT64_MAX) {
            done_.wait(lock);
        } else {
            lock.unlock();
            if (arrival - now > k_yield_ns) {
                sleep_until_ns(arrival - k_yield_ns);
            }
            while (mono_ns() < arrival) {
                std::this_thread::yield();
            }
            lock.lock();
        }
    }
    waiting_slot_ = -1;
    waiting_any_  = false;
}

void Flash::wait_any(const std::vector<int> & slots) {
    wait_slot(-1, true, slots);
}

void Flash::wait_all(const std::vector<int> & slots) {
    for (int s : slots) {
        wait_slot(s, false, slots);
    }
}

void Flash::drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return in_flight_ == 0 && demand_.empty() && prefetch_.empty(); });
}

FlashTotals Flash::totals() {
    std::lock_guard<std::mutex> lock(mutex_);
    return totals_;
}

std::vector<ReadRequest> Flash::take_log() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<ReadRequest>    out;
    out.swap(log_);
    return out;
}

std::string Flash::error() {
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
}

}  // namespace les
