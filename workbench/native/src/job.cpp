#include "job.h"

#include "nlohmann/json.hpp"

#include <functional>
#include <map>

namespace les {

using nlohmann::json;

namespace {

[[noreturn]] void refuse(const std::string & why) {
    throw Error{ "toggle", why };
}

int choice(const std::string & name, const json & value, const std::vector<std::string> & names) {
    const std::string v = value.get<std::string>();
    std::string       all;
    for (size_t i = 0; i < names.size(); i++) {
        if (v == names[i]) {
            return int(i);
        }
        all += (i ? ", " : "") + names[i];
    }
    refuse(name + "='" + v + "': choose one of " + all);
}

void check(const Config & c) {
    auto at_least = [](const char * name, double v, double low) {
        if (!(v >= low)) {
            refuse(std::string(name) + "=" + std::to_string(v) + ": must be at least " + std::to_string(low));
        }
    };
    at_least("lookahead_width", c.lookahead_width, 1.0);
    at_least("cache_slots", c.cache_slots, 0);
    at_least("lanes", c.lanes, 1);
    at_least("threads", c.threads, 0);
    at_least("n_batch", c.n_batch, 1);
    at_least("n_ubatch", c.n_ubatch, 1);
    at_least("n_seq_max", c.n_seq_max, 1);
    at_least("n_ctx", c.n_ctx, 0);
    at_least("draft_max", c.speculation.draft_max, 0);
    at_least("draft_min_p", c.speculation.min_p, 0);
    at_least("emulate_depth", c.profile.depth, 1);
    at_least("emulate_bandwidth_bytes_s", double(c.profile.bandwidth_bytes_s), 0);
    at_least("emulate_latency_ns", double(c.profile.latency_ns), 0);
    if (!c.flash && (c.lookahead != Lookahead::off || c.ready_first || c.cache_slots > 0 || c.profile.emulated())) {
        refuse("lookahead, ready_first, cache_slots and emulated flash contradict experts='resident': nothing is read");
    }
    if (c.lanes > 64) {
        refuse("lanes=" + std::to_string(c.lanes) + ": at most 64");
    }
}

Config parse_config(const json & values) {
    Config c;
    c.json                                                               = values.dump();
    const std::map<std::string, std::function<void(const json &)>> known = {
        { "experts", [&](const json & v) { c.flash = choice("experts", v, { "resident", "flash" }) == 1; } },
        { "lookahead",
          [&](const json & v) { c.lookahead                              = Lookahead(choice("lookahead", v, { "off", "router", "control" })); } },
        { "lookahead_width", [&](const json & v) { c.lookahead_width     = v.get<double>(); } },
        { "ready_first", [&](const json & v) { c.ready_first             = v.get<bool>(); } },
        { "cache_slots", [&](const json & v) { c.cache_slots             = v.get<int>(); } },
        { "io", [&](const json & v) { c.direct                           = choice("io", v, { "direct", "buffered" }) == 0; } },
        { "lanes", [&](const json & v) { c.lanes                         = v.get<int>(); } },
        { "threads", [&](const json & v) { c.threads                     = v.get<int>(); } },
        { "emulate_bandwidth_bytes_s", [&](const json & v) { c.profile.bandwidth_bytes_s = v.get<int64_t>(); } },
        { "emulate_latency_ns", [&](const json & v) { c.profile.latency_ns = v.get<int64_t>(); } },
        { "emulate_depth", [&](const json & v) { c.profile.depth         = v.get<int>(); } },
        { "telemetry",
          [&](const json & v) { c.telemetry                              = choice("telemetry", v, { "off", "token", "layer", "io" }); } },
        { "logits_hash", [&](const json & v) { c.logits_hash             = v.get<bool>(); } },
        { "flash_attn", [&](const json & v) { c.flash_attn               = choice("flash_attn", v, { "off", "auto" }) == 1; } },
        { "batch_invariant", [&](const json & v) { c.batch_invariant     = v.get<bool>(); } },
        { "n_ctx", [&](const json & v) { c.n_ctx                         = v.get<int>(); } },
        { "n_batch", [&](const json & v) { c.n_batch                     = v.get<int>(); } },
        { "n_ubatch", [&](const json & v) { c.n_ubatch                   = v.get<int>(); } },
        { "n_seq_max", [&](const json & v) { c.n_seq_max                 = v.get<int>(); } },
        { "temperature", [&](const json & v) { c.temperature             = v.get<double>(); } },
        { "top_k", [&](const json & v) { c.top_k                         = v.get<int>(); } },
        { "top_p", [&](const json & v) { c.top_p                         = v.get<double>(); } },
        { "speculation",
          [&](const json & v) {
              const std::vector<std::string>                       kinds = { "off", "dspark", "ngram-simple", "ngram-mod", "draft-simple" };
              c.speculation.kind                                         = kinds[size_t(choice("speculation", v, kinds))];
          } },
        { "draft_model", [&](const json & v) { c.speculation.draft_model = v.get<std::string>(); } },
        { "draft_max", [&](const json & v) { c.speculation.draft_max     = v.get<int>(); } },
        { "draft_min_p", [&](const json & v) { c.speculation.min_p       = v.get<double>(); } },
        { "draft_adaptive", [&](const json & v) { c.speculation.adaptive = v.get<bool>(); } },
        { "seed", [&](const json & v) { c.seed                           = v.get<uint32_t>(); } },
    };
    for (const auto & item : values.items()) {
        const auto it = known.find(item.key());
        if (it == known.end()) {
            refuse("unknown toggle '" + item.key() + "'");
        }
        try {
            it->second(item.value());
        } catch (const json::exception &) {
            refuse(item.key() + "=" + item.value().dump() + ": wrong type");
        }
    }
    check(c);
    return c;
}

}  // namespace

Job parse_job(const std::string & text) {
    Job job;
    try {
        const json j       = json::parse(text);
        auto       text_of = [&](const char * name) {
            return j.contains(name) && j[name].is_string() ? j[name].get<std::string>() : std::string();
        };
        auto ids_of = [&](const char * name) {
            return j.contains(name) && j[name].is_array() ? j[name].get<std::vector<int32_t>>()
                                                          : std::vector<int32_t>();
        };
        job.model = text_of("model");
        if (job.model.empty()) {
            refuse("the job names no model");
        }
        job.config         = parse_config(j.value("config", json::object()));
        job.run_id         = text_of("run_id");
        job.model_sha256   = text_of("model_sha256");
        job.telemetry_path = text_of("telemetry_path");
        job.logits_path    = text_of("logits_path");
        job.prompt         = text_of("prompt");
        job.prompt_tokens  = ids_of("prompt_tokens");
        job.force_tokens   = ids_of("force_tokens");
        job.n_predict      = j.value("n_predict", 64);
        job.ignore_eos     = j.value("ignore_eos", false);
        job.warm_up        = j.value("warm_up", 0);
    } catch (const json::exception & e) {
        refuse(std::string("the job is not valid JSON: ") + e.what());
    }
    if (!job.force_tokens.empty()) {
        job.n_predict = int(job.force_tokens.size());
    }
    if (job.n_predict < 1) {
        refuse("n_predict=" + std::to_string(job.n_predict) + ": must be at least 1");
    }
    return job;
}

}  // namespace les
