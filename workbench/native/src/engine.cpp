#include "engine.h"

#include <algorithm>
#include <cmath>

namespace les {

Engine::Engine(ExpertMap map, EngineOptions options) : map_(std::move(map)), options_(options) {
    if (options_.cache_slots > map_.n_expert) {
        throw Error{ "toggle", "cache_slots=" + std::to_string(options_.cache_slots) + ": the model has " +
                                   std::to_string(map_.n_expert) + " experts per layer; use at most that" };
    }
    std::vector<File> files;
    for (const auto & path : map_.paths) {
        File       file;
        const auto error = open_file(path, options_.direct, file);
        if (!error.empty()) {
            throw Error{ "file", error };
        }
        align_ = files.empty() ? file.align : std::max(align_, file.align);
        files.push_back(file);
    }
    if (std::any_of(files.begin(), files.end(), [](const File & f) { return !f.direct(); })) {
        align_ = 1;
    }
    plan_slots(map_, align_);
    const int k     = map_.n_expert_used;
    const int ahead = options_.lookahead == Lookahead::router ? int(std::ceil(options_.lookahead_width * k)) : 0;
    const int batch = options_.n_batch > 1 ? std::min(map_.n_expert, 4 * k) : 0;
    cache_          = std::make_unique<ExpertCache>(map_, options_.cache_slots, std::max(k + 2 * ahead, batch));
    const int64_t available = memory_figures().available;
    const int64_t need      = int64_t(cache_->arena_bytes()) + map_.dense_bytes;
    if (available >= 0 && need > available) {
        throw Error{ "toggle",
                     "cache_slots=" + std::to_string(options_.cache_slots) + " needs " + std::to_string(need >> 20) +
                         " MiB (" + std::to_string(cache_->arena_bytes() >> 20) + " for experts, " +
                         std::to_string(map_.dense_bytes >> 20) + " resident), but only " +
                         std::to_string(available >> 20) + " MiB are available; lower cache_slots" +
                         (options_.cache_slots == 0 ? " is not possible: free memory or raise the limit" : "") };
    }
    flash_ =
        std::make_unique<Flash>(std::move(files), options_.lanes, options_.profile, cache_->io_all(), options_.log_io);
}

void Engine::attach(const llama_model & model) {
    if (options_.lookahead != Lookahead::off) {
        predictor_ = std::make_unique<Predictor>(map_, model);
    }
}

void Engine::begin_step() {
    stats_      = StepStats();
    cache_mark_ = cache_->totals();
    flash_mark_ = flash_->totals();
    left_ns_    = mono_ns();
}

void Engine::resume_step() {
    left_ns_ = mono_ns();
}

StepStats Engine::end_step() {
    stats_.dense_ns += mono_ns() - left_ns_;
    const CacheTotals c                = cache_->totals();
    const FlashTotals f                = flash_->totals();
    stats_.cache.evictions             = c.evictions - cache_mark_.evictions;
    stats_.cache.prefetch_wasted       = c.prefetch_wasted - cache_mark_.prefetch_wasted;
    stats_.cache.prefetch_wasted_bytes = c.prefetch_wasted_bytes - cache_mark_.prefetch_wasted_bytes;
    stats_.flash.bytes                 = f.bytes - flash_mark_.bytes;
    stats_.flash.reads                 = f.reads - flash_mark_.reads;
    stats_.flash.busy_ns               = f.busy_ns - flash_mark_.busy_ns;
    stats_.flash.late_ns               = f.late_ns - flash_mark_.late_ns;
    return stats_;
}

std::vector<LayerRecord> Engine::take_layers() {
    std::vector<LayerRecord> out;
    out.swap(layers_);
    return out;
}

ggml_status Engine::fail(const std::string & why) {
    if (error_.empty()) {
        error_ = why;
    }
    return GGML_STATUS_FAILED;
}

// ---------------------------------------------------------------- prediction

void Engine::score_prediction(const std::vector<Row> & rows, int layer, int64_t n_tokens, LayerRecord & record) {
    if (predicted_layer_ != layer) {
        return;
    }
    if (predicted_tokens_ == n_tokens) {
        for (const Row & row : rows) {
            const auto begin = predicted_.begin() + int64_t(row.token) * predicted_width_;
            stats_.recall_hit += std::find(begin, begin + predicted_width_, row.expert) != begin + predicted_width_;
            stats_.recall_total++;
        }
    }
    if (options_.log_layers) {
        record.predicted      = predicted_;
        record.has_prediction = true;
    }
    retire_prediction();
}

// Frees the predicted layer's guarded slots for eviction.
void Engine::retire_prediction() {
    if (predicted_layer_ < 0) {
        return;
    }
    for (int expert : predicted_) {
        const int s = cache_->find(predicted_layer_, expert);
        if (s >= 0) {
            cache_->slot(s).pinned = false;
        }
    }
    predicted_layer_ = -1;
    to_prefetch_.clear();
}

void Engine::predict(const RowProgram & program, ggml_backend_t cpu) {
    const bool own   = options_.lookahead == Lookahead::control;
    const int  layer = program.layer() + (own ? 0 : 1);
    float *    input = program.shared_input();
    if (options_.lookahead == Lookahead::off || layer >= int(map_.layers.size()) || !input) {
        return;
    }
    retire_prediction();
    predicted_width_ = std::min(map_.n_expert, int(std::ceil(options_.lookahead_width * map_.n_expert_used)));
    predicted_       = predictor_->predict(layer, input, program.n_tokens(), predicted_width_, cpu);
    if (predicted_.empty()) {
        return;
    }
    predicted_layer_  = layer;
    predicted_tokens_ = program.n_tokens();
    if (own) {
        return;
    }
    std::vector<bool> seen(size_t(map_.n_expert), false);
    for (int rank = 0; rank < predicted_width_; rank++) {
        for (int64_t t = 0; t < predicted_tokens_; t++) {
            const int expert = predicted_[size_t(t) * predicted_width_ + rank];
            if (seen[expert]) {
                continue;
            }
            seen[expert] = true;
            const int s  = cache_->find(layer, expert);
            if (s >= 0) {
                cache_->slot(s).pinned = true;
            } else {
                to_prefetch_.push_back(expert);
            }
        }
    }
}

// ---------------------------------------------------------------- one layer

std::vector<Engine::Need> Engine::collect(const std::vector<Row> & rows) {
    std::vector<int>  index(size_t(map_.n_expert), -1);
    std::vector<Need> needs;
    for (const Row & row : rows) {
        if (index[row.expert] < 0) {
            index[row.expert] = int(needs.size());
            needs.emplace_back();
            needs.back().expert = row.expert;
        }
        needs[index[row.expert]].rows.push_back(row);
    }
    // oldest use first: by the last token that wants the expert, then by its rank there
    std::sort(needs.begin(), needs.end(), [](const Need & a, const Need & b) {
        const Row & x = a.rows.back();
        const Row & y = b.rows.back();
        return x.token != y.token ? x.token < y.token : x.choice > y.choice;
    });
    for (size_t i = 0; i < needs.size(); i++) {
        needs[i].stamp = cache_->stamp();
        needs[i].keep  = needs.size() - i <= size_t(options_.cache_slots);
    }
    std::sort(needs.begin(), needs.end(), [](const Need & a, const Need & b) { return a.expert < b.expert; });
    return needs;
}

void Engine::classify(int layer, std::vector<Need> & needs, LayerRecord & record) {
    for (auto & need : needs) {
        stats_.lookups++;
        need.slot = cache_->find(layer, need.expert);
        if (need.slot < 0) {
            continue;
        }
        Slot & slot = cache_->slot(need.slot);
        slot.pinned = true;
        cache_->io(need.slot).wanted.store(true);
        if (slot.prefetched) {
            stats_.prefetch_used++;
        } else {
            stats_.hits++;
            record.hits++;
        }
    }
}

bool Engine::wait_for_wave(const std::vector<Need> & needs, LayerRecord & record) {
    std::vector<int> slots;
    const int64_t    now   = mono_ns();
    bool             ready = false, all = true;
    for (const auto & need : needs) {
        if (!need.done && need.slot >= 0) {
            slots.push_back(need.slot);
            const bool r = cache_->io(need.slot).ready(now);
            ready |= r;
            all &= r;
        }
    }
    if (slots.empty()) {
        return false;
    }
    if (all || (ready && options_.ready_first)) {
        return true;
    }
    const int64_t t0 = mono_ns();
    if (options_.ready_first) {
        flash_->wait_any(slots);
    } else {
        flash_->wait_all(slots);
    }
    const int64_t t1 = mono_ns();
    stats_.stall_ns += t1 - t0;
    if (options_.log_io) {
        record.wait_spans.push_back({ t0, t1 });
    }
    return true;
}

ggml_status Engine::compute(RowProgram & program, const std::vector<Row> & rows, std::vector<Need *> & wave,
                            ggml_backend_t cpu) {
    std::vector<int> slot_of(size_t(map_.n_expert), -1);
    size_t           n = 0;
    for (const Need * need : wave) {
        slot_of[need->expert] = need->slot;
        n += need->rows.size();
    }
    std::vector<Row> some;
    std::vector<int> slots;
    some.reserve(n);
    slots.reserve(n);
    for (const Row & row : rows) {
        if (slot_of[row.expert] >= 0) {
            some.push_back(row);
            slots.push_back(slot_of[row.expert]);
        }
    }
    if (!sums_ && some.size() == rows.size() && program.one_group(rows, slots, *cache_, align_)) {
        return program.run_all(rows, slots, *cache_, align_, cpu);
    }
    return program.run_wave(some, slots, *cache_, align_, cpu, sums_);
}

ggml_status Engine::run_waves(RowProgram & program, const std::vector<Row> & rows, std::vector<Need> & needs,
                              ggml_backend_t cpu, LayerRecord & record) {
    for (size_t left = needs.size(); left > 0;) {
        if (!wait_for_wave(needs, record)) {
            return fail("no slot for an expert of blk." + std::to_string(map_.layers[program.layer()].block) +
                        ": the working set is too small");
        }
        const auto read_error = flash_->error();
        if (!read_error.empty()) {
            return fail(read_error);
        }
        const int64_t       now = mono_ns();
        std::vector<Need *> wave;
        for (auto & need : needs) {
            if (!need.done && need.slot >= 0 && cache_->io(need.slot).ready(now)) {
                wave.push_back(&need);
            }
        }
        if (wave.empty()) {
            continue;
        }
        const ggml_status status = compute(program, rows, wave, cpu);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        const int64_t done = mono_ns();
        record.expert_ns += done - now;
        record.waves++;
        if (options_.log_io) {
            record.wave_spans.push_back({ now, done, int(wave.size()) });
        }
        for (Need * need : wave) {
            need->done = true;
            cache_->io(need->slot).wanted.store(false);
            cache_->used(need->slot, need->stamp);
        }
        left -= wave.size();
        if (left > 0) {
            cache_->end_layer();
            issue_demand(program.layer(), needs);
        }
        issue_prefetch(needs);
    }
    return GGML_STATUS_SUCCESS;
}

ggml_status Engine::run_layer(RowProgram & program, ggml_backend_t cpu) {
    const int64_t t0 = mono_ns();
    stats_.dense_ns += t0 - left_ns_;
    const int64_t stall_before = stats_.stall_ns;
    if (!error_.empty()) {
        return GGML_STATUS_FAILED;
    }
    const int   layer = program.layer();
    LayerRecord record;
    if (program.n_tokens() == 0) {  // no output wanted of the last layer
        reclaim_prefetch(layer, {});
        retire_prediction();
        left_ns_ = mono_ns();
        return GGML_STATUS_SUCCESS;
    }
    const auto rows  = program.rows();
    auto       needs = collect(rows);

    auto timed_predict = [&] {
        const int64_t start = mono_ns();
        predict(program, cpu);
        stats_.predict_ns += mono_ns() - start;
    };
    reclaim_prefetch(layer, needs);
    if (options_.lookahead == Lookahead::control) {
        timed_predict();
    }
    score_prediction(rows, layer, program.n_tokens(), record);
    classify(layer, needs, record);
    issue_demand(layer, needs);
    if (options_.lookahead == Lookahead::router) {
        timed_predict();
        issue_prefetch(needs);
    }
    const ggml_status status = run_waves(program, rows, needs, cpu, record);
    cache_->end_layer();

    stats_.expert_ns += record.expert_ns;
    if (options_.log_layers) {
        record.block    = map_.layers[layer].block;
        record.t0_ns    = t0;
        record.t1_ns    = mono_ns();
        record.stall_ns = stats_.stall_ns - stall_before;
        record.n_used   = int(rows.size() / size_t(program.n_tokens()));
        for (const Row & row : rows) {
            record.routed.push_back(row.expert);
        }
        layers_.push_back(std::move(record));
    }
    left_ns_ = mono_ns();
    return status;
}

}  // namespace les
