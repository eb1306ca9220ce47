#include "platform.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#ifdef __APPLE__
#include <TargetConditionals.h>
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <sys/sysctl.h>
#if TARGET_OS_IPHONE
#include <os/proc.h>
#endif
#else
#include <sys/prctl.h>
#endif

namespace les {

static int64_t clock_ns(clockid_t id) {
    timespec ts;
    clock_gettime(id, &ts);
    return int64_t(ts.tv_sec) * 1000000000 + ts.tv_nsec;
}

int64_t mono_ns() {
    return clock_ns(CLOCK_MONOTONIC);
}

int64_t wall_ns() {
    return clock_ns(CLOCK_REALTIME);
}

void sleep_until_ns(int64_t mono) {
#ifdef __APPLE__
    const int64_t left = mono - mono_ns();
    if (left > 0) {
        timespec ts = { time_t(left / 1000000000), long(left % 1000000000) };
        nanosleep(&ts, nullptr);
    }
#else
    timespec ts = { time_t(mono / 1000000000), long(mono % 1000000000) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, nullptr) == EINTR) {
    }
#endif
}

void precise_timers() {
#ifndef __APPLE__
    prctl(PR_SET_TIMERSLACK, 1000);
#endif
}

static std::string os_error(const std::string & what, const std::string & path) {
    return what + " " + path + ": " + strerror(errno);
}

static size_t direct_alignment(const std::string & path) {
#if defined(STATX_DIOALIGN)
    struct statx sx;
    if (statx(AT_FDCWD, path.c_str(), 0, STATX_DIOALIGN, &sx) == 0 && (sx.stx_mask & STATX_DIOALIGN)) {
        return sx.stx_dio_offset_align == 0 ? 0 : std::max<size_t>(sx.stx_dio_offset_align, sx.stx_dio_mem_align);
    }
#endif
    (void)path;
    return 4096;
}

std::string open_file(const std::string & path, bool want_direct, File & out) {
    out.path = path;
#ifdef __APPLE__
    out.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (out.fd >= 0 && want_direct && fcntl(out.fd, F_NOCACHE, 1) == 0) {
        fcntl(out.fd, F_RDAHEAD, 0);
        out.align = 16384;
    }
#else
    const size_t align = want_direct ? direct_alignment(path) : 0;
    if (align > 0) {
        out.fd    = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
        out.align = out.fd >= 0 ? align : 1;
    }
    if (out.fd < 0) {
        out.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    }
#endif
    struct stat st;
    if (out.fd < 0 || fstat(out.fd, &st) != 0) {
        return os_error("cannot open", path);
    }
    out.size = st.st_size;
    return "";
}

void close_file(File & file) {
    if (file.fd >= 0) {
        close(file.fd);
        file.fd = -1;
    }
}

std::string read_vector(const File & file, iovec * iov, int n_iov, int64_t offset, size_t need) {
    size_t got = 0;
    while (got < need) {
        const ssize_t n = preadv(file.fd, iov, n_iov, offset + int64_t(got));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return os_error("read error at byte " + std::to_string(offset + int64_t(got)) + " of", file.path);
        }
        if (n == 0) {
            return "file ended at byte " + std::to_string(offset + int64_t(got)) + " while reading " + file.path +
                   " (was it truncated during the run?)";
        }
        got += size_t(n);
        for (size_t skip = size_t(n); skip > 0 && n_iov > 0;) {
            const size_t step = std::min(skip, iov->iov_len);
            iov->iov_base     = static_cast<char *>(iov->iov_base) + step;
            iov->iov_len -= step;
            skip -= step;
            if (iov->iov_len == 0) {
                iov++;
                n_iov--;
            }
        }
    }
    return "";
}

void * reserve_memory(size_t size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void * base = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    return base == MAP_FAILED ? nullptr : base;
}

void unreserve_memory(void * base, size_t size) {
    if (base) {
        munmap(base, size);
    }
}

#ifndef __APPLE__
static int64_t first_number(const char * path) {
    std::ifstream in(path);
    int64_t       v;
    return in >> v ? v : -1;
}

static int64_t status_field_bytes(const char * path, const std::string & field) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
        if (line.compare(0, field.size(), field) == 0) {
            return std::stoll(line.substr(field.size())) * 1024;
        }
    }
    return -1;
}

// The tightest memory limit above this process (cgroup v1 or v2), minus what is used there and cannot be reclaimed.
static int64_t cgroup_available() {
    std::ifstream in("/proc/self/cgroup");
    int64_t       best = -1;
    for (std::string line; std::getline(in, line);) {
        const bool   v2 = line.compare(0, 3, "0::") == 0;
        const size_t v1 = line.find(":memory:");
        if (!v2 && v1 == std::string::npos) {
            continue;
        }
        const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        for (std::string dir = root + line.substr(v2 ? 3 : v1 + 8); dir.size() > root.size();
             dir             = dir.substr(0, dir.rfind('/'))) {
            const int64_t limit = first_number((dir + (v2 ? "/memory.max" : "/memory.limit_in_bytes")).c_str());
            const int64_t used  = first_number((dir + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).c_str());
            if (limit <= 0 || used < 0) {
                continue;
            }
            int64_t       cache = 0;
            std::ifstream stat(dir + "/memory.stat");
            std::string   key;
            for (int64_t value; stat >> key >> value;) {
                cache += key == "inactive_file" || key == "active_file" ? value : 0;
            }
            const int64_t left = std::max<int64_t>(0, limit - used + cache);
            best               = best < 0 ? left : std::min(best, left);
        }
    }
    return best;
}
#endif

int64_t rss_bytes() {
#ifdef __APPLE__
    return memory_figures().rss;
#else
    static const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);  // read once per token: keep it open
    char             text[128];
    const ssize_t    n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
    if (n <= 0) {
        return -1;
    }
    text[n] = 0;
    char * end;
    strtoll(text, &end, 10);
    return strtoll(end, nullptr, 10) * int64_t(page_bytes());
#endif
}

MemoryFigures memory_figures() {
    MemoryFigures m;
#ifdef __APPLE__
    task_vm_info_data_t    info;
    mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
    if (task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count) == KERN_SUCCESS) {
        m.rss  = int64_t(info.phys_footprint);
        m.peak = int64_t(info.ledger_phys_footprint_peak);
    }
#if TARGET_OS_IPHONE
    m.available = int64_t(os_proc_available_memory());  // until the system would end the app
#endif
#else
    m.rss             = rss_bytes();
    m.peak            = status_field_bytes("/proc/self/status", "VmHWM:");
    m.available       = status_field_bytes("/proc/meminfo", "MemAvailable:");
    const int64_t cap = cgroup_available();
    if (cap >= 0) {
        m.available = std::min(m.available, cap);
    }
#endif
    return m;
}

CpuFigures cpu_figures() {
    CpuFigures f;
    rusage     u;
    if (getrusage(RUSAGE_SELF, &u) == 0) {
        auto ns  = [](const timeval & t) { return int64_t(t.tv_sec) * 1000000000 + int64_t(t.tv_usec) * 1000; };
        f.own_ns = ns(u.ru_utime) + ns(u.ru_stime);
        f.switches_voluntary   = u.ru_nvcsw;
        f.switches_involuntary = u.ru_nivcsw;
    }
#ifndef __APPLE__
    std::ifstream in("/proc/stat");
    std::string   cpu;
    int64_t       user, nice, system, idle, iowait, irq, softirq;
    if (in >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq) {
        f.machine_busy_ns = (user + nice + system + irq + softirq) * (1000000000 / sysconf(_SC_CLK_TCK));
    }
#endif
    return f;
}

std::string os_name() {
    utsname u;
    return uname(&u) == 0 ? std::string(u.sysname) + " " + u.release : "unknown";
}

std::string machine_name() {
    utsname u;
    return uname(&u) == 0 ? u.machine : "unknown";
}

std::string cpu_name() {
#ifdef __APPLE__
    char   name[256] = {};
    size_t size      = sizeof(name);
    return sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) == 0 ? name : "Apple";
#else
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
        if (line.compare(0, 10, "model name") == 0) {
            return line.substr(line.find(':') + 2);
        }
    }
    return machine_name();
#endif
}

int cpu_count() {
    return std::max(1u, std::thread::hardware_concurrency());
}

size_t page_bytes() {
    return size_t(sysconf(_SC_PAGESIZE));
}

double load_average() {
    double load;
    return getloadavg(&load, 1) == 1 ? load : -1.0;
}

std::string self_path() {
    char path[4096] = {};
#ifdef __APPLE__
    uint32_t size = sizeof(path);
    return _NSGetExecutablePath(path, &size) == 0 ? path : "";
#else
    const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    return n > 0 ? std::string(path, size_t(n)) : "";
#endif
}

}  // namespace les
