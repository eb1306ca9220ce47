#include "expert_map.h"

#include "gguf.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

namespace les {

namespace {

struct GgufFree {
    void operator()(gguf_context * g) const { gguf_free(g); }
};
using Gguf = std::unique_ptr<gguf_context, GgufFree>;

constexpr size_t k_slot_page = 4096;

size_t round_up(size_t v, size_t to) {
    return (v + to - 1) / to * to;
}

int64_t get_int(const gguf_context * g, const std::string & key, int64_t fallback) {
    const int64_t id = gguf_find_key(g, key.c_str());
    if (id < 0) {
        return fallback;
    }
    switch (gguf_get_kv_type(g, id)) {
        case GGUF_TYPE_UINT16:
            return gguf_get_val_u16(g, id);
        case GGUF_TYPE_INT32:
            return gguf_get_val_i32(g, id);
        case GGUF_TYPE_UINT32:
            return gguf_get_val_u32(g, id);
        case GGUF_TYPE_UINT64:
            return int64_t(gguf_get_val_u64(g, id));
        case GGUF_TYPE_ARRAY:
            if (gguf_get_arr_n(g, id) > 0 &&
                (gguf_get_arr_type(g, id) == GGUF_TYPE_UINT32 || gguf_get_arr_type(g, id) == GGUF_TYPE_INT32)) {
                return *static_cast<const int32_t *>(gguf_get_arr_data(g, id));
            }
            return fallback;
        default:
            return fallback;
    }
}

std::string get_str(const gguf_context * g, const char * key) {
    const int64_t id = gguf_find_key(g, key);
    return id >= 0 && gguf_get_kv_type(g, id) == GGUF_TYPE_STRING ? gguf_get_val_str(g, id) : "";
}

int64_t file_size(const std::string & path) {
    File       f;
    const auto error = open_file(path, false, f);
    if (!error.empty()) {
        throw Error{ "file", error };
    }
    close_file(f);
    return f.size;
}

Gguf open_gguf(const std::string & path) {
    file_size(path);
    Gguf g(gguf_init_from_file(path.c_str(), { true, nullptr }));
    if (!g) {
        throw Error{ "file", path + ": not a readable GGUF (wrong magic, or its header is truncated or corrupt); " +
                                 "download or convert it again" };
    }
    return g;
}

std::vector<std::string> shard_paths(const std::string & first, int64_t count) {
    if (count <= 1) {
        return { first };
    }
    char suffix[64];
    snprintf(suffix, sizeof(suffix), "-00001-of-%05d.gguf", int(count));
    const size_t n = strlen(suffix);
    if (first.size() < n || first.compare(first.size() - n, n, suffix) != 0) {
        throw Error{ "file", first + ": one of " + std::to_string(count) +
                                 " shards; pass the first, whose name ends in " + suffix };
    }
    std::vector<std::string> paths;
    for (int i = 1; i <= int(count); i++) {
        snprintf(suffix, sizeof(suffix), "-%05d-of-%05d.gguf", i, int(count));
        paths.push_back(first.substr(0, first.size() - n) + suffix);
    }
    return paths;
}

}  // namespace

size_t MoeLayer::expert_bytes() const {
    size_t n = 0;
    for (const auto & p : projections) {
        n += p.bytes;
    }
    return n;
}

int MoeLayer::find(const std::string & projection) const {
    for (size_t i = 0; i < projections.size(); i++) {
        if (projections[i].name == projection) {
            return int(i);
        }
    }
    return -1;
}

int ExpertMap::layer_of_block(int block) const {
    for (size_t i = 0; i < layers.size(); i++) {
        if (layers[i].block == block) {
            return int(i);
        }
    }
    return -1;
}

size_t ExpertMap::slot_offset(const MoeLayer & layer, int projection, int expert, size_t align) const {
    const auto & p = layer.projections[projection];
    if (!contiguous) {
        return p.region + size_t(p.base + int64_t(expert) * int64_t(p.stride)) % align;
    }
    const auto & first = layer.projections[0];
    const size_t phase = size_t(first.base + int64_t(expert) * int64_t(first.stride)) % align;
    return phase + size_t(p.base - first.base);
}

ExpertMap read_expert_map(const std::string & path) {
    ExpertMap map;
    auto      head = open_gguf(path);
    map.arch       = get_str(head.get(), "general.architecture");
    map.contiguous = map.arch.compare(0, 4, "les-") == 0;
    if (map.contiguous) {
        map.arch = map.arch.substr(4);
    }
    map.n_block       = int(get_int(head.get(), map.arch + ".block_count", 0) -
                      get_int(head.get(), map.arch + ".nextn_predict_layers", 0));
    map.n_expert      = int(get_int(head.get(), map.arch + ".expert_count", 0));
    map.n_expert_used = int(get_int(head.get(), map.arch + ".expert_used_count", 0));
    if (map.n_expert <= 0 || map.n_expert_used <= 0) {
        throw Error{ "file", path + ": no experts (" + map.arch +
                                 ".expert_count is missing or 0); run dense models with experts=resident" };
    }
    map.paths = shard_paths(path, get_int(head.get(), "split.count", 1));

    std::map<int, MoeLayer> layers;
    for (size_t f = 0; f < map.paths.size(); f++) {
        Gguf           shard;
        gguf_context * g = head.get();
        if (f > 0) {
            shard = open_gguf(map.paths[f]);
            g     = shard.get();
        }
        const int64_t size = file_size(map.paths[f]);
        map.file_bytes += size;
        for (int64_t t = 0; t < gguf_get_n_tensors(g); t++) {
            const std::string name   = gguf_get_tensor_name(g, t);
            const size_t      bytes  = gguf_get_tensor_size(g, t);
            const int64_t     offset = int64_t(gguf_get_data_offset(g) + gguf_get_tensor_offset(g, t));
            if (offset + int64_t(bytes) > size) {
                throw Error{ "file", map.paths[f] + ": truncated: tensor " + name + " ends at byte " +
                                         std::to_string(offset + int64_t(bytes)) + " of " + std::to_string(size) +
                                         "; download it again" };
            }
            const size_t at = name.find(".ffn_");
            if (name.compare(0, 4, "blk.") != 0 || at == std::string::npos || name.size() < at + 18 ||
                name.compare(name.size() - 12, 12, "_exps.weight") != 0) {
                map.dense_bytes += int64_t(bytes);
                continue;
            }
            const int         block = std::stoi(name.substr(4));
            const std::string which = name.substr(at + 5, name.size() - 12 - at - 5);
            if (which != "gate" && which != "up" && which != "down" && which != "gate_up") {
                map.dense_bytes += int64_t(bytes);
                continue;
            }
            const int64_t * ne = gguf_get_tensor_ne(g, t);
            if (ne[2] != map.n_expert) {
                throw Error{ "file", map.paths[f] + ": " + name + " holds " + std::to_string(ne[2]) +
                                         " experts, the header says " + std::to_string(map.n_expert) };
            }
            if (block >= map.n_block) {
                continue;  // next-token-prediction blocks are not loaded
            }
            Projection p;
            p.name              = which;
            p.type              = gguf_get_tensor_type(g, t);
            p.ne0               = ne[0];
            p.ne1               = ne[1];
            p.file              = int(f);
            p.base              = offset;
            p.bytes             = bytes / size_t(map.n_expert);
            p.stride            = p.bytes;
            layers[block].block = block;
            layers[block].projections.push_back(p);
        }
    }
    const char * order[] = { "gate_up", "gate", "up", "down" };
    for (auto & [block, layer] : layers) {
        auto rank = [&](const Projection & p) { return std::find(order, order + 4, p.name) - order; };
        std::sort(layer.projections.begin(), layer.projections.end(),
                  [&](const Projection & a, const Projection & b) { return rank(a) < rank(b); });
        if (layer.find("down") < 0 || layer.projections.size() < 2) {
            throw Error{ "file", path + ": blk." + std::to_string(block) + " has an incomplete set of expert tensors" };
        }
        if (map.contiguous) {
            const size_t  stride = layer.expert_bytes();
            const int64_t base   = layer.projections[0].base;
            size_t        inside = 0;
            for (auto & p : layer.projections) {
                p.base   = base + int64_t(inside);
                p.stride = stride;
                inside += p.bytes;
            }
        }
        map.layers.push_back(layer);
    }
    if (map.layers.empty()) {
        throw Error{ "file", path + ": no expert tensors (blk.N.ffn_*_exps.weight)" };
    }
    return map;
}

void plan_slots(ExpertMap & map, size_t align) {
    for (auto & layer : map.layers) {
        size_t end          = 0;
        layer.uniform_phase = std::all_of(layer.projections.begin(), layer.projections.end(),
                                          [&](const Projection & p) { return p.stride % align == 0; });
        if (map.contiguous) {
            end = round_up(layer.expert_bytes() + align, std::max(align, k_slot_page)) + (align > 1 ? align : 0);
        } else {
            for (auto & p : layer.projections) {
                p.region = end;
                end += round_up(p.bytes + 2 * (align > 1 ? align : 0), std::max<size_t>(align, 64));
            }
        }
        map.slot_bytes = std::max(map.slot_bytes, round_up(end, std::max(align, k_slot_page)));
    }
}

}  // namespace les
