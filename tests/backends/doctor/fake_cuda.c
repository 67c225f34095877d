/* libcuda and libcudart with the functions that the probe calls. FAKE_CUDA names the one that fails and its code: cuInit=802. */
#include <stdlib.h>
#include <string.h>

static int code_of(const char *call)
{
    const char *failing = getenv("FAKE_CUDA");
    size_t length = strlen(call);

    if (failing && !strncmp(failing, call, length) && failing[length] == '=')
        return atoi(failing + length + 1);
    return 0;
}

int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuInit(unsigned flags) { if (getenv("FAKE_CRASH")) abort(); return code_of("cuInit"); }
int cuDeviceGetCount(int *count) { *count = !getenv("FAKE_NO_GPU"); return code_of("cuDeviceGetCount"); }
int cuDeviceGet(int *device, int number) { *device = number; return code_of("cuDeviceGet"); }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "FAKE GPU", size); return code_of("cuDeviceGetName"); }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = 0; return code_of("cuDevicePrimaryCtxRetain"); }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
int cudaFree(void *pointer) { return code_of("cudaFree"); }
