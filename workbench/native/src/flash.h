// The read lanes: two queues (demand before prefetch), a few threads, and optionally an emulated device's timing.
#pragma once

#include "platform.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace les {

// Timing of an emulated device: requests overlap their latency up to `depth`, transfers share the bandwidth.
struct FlashProfile {
    int64_t bandwidth_bytes_s = 0;  // 0: native, no emulation
    int64_t latency_ns        = 0;
    int     depth             = 32;

    bool emulated() const { return bandwidth_bytes_s > 0; }
};

// Completion state of one slot, written by lanes, read by the compute thread.
struct SlotIo {
    std::atomic<int>     pending{ 0 };   // parts still to arrive
    std::atomic<int64_t> ready_at{ 0 };  // emulated arrival (mono ns)
    std::atomic<bool>    wanted{ false };

    bool ready(int64_t now) const { return pending.load(std::memory_order_acquire) == 0 && ready_at.load() <= now; }
};

// One contiguous file range that belongs to one slot.
struct ReadPart {
    int       slot   = -1;
    int       layer  = -1;
    int       expert = -1;
    int       file   = 0;
    int64_t   offset = 0;  // on the file's direct grid
    size_t    length = 0;  // on the grid
    size_t    need   = 0;  // bytes from offset that must exist
    uint8_t * target = nullptr;
};

struct ReadRequest {
    std::vector<ReadPart> parts;  // adjacent in the file
    bool                  demand    = false;
    int                   lane      = -1;
    int64_t               queued_ns = 0;
    int64_t               start_ns  = 0;
    int64_t               due_ns    = 0;  // emulated completion; 0 on native flash
    int64_t               end_ns    = 0;

    size_t bytes() const;
};

struct FlashTotals {
    int64_t bytes   = 0;
    int64_t reads   = 0;
    int64_t busy_ns = 0;  // time with at least one request in the device
    int64_t late_ns = 0;  // emulated only: how much real reads overran their emulated time
};

class Flash {
  public:
    Flash(std::vector<File> files, int lanes, FlashProfile profile, SlotIo * slots, bool keep_log);
    ~Flash();

    void submit(std::vector<ReadRequest> requests);

    // Takes back every queued prefetch part of `layer` that no lane has started.
    std::vector<ReadPart> recall_prefetch(int layer);

    // Sleeps until one (or all) of the slots are ready, or a read failed.
    void wait_any(const std::vector<int> & slots);
    void wait_all(const std::vector<int> & slots);
    void drain();  // nothing queued, nothing in flight

    FlashTotals               totals();
    std::vector<ReadRequest>  take_log();
    std::string               error();
    const std::vector<File> & files() const { return files_; }

  private:
    void    lane(int index);
    int64_t emulated_end(int64_t start_ns, size_t bytes);
    void    finish(ReadRequest & request, const std::string & error);
    void    wait_slot(int slot, bool any, const std::vector<int> & slots);

    std::vector<File>        files_;
    FlashProfile             profile_;
    SlotIo *                 slots_;
    bool                     keep_log_;
    std::mutex               mutex_;
    std::condition_variable  work_, done_;
    std::deque<ReadRequest>  demand_, prefetch_;
    std::vector<ReadRequest> log_;
    std::vector<std::thread> threads_;
    std::vector<int64_t>     device_free_ns_;  // emulated: when each of `depth` places is free
    int64_t                  bus_free_ns_  = 0;
    int64_t                  busy_until_   = 0;
    int64_t                  busy_since_   = 0;
    int                      in_flight_    = 0;
    int                      waiting_slot_ = -1;     // the one slot the compute thread sleeps for
    bool                     waiting_any_  = false;  // it sleeps for any wanted slot
    bool                     stop_         = false;
    FlashTotals              totals_;
    std::string              error_;
};

}  // namespace les
