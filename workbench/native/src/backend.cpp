#include "backend.h"

#include "engine.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "row_program.h"

#include <cstring>
#include <mutex>

namespace les {

namespace {

std::mutex g_loading_mutex;
Engine *   g_loading = nullptr;

// --- buffer type: addresses without memory; the name is what the loader patch looks for

const char * buft_name(ggml_backend_buffer_type_t) {
    return "LES";
}

void * buffer_base(ggml_backend_buffer_t) {
    return reinterpret_cast<void *>(uintptr_t(0x1000));
}

void buffer_set(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t) {}

void buffer_get(ggml_backend_buffer_t, const ggml_tensor * t, void *, size_t, size_t) {
    GGML_ABORT("%s is streamed and cannot be read as a whole", t->name);
}

void buffer_clear(ggml_backend_buffer_t, uint8_t) {}

ggml_backend_buffer_t buft_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_i iface = {};
    iface.get_base              = buffer_base;
    iface.set_tensor            = buffer_set;
    iface.get_tensor            = buffer_get;
    iface.clear                 = buffer_clear;
    return ggml_backend_buffer_init(buft, iface, g_loading, size);
}

size_t buft_alignment(ggml_backend_buffer_type_t) {
    return 64;
}

bool buft_is_host(ggml_backend_buffer_type_t) {
    return false;
}

// --- backend: an expert FFN goes to its engine, anything else to the CPU backend inside

struct Backend {
    ggml_backend_t cpu;
    Scratch        scratch;
};

bool is_view(const ggml_tensor * t) {
    return t->op == GGML_OP_NONE || t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE ||
           t->op == GGML_OP_TRANSPOSE;
}

const char * backend_name(ggml_backend_t) {
    return "LES";
}

void backend_free(ggml_backend_t backend) {
    auto * b = static_cast<Backend *>(backend->context);
    ggml_backend_free(b->cpu);
    delete b;
    delete backend;
}

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    auto * b = static_cast<Backend *>(backend->context);
    for (int i = 0; i < graph->n_nodes;) {
        ggml_tensor * node   = graph->nodes[i];
        ggml_status   status = GGML_STATUS_SUCCESS;
        if (node->op == GGML_OP_MUL_MAT_ID && is_streamed(node->src[0])) {
            auto *     engine = static_cast<Engine *>(node->src[0]->buffer->context);
            RowProgram program(graph, i, engine->map(), b->scratch);
            status = engine->run_layer(program, b->cpu);
            i      = program.end();
        } else if (is_view(node)) {
            i++;
        } else {
            ggml_cgraph one = ggml_graph_view(graph, i, i + 1);
            status          = ggml_backend_graph_compute(b->cpu, &one);
            i++;
        }
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

void backend_set_n_threads(ggml_backend_t backend, int n_threads) {
    ggml_backend_cpu_set_n_threads(static_cast<Backend *>(backend->context)->cpu, n_threads);
}

ggml_guid_t backend_guid() {
    static ggml_guid guid = { 0x4c, 0x45, 0x53, 0x2d, 0x65, 0x78, 0x70, 0x65,
                              0x72, 0x74, 0x2d, 0x66, 0x6c, 0x61, 0x73, 0x68 };
    return &guid;
}

// --- device and registry

ggml_backend_device * the_device();

const char * device_name(ggml_backend_dev_t) {
    return "LES";
}

const char * device_description(ggml_backend_dev_t) {
    return "experts streamed from flash";
}

void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = *total = 0;
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

void device_props(ggml_backend_dev_t, ggml_backend_dev_props * props) {
    *props             = {};
    props->name        = "LES";
    props->description = "experts streamed from flash";
    props->type        = GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

ggml_backend_t device_init(ggml_backend_dev_t, const char *) {
    auto * b             = new Backend;
    b->cpu               = ggml_backend_cpu_init();
    ggml_backend_i iface = {};
    iface.get_name       = backend_name;
    iface.free           = backend_free;
    iface.graph_compute  = backend_compute;
    return new ggml_backend{ backend_guid(), iface, the_device(), b };
}

ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) {
    return ggml_backend_cpu_buffer_type();
}

bool device_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    if (op->op == GGML_OP_NONE) {
        return is_streamed(op);
    }
    return (op->op == GGML_OP_MUL_MAT_ID && is_streamed(op->src[0])) || is_row_op(op);
}

bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t buft) {
    return buft == streamed_buffer_type() || ggml_backend_buft_is_host(buft);
}

const char * reg_name(ggml_backend_reg_t) {
    return "LES";
}

size_t reg_device_count(ggml_backend_reg_t) {
    return 1;
}

ggml_backend_dev_t reg_device(ggml_backend_reg_t, size_t) {
    return the_device();
}

void * reg_proc(ggml_backend_reg_t, const char * name) {
    return strcmp(name, "ggml_backend_set_n_threads") == 0 ? reinterpret_cast<void *>(backend_set_n_threads) : nullptr;
}

ggml_backend_reg * the_registry() {
    static ggml_backend_reg reg = { GGML_BACKEND_API_VERSION,
                                    { reg_name, reg_device_count, reg_device, reg_proc },
                                    nullptr };
    return &reg;
}

ggml_backend_device * the_device() {
    static ggml_backend_device device = [] {
        ggml_backend_device d   = {};
        d.iface.get_name        = device_name;
        d.iface.get_description = device_description;
        d.iface.get_memory      = device_memory;
        d.iface.get_type        = device_type;
        d.iface.get_props       = device_props;
        d.iface.init_backend    = device_init;
        d.iface.get_buffer_type = device_buffer_type;
        d.iface.supports_op     = device_supports_op;
        d.iface.supports_buft   = device_supports_buft;
        d.reg                   = the_registry();
        return d;
    }();
    return &device;
}

}  // namespace

ggml_backend_buffer_type_t streamed_buffer_type() {
    static ggml_backend_buffer_type buft = {
        { buft_name, buft_alloc, buft_alignment, nullptr, nullptr, buft_is_host },
        the_device(),
        nullptr,
    };
    return &buft;
}

void register_backend() {
    static std::once_flag once;
    std::call_once(once, [] { ggml_backend_register(the_registry()); });
}

LoadingFor::LoadingFor(Engine & engine) {
    g_loading_mutex.lock();
    g_loading = &engine;
}

LoadingFor::~LoadingFor() {
    g_loading = nullptr;
    g_loading_mutex.unlock();
}

}  // namespace les
