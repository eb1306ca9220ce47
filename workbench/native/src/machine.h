// What this machine can do: facts for `workbench doctor`, and the idle bandwidth of the read lanes.
#pragma once

#include <string>

namespace les {

std::string machine_json(const std::string & path);

// {"t": "smp", ...}: this process's memory now, and a reading of the caller's; "" where there is none
std::string sample_json(const std::string & thermal_state);

// {"path", "lanes", "block_bytes", "seconds", "direct", "seed"[, emulate_*]} -> {"bytes", "reads", "seconds",
// "bytes_s", ...}
std::string iobench_json(const std::string & job);

}  // namespace les
