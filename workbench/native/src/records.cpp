// The records of a session: header, one per decode call, layer and I/O details, end.
#include "backend.h"
#include "build_info.h"
#include "ggml-cpu.h"
#include "json_line.h"
#include "session.h"
#include "xxhash/xxhash.h"

#include <algorithm>
#include <cstring>

namespace les {

std::string JsonLine::quote(const std::string & v) {
    std::string out = "\"";
    for (size_t i = 0; i < v.size();) {
        const unsigned char c  = static_cast<unsigned char>(v[i]);
        const size_t        n  = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
        bool                ok = n > 0 && i + n <= v.size();
        if (ok && n > 2) {  // overlong forms, surrogates, beyond U+10FFFF
            const unsigned char d = static_cast<unsigned char>(v[i + 1]);
            ok                    = !(c == 0xe0 && d < 0xa0) && !(c == 0xed && d > 0x9f) && !(c == 0xf0 && d < 0x90) &&
                 !(c == 0xf4 && d > 0x8f);
        }
        for (size_t j = 1; ok && j < n; j++) {
            ok = (static_cast<unsigned char>(v[i + j]) & 0xc0) == 0x80;
        }
        if (!ok) {
            out += "\\ufffd";
            i++;
        } else if (c == '"' || c == '\\') {
            out += '\\';
            out += char(c);
            i++;
        } else if (c < 0x20 || c == 0x7f) {
            char b[8];
            snprintf(b, sizeof(b), "\\u%04x", c);
            out += b;
            i++;
        } else {
            out.append(v, i, n);
            i += n;
        }
    }
    return out + "\"";
}

static std::string cpu_flags() {
    std::string                        flags;
    const std::pair<const char *, int> known[] = {
        { "AVX", ggml_cpu_has_avx() },         { "AVX2", ggml_cpu_has_avx2() },
        { "AVX512", ggml_cpu_has_avx512() },   { "FMA", ggml_cpu_has_fma() },
        { "F16C", ggml_cpu_has_f16c() },       { "NEON", ggml_cpu_has_neon() },
        { "DOTPROD", ggml_cpu_has_dotprod() }, { "I8MM", ggml_cpu_has_matmul_int8() },
    };
    for (const auto & [name, has] : known) {
        if (has) {
            flags += (flags.empty() ? "" : " ") + std::string(name);
        }
    }
    return flags;
}

std::string Session::make_header(const Job & job) const {
    char arch[128] = {};
    llama_model_meta_val_str(model_, "general.architecture", arch, sizeof(arch));
    const ExpertMap * map   = engine_ ? &engine_->map() : nullptr;
    auto              count = [&](const char * suffix) {
        char value[64] = {};
        llama_model_meta_val_str(model_, (std::string(arch) + suffix).c_str(), value, sizeof(value));
        return int64_t(atoll(value));
    };
    JsonLine model;
    model.str("file", job.model.substr(job.model.find_last_of('/') + 1));
    job.model_sha256.empty() ? model.null("sha256") : model.str("sha256", job.model_sha256);
    model.str("arch", map ? map->arch : arch)
        .num("n_layer", llama_model_n_layer(model_))
        .opt("n_moe_layer", map, map ? int64_t(map->layers.size()) : 0)
        .num("n_expert", map ? map->n_expert : count(".expert_count"))
        .num("n_expert_used", map ? map->n_expert_used : count(".expert_used_count"))
        .str("layout", map && map->contiguous ? "contiguous" : "native")
        .opt("expert_bytes", map, map ? int64_t(map->layers[0].expert_bytes()) : 0)
        .opt("file_bytes", map, map ? map->file_bytes : 0)
        .num("n_vocab", n_vocab_);
    JsonLine build;
    build.str("workbench", LES_VERSION)
        .str("llama_cpp", LES_LLAMA_CPP)
        .str("compiler", LES_COMPILER)
        .str("cpu_flags", cpu_flags());
    JsonLine device;
    device.str("os", os_name())
        .str("machine", machine_name())
        .str("cpu", cpu_name())
        .num("n_cpu", cpu_count())
        .num("page_bytes", int64_t(page_bytes()));
    const FlashProfile & p = config_.profile;
    JsonLine             flash;
    flash.str("kind", p.emulated() ? "emulated" : "native")
        .opt("bandwidth_bytes_s", p.emulated(), p.bandwidth_bytes_s)
        .opt("latency_ns", p.emulated(), p.latency_ns)
        .opt("depth", p.emulated(), p.depth);
    JsonLine clock;
    clock.num("mono_ns", mono_ns()).num("wall_ns", wall_ns());
    JsonLine h;
    h.str("t", "hdr").num("schema", 1).str("run_id", job.run_id).raw("config", config_.json);
    h.raw("model", model.done()).raw("build", build.done()).raw("device", device.done());
    engine_ ? h.str("io_mode", engine_->direct() ? "direct" : "buffered") : h.null("io_mode");
    h.opt("direct_align_bytes", engine_ && engine_->direct(), engine_ ? int64_t(engine_->align()) : 0)
        .raw("flash", flash.done())
        .num("threads", threads_)
        .opt("lanes", bool(engine_), config_.lanes)
        .opt("arena_bytes", bool(engine_), engine_ ? int64_t(engine_->arena_bytes()) : 0)
        .opt("slots", bool(engine_), engine_ ? engine_->slots() : 0)
        .raw("clock", clock.done());
    const double load = load_average();
    load < 0 ? h.null("load_avg_1m") : h.real("load_avg_1m", load);
    return h.done();
}

void Session::record_step(const char * phase, int64_t index, int n_tokens, int32_t token, int drafted, int64_t t0,
                          int64_t t1, const StepStats * stats) {
    if (config_.telemetry == 0) {
        return;
    }
    const bool             m = stats != nullptr;  // measured: there is an engine
    static const StepStats none;
    const StepStats &      s = m ? *stats : none;
    JsonLine               r;
    r.str("t", "tok").num("i", index).str("phase", phase).num("n_tokens", n_tokens);
    r.opt("token", token >= 0, token).opt("next", next_token_ >= 0 && !logits_.empty(), next_token_);
    r.str("text", piece_);
    r.num("t0_ns", t0).num("t1_ns", t1);
    r.num("compute_ns", m ? s.dense_ns + s.expert_ns + s.predict_ns : t1 - t0);
    r.opt("dense_ns", m, s.dense_ns).opt("expert_compute_ns", m, s.expert_ns).opt("predict_ns", m, s.predict_ns);
    r.opt("stall_ns", m, s.stall_ns).opt("bytes", m, s.flash.bytes).opt("reads", m, s.flash.reads);
    r.opt("lookups", m, s.lookups).opt("hits", m, s.hits).opt("misses", m, s.lookups - s.hits);
    r.opt("evictions", m, s.cache.evictions);
    const bool ahead = m && config_.lookahead == Lookahead::router;
    r.opt("prefetch_issued", ahead, s.prefetch_issued).opt("prefetch_used", ahead, s.prefetch_used);
    r.opt("prefetch_wasted", ahead, s.cache.prefetch_wasted);
    r.opt("prefetch_wasted_bytes", ahead, s.cache.prefetch_wasted_bytes);
    const bool predicted = m && config_.lookahead != Lookahead::off;
    r.opt("recall_hit", predicted, s.recall_hit).opt("recall_total", predicted, s.recall_total);
    r.opt("flash_busy_ns", m, s.flash.busy_ns);
    if (config_.logits_hash && !logits_.empty()) {
        char hash[24];
        snprintf(hash, sizeof(hash), "%016llx",
                 static_cast<unsigned long long>(XXH64(logits_.data(), logits_.size() * sizeof(float), 0)));
        r.str("logits_hash", hash);
    } else {
        r.null("logits_hash");
    }
    const int64_t rss = rss_bytes();
    r.opt("rss_bytes", rss >= 0, rss);
    const bool speculated = speculator_ && token >= 0;
    r.opt("drafted", speculated, drafted).opt("accepted", speculated, int64_t(chosen_.size()) - 1);
    if (speculated) {
        r.ids("chosen", chosen_.data(), chosen_.size());
        r.num("draft_ns", speculator_->draft_ns).num("inject_ns", speculator_->inject_ns);
    }
    r.null("thermal");
    write(r.done());
}

// [[t0_ns, t1_ns, experts], …]
static std::string spans(const std::vector<Span> & list) {
    std::string out = "[";
    for (const Span & s : list) {
        out += (out.size() > 1 ? ",[" : "[") + std::to_string(s.t0_ns) + "," + std::to_string(s.t1_ns) + "," +
               std::to_string(s.experts) + "]";
    }
    return out + "]";
}

void Session::record_details(const char * phase, int64_t index) {
    if (!engine_) {
        return;
    }
    for (const LayerRecord & l : engine_->take_layers()) {
        JsonLine r;
        r.str("t", "layer")
            .num("i", index)
            .str("phase", phase)
            .num("layer", l.block)
            .num("t0_ns", l.t0_ns)
            .num("t1_ns", l.t1_ns);
        r.rows("routed", l.routed, size_t(l.n_used));
        l.has_prediction ? r.ids("predicted", l.predicted.data(), l.predicted.size()) : r.null("predicted");
        r.num("hits", l.hits).num("stall_ns", l.stall_ns).num("compute_ns", l.expert_ns).num("waves", l.waves);
        if (config_.telemetry == 3) {
            r.raw("wave_spans", spans(l.wave_spans)).raw("wait_spans", spans(l.wait_spans));
        }
        write(r.done());
    }
    for (const ReadRequest & q : engine_->take_io()) {
        std::vector<int32_t> experts;
        for (const auto & p : q.parts) {
            experts.push_back(p.expert);
        }
        JsonLine r;
        r.str("t", "io").num("i", index).num("layer", engine_->map().layers[size_t(q.parts[0].layer)].block);
        r.ids("experts", experts.data(), experts.size())
            .num("offset", q.parts[0].offset)
            .num("bytes", int64_t(q.bytes()));
        r.num("lane", q.lane).num("queue_ns", q.queued_ns).num("start_ns", q.start_ns).num("end_ns", q.end_ns);
        r.str("source", q.demand ? "demand" : "prefetch");
        write(r.done());
    }
}

void Session::write(const std::string & line) {
    if (muted_) {
        return;
    }
    if (telemetry_) {
        fwrite(line.data(), 1, line.size(), telemetry_);
        fputc('\n', telemetry_);
        fflush(telemetry_);
    }
    lines_ += line;
    lines_ += '\n';
}

std::string Session::take_lines() {
    std::string out;
    out.swap(lines_);
    return out;
}

const std::string & Session::finish(const std::string & error) {
    const CpuFigures    now    = cpu_figures();
    const MemoryFigures memory = memory_figures();
    const int64_t       wall   = mono_ns() - begin_ns_;
    const bool          cpu    = now.own_ns >= 0 && now.machine_busy_ns >= 0;
    const int64_t       others = (now.machine_busy_ns - cpu_begin_.machine_busy_ns) - (now.own_ns - cpu_begin_.own_ns);
    JsonLine            r;
    if (reason_.empty()) {
        reason_ = error.empty() ? "interrupted" : "error";
    }
    r.str("t", "end").num("rc", error.empty() ? 0 : 1).str("reason", reason_);
    error.empty() ? r.null("error") : r.str("error", error);
    r.num("n_prompt", int64_t(prompt_.size()))
        .num("n_decode", std::max(0, n_chosen_ - 1))
        .num("n_generated", n_chosen_);
    r.num("wall_ns", wall)
        .opt("ttft_ns", ttft_ns_ >= 0, ttft_ns_)
        .num("prefill_ns", prefill_ns_)
        .num("decode_ns", decode_ns_);
    r.opt("peak_bytes", memory.peak >= 0, memory.peak);
    r.opt("ctx_switch_involuntary", now.switches_involuntary >= 0,
          now.switches_involuntary - cpu_begin_.switches_involuntary);
    r.opt("ctx_switch_voluntary", now.switches_voluntary >= 0, now.switches_voluntary - cpu_begin_.switches_voluntary);
    r.opt("cpu_ns", now.own_ns >= 0, now.own_ns - cpu_begin_.own_ns).opt("other_cpu_ns", cpu, others);
    // other processes held more than a quarter of a core: on a small machine that alone can cost many times the speed
    cpu ? r.boolean("contended", others > wall / 4) : r.null("contended");
    r.opt("emulation_late_ns", config_.profile.emulated(), late_ns_).str("text", text_);
    end_   = r.done();
    begun_ = false;
    write(end_);
    if (telemetry_) {
        fclose(telemetry_);
        telemetry_ = nullptr;
    }
    return end_;
}

}  // namespace les
