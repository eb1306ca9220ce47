// The lanes and the slots on their own, built with sanitizers by tests/test_native.py.
#include "expert_cache.h"
#include "flash.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

using namespace les;

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static constexpr size_t k_block = 4096;

static uint8_t byte_at(int64_t offset) {
    return uint8_t((offset * 2654435761u) >> 13);
}

static std::string make_file(int blocks) {
    char      path[] = "/tmp/les-lanes-XXXXXX";
    const int fd     = mkstemp(path);
    CHECK(fd >= 0);
    FILE * f = fdopen(fd, "wb");
    for (int64_t i = 0; i < int64_t(blocks) * int64_t(k_block); i++) {
        fputc(byte_at(i), f);
    }
    fclose(f);
    return path;
}

static ReadPart part_of(int slot, int block, std::vector<uint8_t> & memory, int layer = 0) {
    ReadPart p;
    p.slot = slot, p.layer = layer, p.expert = block;
    p.offset = int64_t(block) * int64_t(k_block);
    p.length = p.need = k_block;
    p.target          = memory.data() + size_t(slot) * k_block;
    return p;
}

static ReadRequest request_of(const ReadPart & part, bool demand) {
    ReadRequest r;
    r.demand = demand;
    r.parts.push_back(part);
    return r;
}

static File opened(const std::string & path) {
    File file;
    CHECK(open_file(path, false, file).empty());
    return file;
}

static void reads_arrive_whole(const std::string & path, int blocks) {
    constexpr int             n_slots = 32;
    std::unique_ptr<SlotIo[]> io(new SlotIo[n_slots]);
    std::vector<uint8_t>      memory(n_slots * k_block);
    Flash                     flash({ opened(path) }, 4, {}, io.get(), true);
    std::mt19937              random(1);
    for (int round = 0; round < 50; round++) {
        std::vector<int> slots, want;
        for (int s = 0; s < n_slots; s++) {
            const int block = int(random() % unsigned(blocks));
            io[s].pending.store(1);
            io[s].wanted.store(true);
            std::vector<ReadRequest> one;
            one.push_back(request_of(part_of(s, block, memory), s % 2 == 0));
            flash.submit(std::move(one));
            slots.push_back(s);
            want.push_back(block);
        }
        if (round % 2) {
            flash.wait_any(slots);
        }
        flash.wait_all(slots);
        for (int s : slots) {
            for (size_t i = 0; i < k_block; i += 97) {
                CHECK(memory[size_t(s) * k_block + i] == byte_at(int64_t(want[s]) * int64_t(k_block) + int64_t(i)));
            }
        }
    }
    flash.drain();
    CHECK(flash.totals().reads == 50 * n_slots);
    CHECK(flash.totals().bytes == int64_t(50 * n_slots * k_block));
    CHECK(flash.take_log().size() == 50u * n_slots);
}

static void demand_overtakes_prefetch(const std::string & path) {
    std::unique_ptr<SlotIo[]> io(new SlotIo[8]);
    std::vector<uint8_t>      memory(8 * k_block);
    FlashProfile              slow;
    slow.bandwidth_bytes_s = 1000000;  // 4 ms a block: the queues stay full while this thread fills them
    Flash                    flash({ opened(path) }, 1, slow, io.get(), true);
    std::vector<ReadRequest> all;
    for (int s = 0; s < 8; s++) {
        io[s].pending.store(1);
        all.push_back(request_of(part_of(s, s, memory, s < 4 ? 1 : 0), s >= 4));
    }
    flash.submit(std::move(all));
    const auto taken = flash.recall_prefetch(1);  // what no lane has started
    CHECK(taken.size() >= 3);
    for (const auto & p : taken) {
        io[p.slot].pending.fetch_sub(1);
    }
    flash.drain();
    for (const auto & r : flash.take_log()) {
        CHECK(r.demand || taken.size() == 3);
        CHECK(r.end_ns - r.start_ns >= 4096000);
    }
    CHECK(flash.totals().busy_ns >= 4 * 4096000);
}

static void a_failed_read_wakes_and_names_the_file(const std::string & path, int blocks) {
    std::unique_ptr<SlotIo[]> io(new SlotIo[1]);
    std::vector<uint8_t>      memory(k_block);
    Flash                     flash({ opened(path) }, 2, {}, io.get(), false);
    io[0].pending.store(1);
    std::vector<ReadRequest> one;
    one.push_back(request_of(part_of(0, blocks + 5, memory), true));
    flash.submit(std::move(one));
    flash.wait_all({ 0 });
    CHECK(flash.error().find(path) != std::string::npos);
}

static void slots_keep_the_latest_and_never_the_pinned(int per_layer, int pool) {
    ExpertMap map;
    map.n_expert   = 16;
    map.slot_bytes = k_block;
    map.layers.resize(2);
    map.layers[0].projections.push_back({ "down", GGML_TYPE_F32, 1, 1, 0, 0, 100, 100, 0 });
    map.layers[1].projections = map.layers[0].projections;
    ExpertCache cache(map, per_layer, pool);
    for (int e = 0; e < per_layer; e++) {
        const int s = cache.acquire(0, e, false, true);
        CHECK(s >= 0 && !cache.in_pool(s));
        cache.used(s, cache.stamp());
    }
    cache.slot(cache.find(0, 0)).pinned = true;
    const int s                         = cache.acquire(0, 10, false, true);  // evicts expert 1: the oldest not pinned
    CHECK(s >= 0 && cache.find(0, 1) == -1 && cache.find(0, 0) >= 0);
    CHECK(cache.totals().evictions == 1 && cache.totals().prefetch_wasted == 0);
    cache.slot(s).pinned = true;
    for (int e = 0; e < per_layer; e++) {
        if (cache.find(0, e) >= 0) {
            cache.slot(cache.find(0, e)).pinned = true;
        }
    }
    std::vector<int> borrowed;
    for (int e = 11; e < 11 + pool; e++) {
        borrowed.push_back(cache.acquire(0, e, false, true));
        CHECK(cache.in_pool(borrowed.back()));
        cache.slot(borrowed.back()).pinned = true;
    }
    CHECK(cache.acquire(0, 9, false, true) == -1);  // everything pinned
    for (int b : borrowed) {
        cache.used(b, cache.stamp());
    }
    cache.end_layer();
    CHECK(cache.find(0, 11) == -1);
    const int ahead = cache.acquire(1, 3, true, true);
    CHECK(ahead >= 0 && cache.slot(ahead).prefetched);
    cache.drop(ahead);
    CHECK(cache.totals().prefetch_wasted == 1 && cache.totals().prefetch_wasted_bytes == 100);
}

int main() {
    constexpr int     blocks = 64;
    const std::string path   = make_file(blocks);
    reads_arrive_whole(path, blocks);
    demand_overtakes_prefetch(path);
    a_failed_read_wakes_and_names_the_file(path, blocks);
    slots_keep_the_latest_and_never_the_pinned(4, 3);
    remove(path.c_str());
    puts("lanes and slots: passed");
    return 0;
}
