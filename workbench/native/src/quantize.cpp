#include "quantize.h"

#include "ggml.h"
#include "job.h"
#include "llama.h"
#include "nlohmann/json.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

namespace les {

using nlohmann::json;

namespace {

// llama.cpp's messages while this lives. Its dry run tells its choices only there: llama_quant_compute_types of
// llama-ext.h does not know of an importance matrix, on which some choices depend.
class Messages {
  public:
    Messages() {
        llama_log_get(&before_, &before_data_);
        llama_log_set(
            [](ggml_log_level, const char * text, void * self) { static_cast<Messages *>(self)->text_ += text; }, this);
    }

    ~Messages() { llama_log_set(before_, before_data_); }

    const std::string & text() const { return text_; }

  private:
    ggml_log_callback before_      = nullptr;
    void *            before_data_ = nullptr;
    std::string       text_;
};

int type_of(const std::string & name) {
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const char * known = ggml_type_name(ggml_type(t));
        if (known && name == known) {
            return t;
        }
    }
    throw Error{ "run", "llama.cpp named a type that ggml does not know: " + name };
}

std::string failure(const std::string & messages) {
    const std::string mark = "failed to quantize: ";
    const size_t      at   = messages.rfind(mark);
    return at == std::string::npos ? "no reason given"
                                   : messages.substr(at + mark.size(), messages.find('\n', at) - at - mark.size());
}

json choices(const std::string & messages) {
    static const std::regex tensor(R"(^\[ *\d+/ *\d+\] (\S+) +- \[.*\], type = +(\w+), size = .* MiB(?: \((\w+)\))?$)");
    static const std::regex fallback(
        R"(^warning: (\S+) +- ncols .*\(required for type +(\w+)\).*-> falling back to +(\w+)$)");
    json               types = json::object(), fallbacks = json::array();
    std::istringstream lines(messages);
    std::smatch        m;
    for (std::string line; std::getline(lines, line);) {
        if (std::regex_match(line, m, tensor)) {
            types[m[1].str()] = type_of(m[3].matched ? m[3].str() : m[2].str());
        } else if (std::regex_match(line, m, fallback)) {
            fallbacks.push_back({ m[1].str(), m[2].str(), m[3].str() });
        }
    }
    return { { "types", types }, { "fallbacks", fallbacks } };
}

}  // namespace

std::string quantize_types_json(const std::string & text) {
    const json        job   = json::parse(text);
    const std::string model = job.at("model");

    std::vector<std::string> patterns;
    for (const auto & rule : job.at("types")) {
        patterns.push_back(rule.at(0));
    }
    std::vector<llama_model_tensor_override> rules;
    for (size_t i = 0; i < patterns.size(); i++) {
        rules.push_back({ patterns[i].c_str(), ggml_type(job.at("types")[i].at(1).get<int>()) });
    }
    rules.push_back({ nullptr, GGML_TYPE_COUNT });
    const llama_model_imatrix_data no_entries[1] = {};  // a matrix without entries is still one for the choice of types

    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype                       = llama_ftype(job.at("ftype").get<int>());
    params.tt_overrides                = rules.data();
    params.imatrix                     = job.value("imatrix", false) ? no_entries : nullptr;
    params.dry_run                     = true;
    Messages messages;
    if (llama_model_quantize(model.c_str(), "", &params) != 0) {
        throw Error{ "file", model + ": llama.cpp's quantizer refuses it: " + failure(messages.text()) };
    }
    return choices(messages.text()).dump();
}

void convert_rows(const les_rows & rows, int to_type, void * to, int n_threads) {
    const auto   from_type = ggml_type(rows.type), type = ggml_type(to_type);
    const auto * traits   = ggml_get_type_traits(from_type);
    const size_t from_row = ggml_row_size(from_type, rows.width);
    const size_t to_row   = ggml_row_size(type, rows.width);
    if (from_type == type) {
        if (!ggml_validate_row_data(type, rows.data, from_row * size_t(rows.count))) {
            throw Error{ "file", "holds NaN, infinities or damaged blocks" };
        }
        memcpy(to, rows.data, from_row * size_t(rows.count));
        return;
    }
    if (from_type != GGML_TYPE_F32 && !traits->to_float) {
        throw Error{ "file", std::string("of type ") + ggml_type_name(from_type) + " cannot be converted" };
    }
    ggml_quantize_init(type);
    const int64_t        chunk = std::max<int64_t>(1, 16384 / rows.width);
    std::atomic<int64_t> next{ 0 };
    std::atomic<bool>    bad_source{ false }, bad_result{ false };

    auto work = [&] {
        std::vector<float> floats(from_type == GGML_TYPE_F32 ? 0 : size_t(chunk * rows.width));
        for (int64_t begin; (begin = next.fetch_add(chunk)) < rows.count && !bad_source && !bad_result;) {
            for (int64_t row = begin, end = std::min(begin + chunk, rows.count); row < end;) {
                const int64_t matrix = (rows.first + row) / rows.per_matrix;
                const int64_t n      = std::min(end - row, (matrix + 1) * rows.per_matrix - (rows.first + row));
                const auto *  source = static_cast<const char *>(rows.data) + size_t(row) * from_row;
                auto *        target = static_cast<char *>(to) + size_t(row) * to_row;
                bad_source           = bad_source || !ggml_validate_row_data(from_type, source, size_t(n) * from_row);
                const auto * values  = reinterpret_cast<const float *>(source);
                if (from_type != GGML_TYPE_F32) {
                    traits->to_float(source, floats.data(), n * rows.width);
                    values = floats.data();
                }
                const float * importance = rows.importance ? rows.importance + matrix * rows.width : nullptr;
                ggml_quantize_chunk(type, values, target, 0, n, rows.width, importance);
                bad_result = bad_result || !ggml_validate_row_data(type, target, size_t(n) * to_row);
                row += n;
            }
        }
    };
    std::vector<std::thread> helpers;
    for (int i = 1; i < n_threads; i++) {
        helpers.emplace_back(work);
    }
    work();
    for (auto & helper : helpers) {
        helper.join();
    }
    if (bad_source) {
        throw Error{ "file", "holds NaN, infinities or damaged blocks" };
    }
    if (bad_result) {
        throw Error{ "run", std::string("cannot be represented in ") + ggml_type_name(type) };
    }
}

}  // namespace les
