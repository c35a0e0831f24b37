/* NVIDIA's driver without a GPU, for tests: device memory is the host's, and streams do nothing until they are waited
 * for; only every 20th question whether they are done lets them do one thing more. So what reads too early, or reuses
 * memory too early, gets wrong bytes every time. Kernels do nothing; one may fail: see `environment`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_FOUND = 500, NOT_READY = 600,
       ILLEGAL_ADDRESS = 700 };
enum { COPY, CLEAR, WAIT, LAUNCH };

typedef struct Stream Stream;
typedef struct { Stream *stream; long ticket; } Event;
typedef struct { int kind; void *target; const void *source; size_t nbytes; Stream *other; long ticket; } Operation;
struct Stream { Operation operations[4096]; long queued, done, questions; Stream *next; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Stream *streams;
static int sticky;          /* what every call answers once a kernel failed */
static long launches;
static size_t reserved;
static __thread int entered; /* whether this thread has a context */

/* Read by tests. */
unsigned long long pretended_words[64];
int pretended_word_count;
long pretended_unequal; /* launches whose first two arguments differ */
long pretended_host_bytes;

static long environment(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static void run(Stream *stream, long ticket) {
    while (stream->done < ticket) {
        Operation *o = &stream->operations[stream->done++ % 4096];
        if (o->kind == COPY) memcpy(o->target, o->source, o->nbytes);
        if (o->kind == CLEAR) memset(o->target, 0, o->nbytes);
        if (o->kind == WAIT) run(o->other, o->ticket);
        if (o->kind == LAUNCH && o->ticket == environment("PRETEND_FAILING_LAUNCH", 0)) sticky = ILLEGAL_ADDRESS;
    }
}

static int put(Stream *stream, Operation operation) {
    if (!stream) abort(); /* the legacy default stream, which is not for us */
    if (stream->queued - stream->done == 4096) run(stream, stream->done + 1);
    stream->operations[stream->queued++ % 4096] = operation;
    return sticky;
}

#define GUARDED(...) \
    if (!entered) return 201; \
    pthread_mutex_lock(&lock); \
    int status = sticky; \
    if (!status) { __VA_ARGS__ } \
    pthread_mutex_unlock(&lock); \
    return status

int cuInit(unsigned flags) { return environment("PRETEND_INIT", SUCCESS); }
int cuDriverGetVersion(int *version) { *version = environment("PRETEND_VERSION", 99000); return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = environment("PRETEND_DEVICES", 1); return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Pretended GPU"); return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int capability = environment("PRETEND_CAPABILITY", 80);
    *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 16 ? 4 : 0;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &lock; return SUCCESS; }
int cuCtxSetCurrent(void *context) { entered = context != NULL; return SUCCESS; }
int cuGetErrorName(int status, const char **name) { *name = "PRETENDED"; return SUCCESS; }
int cuGetErrorString(int status, const char **text) {
    *text = status == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "a pretended error";
    return SUCCESS;
}

int cuMemAlloc(void **address, size_t nbytes) {
    GUARDED(
        status = reserved + nbytes > (size_t)environment("PRETEND_BYTES", 1 << 30) ? OUT_OF_MEMORY : SUCCESS;
        if (!status) {
            size_t *memory = aligned_alloc(512, nbytes + 512);
            *memory = nbytes;
            reserved += nbytes;
            *address = (char *)memory + 512;
        }
    );
}
int cuMemFree(char *address) {
    GUARDED(
        for (Stream *s = streams; s; s = s->next) run(s, s->queued);
        reserved -= *(size_t *)(address - 512);
        free(address - 512);
    );
}
int cuMemGetInfo(size_t *left, size_t *all) {
    GUARDED(*all = environment("PRETEND_BYTES", 1 << 30); *left = *all - reserved;);
}
int cuMemHostAlloc(void **address, size_t nbytes, unsigned flags) {
    GUARDED(
        size_t *memory = aligned_alloc(4096, nbytes + 4096);
        *memory = nbytes;
        pretended_host_bytes += nbytes;
        *address = (char *)memory + 4096;
    );
}
int cuMemFreeHost(char *address) {
    GUARDED(
        size_t nbytes = *(size_t *)(address - 4096);
        for (Stream *s = streams; s; s = s->next)
            for (long i = s->done; i < s->queued; i++) {
                Operation *o = &s->operations[i % 4096];
                if (o->kind == COPY && (((char *)o->target >= address && (char *)o->target < address + nbytes)
                    || ((char *)o->source >= address && (char *)o->source < address + nbytes))) abort();
            }
        pretended_host_bytes -= nbytes;
        free(address - 4096);
    );
}

int cuStreamCreate(Stream **stream, unsigned flags) {
    GUARDED(*stream = calloc(1, sizeof **stream); (*stream)->next = streams; streams = *stream;);
}
int cuStreamSynchronize(Stream *stream) { GUARDED(run(stream, stream->queued); status = sticky;); }
int cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    GUARDED(status = put(stream, (Operation){WAIT, 0, 0, 0, event->stream, event->ticket}););
}
int cuEventCreate(Event **event, unsigned flags) { GUARDED(*event = calloc(1, sizeof **event);); }
int cuEventRecord(Event *event, Stream *stream) {
    GUARDED(event->stream = stream; event->ticket = stream->queued;);
}
int cuEventQuery(Event *event) {
    GUARDED(
        if (event->stream && event->stream->done < event->ticket) {
            if (++event->stream->questions % 20 == 0) run(event->stream, event->stream->done + 1);
            status = sticky ? sticky : NOT_READY;
        }
    );
}
int cuEventSynchronize(Event *event) {
    GUARDED(if (event->stream) run(event->stream, event->ticket); status = sticky;);
}
int cuEventElapsedTime(float *ms, Event *begin, Event *end) { GUARDED(*ms = 1.5f;); }

int cuMemcpyHtoDAsync(void *target, const void *source, size_t nbytes, Stream *stream) {
    GUARDED(status = put(stream, (Operation){COPY, target, source, nbytes}););
}
int cuMemcpyDtoHAsync(void *target, const void *source, size_t nbytes, Stream *stream) {
    GUARDED(status = put(stream, (Operation){COPY, target, source, nbytes}););
}
int cuMemsetD8Async(void *target, unsigned char value, size_t nbytes, Stream *stream) {
    GUARDED(status = put(stream, (Operation){CLEAR, target, 0, nbytes}););
}

int cuModuleLoadData(void **module, const void *image) {
    GUARDED(status = memcmp(image, "\177ELF", 4) ? 200 : SUCCESS; *module = (void *)image;);
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    GUARDED(status = strcmp(name, "kernel") ? NOT_FOUND : SUCCESS; *function = (void *)0x1234;);
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, Stream *stream, void **arguments, void **extra) {
    GUARDED(
        if (threads > 1024) status = INVALID_VALUE;
        for (int i = 0; i < pretended_word_count; i++) pretended_words[i] = *(unsigned long long *)arguments[i];
        if (pretended_word_count > 1) pretended_unequal += pretended_words[0] != pretended_words[1];
        if (!status) status = put(stream, (Operation){LAUNCH, 0, 0, 0, 0, ++launches});
    );
}

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long flags, int *found) {
    Dl_info self;
    dladdr((void *)cuInit, &self);
    void *here = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *function = dlsym(here, name);
    if (found) *found = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **function, int version, unsigned long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
