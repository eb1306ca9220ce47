// The ggml backend "LES": one ACCEL device, a buffer type that holds no bytes, and the expert FFN of every layer.
#pragma once

#include "ggml-backend.h"

namespace les {

class Engine;

ggml_backend_buffer_type_t streamed_buffer_type();

// Registers the backend once per process.
void register_backend();

// Buffers allocated while this lives belong to `engine` (models load one at a time per process).
class LoadingFor {
  public:
    explicit LoadingFor(Engine & engine);
    ~LoadingFor();
};

}  // namespace les
