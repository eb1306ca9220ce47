#include "machine.h"

#include "build_info.h"
#include "expert_cache.h"
#include "flash.h"
#include "json_line.h"
#include "nlohmann/json.hpp"

#include <random>

namespace les {

std::string machine_json(const std::string & path) {
    const MemoryFigures m = memory_figures();
    JsonLine            r;
    r.str("os", os_name()).str("machine", machine_name()).str("cpu", cpu_name()).num("n_cpu", cpu_count());
    r.num("page_bytes", int64_t(page_bytes())).opt("available_bytes", m.available >= 0, m.available);
    r.str("workbench", LES_VERSION)
        .str("llama_cpp", LES_LLAMA_CPP)
        .str("compiler", LES_COMPILER)
        .str("flags", LES_FLAGS);
    const double load = load_average();
    load < 0 ? r.null("load_avg_1m") : r.real("load_avg_1m", load);
    File file;
    if (!path.empty() && open_file(path, true, file).empty()) {
        r.boolean("direct_reads", file.direct()).opt("direct_align_bytes", file.direct(), int64_t(file.align));
        close_file(file);
    } else {
        r.null("direct_reads").null("direct_align_bytes");
    }
    return r.done();
}

std::string sample_json(const std::string & thermal_state) {
    const MemoryFigures m = memory_figures();
    JsonLine            r;
    r.str("t", "smp").num("t_ns", mono_ns()).str("source", "runner");
    thermal_state.empty() ? r.null("thermal_state") : r.str("thermal_state", thermal_state);
    r.opt("memory_bytes", m.rss >= 0, m.rss).opt("peak_bytes", m.peak >= 0, m.peak);
    r.opt("available_bytes", m.available >= 0, m.available);
    return r.done();
}

std::string iobench_json(const std::string & job) {
    try {
        const auto   j       = nlohmann::json::parse(job);
        const int    lanes   = j.at("lanes").get<int>();
        const size_t block   = (j.at("block_bytes").get<size_t>() + 4095) / 4096 * 4096;
        const double seconds = j.at("seconds").get<double>();
        FlashProfile profile;
        profile.bandwidth_bytes_s = j.value("emulate_bandwidth_bytes_s", int64_t(0));
        profile.latency_ns        = j.value("emulate_latency_ns", int64_t(0));
        profile.depth             = j.value("emulate_depth", 32);
        File       file;
        const auto error = open_file(j.at("path").get<std::string>(), j.value("direct", true), file);
        if (!error.empty()) {
            return JsonLine().str("error", error).done();
        }
        if (file.size < int64_t(block)) {
            return JsonLine().str("error", file.path + ": smaller than one block of " + std::to_string(block)).done();
        }
        const bool                direct = file.direct();
        const int64_t             blocks = file.size / int64_t(block);
        const int                 queued = 2 * lanes;
        std::unique_ptr<SlotIo[]> slots(new SlotIo[size_t(queued)]);
        auto *                    memory = static_cast<uint8_t *>(reserve_memory(size_t(queued) * block));
        FlashTotals               totals;
        int64_t                   t0 = 0, t1 = 0;
        std::string               read_error;
        {
            Flash           flash({ file }, lanes, profile, slots.get(), false);
            std::mt19937_64 random(j.value("seed", 1));
            auto            submit = [&](int s) {
                ReadPart part;
                part.slot = s, part.layer = 0, part.expert = 0;
                part.offset = int64_t(random() % uint64_t(blocks)) * int64_t(block);
                part.length = part.need = block;
                part.target             = memory + size_t(s) * block;
                slots[s].pending.store(1);
                slots[s].ready_at.store(0);
                slots[s].wanted.store(true);
                ReadRequest request;
                request.demand = true;
                request.parts.push_back(part);
                std::vector<ReadRequest> one;
                one.push_back(std::move(request));
                flash.submit(std::move(one));
            };
            std::vector<int> all;
            t0 = mono_ns();
            for (int s = 0; s < queued; s++) {
                all.push_back(s);
                submit(s);
            }
            while (mono_ns() - t0 < int64_t(seconds * 1e9) && flash.error().empty()) {
                flash.wait_any(all);
                const int64_t now = mono_ns();
                for (int s : all) {
                    if (slots[s].ready(now)) {
                        submit(s);
                    }
                }
            }
            flash.drain();
            t1         = mono_ns();
            totals     = flash.totals();
            read_error = flash.error();
        }
        unreserve_memory(memory, size_t(queued) * block);
        if (!read_error.empty()) {
            return JsonLine().str("error", read_error).done();
        }
        JsonLine r;
        r.str("kind", profile.emulated() ? "emulated" : "native").boolean("direct", direct).num("lanes", lanes);
        r.num("block_bytes", int64_t(block))
            .num("bytes", totals.bytes)
            .num("reads", totals.reads)
            .num("elapsed_ns", t1 - t0);
        r.num("bytes_s", int64_t(double(totals.bytes) * 1e9 / double(t1 - t0)));
        return r.done();
    } catch (const std::exception & e) {
        return JsonLine().str("error", std::string("iobench: ") + e.what()).done();
    }
}

}  // namespace les
