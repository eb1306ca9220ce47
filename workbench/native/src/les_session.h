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

/* Evaluates any batch (several sequences); logits of the tokens with want[i] != 0 are kept in order. 0 or -1. */
int les_eval(les_session * s, int n, const int32_t * tokens, const int32_t * pos, const int32_t * seq,
             const int8_t * want);
int les_clear(les_session * s, int seq); /* forgets a sequence, -1: all */

const float * les_logits(les_session * s, int * n_rows, int * n_vocab); /* of the last les_next / les_eval */
int32_t       les_next_token(les_session * s);                          /* chosen by the last les_next; -1: none */
void          les_interrupt(les_session * s); /* from any thread or signal: stop after this call */

const char * les_header(les_session * s);     /* hdr record */
const char * les_take_lines(les_session * s); /* records since the last take, one JSON object per line */
const char * les_finish(les_session * s); /* ends the generation, returns the end record; closes the telemetry file */
const char * les_error(les_session * s);

void * les_model(les_session * s);   /* llama_model * */
void * les_context(les_session * s); /* llama_context * */

/* Process-wide helpers. Results live until the next call. */
const char * les_machine(const char * path);     /* JSON: cores, memory, direct reads where `path` lies */
const char * les_iobench(const char * job_json); /* JSON: bandwidth of lanes over a file; {"error": ...} on failure */
void         les_log_level(int level);           /* llama.cpp messages: 0 none, 1 errors, 2 warnings, 3 all */

#ifdef __cplusplus
}
#endif

#endif
