// One job from its JSON to its last record: what les-run and the apps on devices do.
#pragma once

#include "job.h"

#include <functional>

namespace les {

// Records go to the job's telemetry file, or without one to `take`. Throws Error when the job is refused; returns an
// Error with an empty tag, or why the run failed.
Error run_job(const Job & job, const std::function<void(const std::string &)> & take);
bool  stop_job();  // from any thread or signal; false: no job has begun, so nothing is recorded

}  // namespace les
