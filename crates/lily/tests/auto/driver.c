// An NVIDIA driver and an NVRTC without a GPU behind them, for tests of what comes before the first kernel. The environment
// says what is found: PRETEND_INIT (what cuInit gives, 0), PRETEND_CAPABILITY (80), PRETEND_VERSION of CUDA (12080),
// PRETEND_FREE (bytes). Nothing can
// be allocated on the GPU, and nothing compiles.
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = 2 };

static unsigned long long setting(const char *name, unsigned long long usual) {
    const char *text = getenv(name);
    return text ? strtoull(text, 0, 10) : usual;
}

int cuInit(unsigned flags) { return (int)setting("PRETEND_INIT", 0); }
int cuDriverGetVersion(int *version) { return *version = (int)setting("PRETEND_VERSION", 12080), 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char *name, int length, int device) { return strncpy(name, "Pretend GPU", length), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = setting("PRETEND_FREE", 0), 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int capability = (int)setting("PRETEND_CAPABILITY", 80);
    // The numbers of cuda.h for the two parts of the compute capability.
    *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : 1;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)1, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuStreamCreate(void **stream, unsigned flags) { return *stream = (void *)1, 0; }
int cuStreamSynchronize(void *stream) { return 0; }
int cuStreamDestroy_v2(void *stream) { return 0; }

int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = setting("PRETEND_FREE", 0), 0; }
int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) { return *memory = calloc(1, bytes), 0; }
int cuMemFreeHost(void *memory) { return free(memory), 0; }
int cuMemAlloc_v2(unsigned long long *memory, size_t bytes) { return OUT_OF_MEMORY; }

int cuGetErrorName(int code, const char **text) { return *text = "CUDA_ERROR_PRETEND", 0; }
int cuGetErrorString(int code, const char **text) { return *text = "pretended failure", 0; }

int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, 0; }
int nvrtcCreateProgram(void **program, const char *text, const char *name, int count, const char *const *headers,
                       const char *const *names) {
    return *program = 0, 0;
}
int nvrtcCompileProgram(void *program, int count, const char *const *options) { return 6; }
int nvrtcDestroyProgram(void **program) { return 0; }
int nvrtcGetProgramLogSize(void *program, size_t *bytes) { return *bytes = 0, 0; }
int nvrtcGetProgramLog(void *program, char *log) { return 1; }
int nvrtcGetCUBINSize(void *program, size_t *bytes) { return 1; }
int nvrtcGetCUBIN(void *program, char *image) { return 1; }
