// Builds one JSON object as text, quickly: telemetry writes one per token.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace les {

class JsonLine {
  public:
    JsonLine() { text_.reserve(640); }

    JsonLine & num(const char * name, int64_t v) {
        key(name);
        text_ += std::to_string(v);
        return *this;
    }

    // Not measured is null, never 0.
    JsonLine & opt(const char * name, bool measured, int64_t v) { return measured ? num(name, v) : null(name); }

    JsonLine & real(const char * name, double v) {
        char b[32];
        snprintf(b, sizeof(b), "%.6g", v);
        key(name);
        text_ += b;
        return *this;
    }

    JsonLine & null(const char * name) { return raw(name, "null"); }

    JsonLine & boolean(const char * name, bool v) { return raw(name, v ? "true" : "false"); }

    JsonLine & raw(const char * name, const std::string & json) {
        key(name);
        text_ += json;
        return *this;
    }

    JsonLine & str(const char * name, const std::string & v) { return raw(name, quote(v)); }

    JsonLine & ids(const char * name, const int32_t * v, size_t n) {
        key(name);
        append_ids(v, n);
        return *this;
    }

    JsonLine & rows(const char * name, const std::vector<int32_t> & v, size_t width) {
        key(name);
        text_ += '[';
        for (size_t i = 0; width > 0 && i < v.size(); i += width) {
            text_ += i ? "," : "";
            append_ids(v.data() + i, width);
        }
        text_ += ']';
        return *this;
    }

    std::string done() const { return "{" + text_ + "}"; }

    static std::string quote(const std::string & v);  // invalid UTF-8 is replaced

  private:
    void key(const char * name) {
        text_ += text_.empty() ? "\"" : ",\"";
        text_ += name;
        text_ += "\":";
    }

    void append_ids(const int32_t * v, size_t n) {
        text_ += '[';
        for (size_t i = 0; i < n; i++) {
            text_ += i ? "," : "";
            text_ += std::to_string(v[i]);
        }
        text_ += ']';
    }

    std::string text_;
};

}  // namespace les
