// Where every expert lies in the model file(s), and how an expert is laid out in a slot.
#pragma once

#include "ggml.h"
#include "platform.h"

#include <cstdint>
#include <string>
#include <vector>

namespace les {

// An error the user can act on; `tag` tells Python which exception to raise.
struct Error {
    std::string tag;  // toggle | file | arch | run
    std::string what;
};

// One projection of a layer's experts: gate, up, down, or the fused gate_up.
struct Projection {
    std::string name;  // "gate", "up", "down", "gate_up"
    ggml_type   type   = GGML_TYPE_F32;
    int64_t     ne0    = 0;
    int64_t     ne1    = 0;
    int         file   = 0;
    int64_t     base   = 0;  // file offset of expert 0
    size_t      bytes  = 0;  // of one expert's matrix
    size_t      stride = 0;  // file distance between experts
    size_t      region = 0;  // where in the slot this projection's read lands
};

struct MoeLayer {
    int                     block         = 0;      // N of blk.N
    bool                    uniform_phase = false;  // all experts start at the same place of the direct grid
    std::vector<Projection> projections;

    size_t expert_bytes() const;
    int    find(const std::string & projection) const;  // -1 if absent
};

struct ExpertMap {
    std::vector<std::string> paths;
    std::string              arch;  // without the packed file's prefix
    bool                     contiguous    = false;
    int                      n_block       = 0;
    int                      n_expert      = 0;
    int                      n_expert_used = 0;
    int64_t                  file_bytes    = 0;
    int64_t                  dense_bytes   = 0;
    size_t                   slot_bytes    = 0;
    std::vector<MoeLayer>    layers;

    int layer_of_block(int block) const;  // -1: not a MoE layer

    // In-slot offset of an expert's projection: its region plus where the direct grid leaves its first byte.
    size_t slot_offset(const MoeLayer & layer, int projection, int expert, size_t align) const;
};

// Reads the headers of all shards. Throws Error (file | arch).
ExpertMap read_expert_map(const std::string & path);

// Fixes the slot layout for reads on the `align` grid.
void plan_slots(ExpertMap & map, size_t align);

}  // namespace les
