/* The one generation loop, as a C ABI: used by les-run, by Python and by apps on devices. Not thread-safe. */
#ifndef LES_SESSION_H
#define LES_SESSION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct les_session les_session;

/* Opens a model. `job_json`: {"model": path, "config": {toggles}, "run_id", "model_sha256", "telemetry_path"}.
   NULL on error; `error` then holds "tag: text", tag one of toggle, file, arch, run. */
les_session * les_open(const char * job_json, char * error, size_t error_size);
void          les_close(les_session * s);

/* Starts a generation in sequence 0: prompt tokens, then up to n_predict tokens. With `force`, those tokens are fed
   instead of sampled ones (teacher forcing). Returns 0, or -1 (les_error). */
int les_begin(les_session * s, const int32_t * prompt, int n_prompt, int n_predict, const int32_t * force,
              int ignore_eos);

/* One decode call: a prompt chunk or one token. 1: a record was made, 0: finished, -1: failed (les_error). */
int les_next(les_session * s);

/* Evaluates any batch: token i belongs to sequences seq[i] … seq[i] + n_seq[i] - 1; logits of the tokens with
   want[i] != 0 are kept in order. 0 or -1. */
int les_eval(les_session * s, int n, const int32_t * tokens, const int32_t * pos, const int32_t * seq,
             const int32_t * n_seq, const int8_t * want);
int les_clear(les_session * s, int seq); /* forgets a sequence, -1: all */

const float * les_logits(les_session * s, int * n_rows, int * n_vocab); /* of the last les_next / les_eval */
int32_t       les_next_token(les_session * s);                          /* chosen by the last les_next; -1: none */
void          les_interrupt(les_session * s); /* from any thread or signal: stop after this call */

const char * les_header(les_session * s);     /* hdr record */
const char * les_take_lines(les_session * s); /* records since the last take, one JSON object per line */
const char * les_finish(les_session * s); /* ends the generation, returns the end record; closes the telemetry file */
const char * les_error(les_session * s);

/* One whole job of les-run: opens the model, generates, closes it. The records go to the job's `telemetry_path`, or
   without one to `take`, some lines at a time, as they are made. 0; 1: the run failed; 2: the job was refused. Then
   `error` holds "tag: text". One at a time. */
typedef void (*les_take)(const char * lines, void * context);
int les_run_job(const char * job_json, les_take take, void * context, char * error, size_t error_size);
/* From any thread or signal: the running job ends after this decode call. 0: none has begun yet. */
int les_stop_job(void);

void * les_model(les_session * s);   /* llama_model * */
void * les_context(les_session * s); /* llama_context * */

/* Importance matrix: sums of squares of what every weight matrix reads. A pass decodes up to n_batch tokens from
   position 0, unrecorded; the first one starts the sums. Entry `index`, by name: 0, or -1 past the last. */
typedef struct {
    const char *    name;
    int64_t         width, n_matrix, n_count; /* n_count: experts, or 1 for a dense matrix */
    const double *  sums;                     /* [n_matrix, width] */
    const int64_t * counts;                   /* rows seen */
} les_imatrix_sums;

int les_imatrix_pass(les_session * s, const int32_t * tokens, int n_tokens);
int les_imatrix_entry(les_session * s, int index, les_imatrix_sums * entry);

/* Rows of a tensor: `count` of `width` weights, the first being the tensor's row `first`; `importance` holds a row of
   weights for every matrix of `per_matrix` rows, or is NULL. */
typedef struct {
    const void *  data;
    const float * importance;
    int64_t       count, width, first, per_matrix;
    int           type;
} les_rows;

/* Converts rows to another ggml type as llama.cpp's quantizer does. 0, or -1 and `error`: "tag: text". */
int les_convert_rows(const les_rows * rows, int to_type, void * to, int n_threads, char * error, size_t error_size);

/* Process-wide helpers. Results live until the next call. */
/* The types llama.cpp's quantizer chooses for a file's tensors. {"model", "ftype", "types": [[pattern, ggml type]],
   "imatrix"} -> {"types": {tensor: ggml type}, "fallbacks": [[tensor, wanted, given]]} or {"error": "tag: text"} */
const char * les_quantize_types(const char * job_json);
const char * les_machine(const char * path); /* JSON: cores, memory, direct reads where `path` lies */
/* JSON, a `smp` record: memory of this process (on Apple its footprint), and the caller's reading or NULL */
const char * les_sample(const char * thermal_state);
const char * les_iobench(const char * job_json); /* JSON: bandwidth of lanes over a file; {"error": ...} on failure */
void         les_log_level(int level);           /* llama.cpp messages: 0 none, 1 errors, 2 warnings, 3 all */

#ifdef __cplusplus
}
#endif

#endif
