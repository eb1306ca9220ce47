// llama.cpp's choice of types for a file, and ggml's conversion of rows: what `workbench quantize` is made of.
#pragma once

#include "les_session.h"

#include <string>

namespace les {

// {"model", "ftype", "types": [[pattern, ggml type], ...], "imatrix": bool} ->
// {"types": {tensor: ggml type}, "fallbacks": [[tensor, wanted type name, type name], ...]}; throws Error.
std::string quantize_types_json(const std::string & job);

// Converts rows as llama_model_quantize does, and checks both sides; throws Error.
void convert_rows(const les_rows & rows, int to_type, void * to, int n_threads);

}  // namespace les
