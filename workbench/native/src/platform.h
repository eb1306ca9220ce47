// Everything that differs between operating systems: clocks, direct reads, memory and CPU figures.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace les {

int64_t mono_ns();
int64_t wall_ns();
void    sleep_until_ns(int64_t mono);  // absolute, on the clock of mono_ns
void    precise_timers();              // for the calling thread: short sleeps end on time

// One open model file. Direct reads need offset, length and memory on the `align` grid; buffered ones have align 1.
struct File {
    int         fd    = -1;
    int64_t     size  = 0;
    size_t      align = 1;
    std::string path;

    bool direct() const { return align > 1; }
};

// Opens for direct reads if asked and possible, else buffered. Returns an empty string or an error naming the file.
std::string open_file(const std::string & path, bool want_direct, File & out);
void        close_file(File & file);

// Fills the vector from `offset`, at least `need` bytes of it (a direct read may end at the end of the file).
// Returns an empty string or an error naming the file. Consumes `iov`.
std::string read_vector(const File & file, iovec * iov, int n_iov, int64_t offset, size_t need);

// Address space for `size` bytes; pages cost memory only once written.
void * reserve_memory(size_t size);
void   unreserve_memory(void * base, size_t size);

struct MemoryFigures {
    int64_t rss       = -1;  // -1: not measured
    int64_t peak      = -1;
    int64_t available = -1;  // to this process, cgroup limit included
};
MemoryFigures memory_figures();
int64_t       rss_bytes();

struct CpuFigures {
    int64_t own_ns               = -1;
    int64_t machine_busy_ns      = -1;  // all processes, all cores
    int64_t switches_voluntary   = -1;
    int64_t switches_involuntary = -1;
};
CpuFigures cpu_figures();

std::string os_name();
std::string machine_name();
std::string cpu_name();
int         cpu_count();
size_t      page_bytes();
double      load_average();  // 1 minute; negative where not measured
std::string self_path();

}  // namespace les
