// Stands in for the CuTe DSL runtime library: a launch calls back into the emulator, everything else succeeds without a device.
// The entry points and their arguments are those that the host functions of nvidia-cutlass-dsl 4.8 call.
#include <cstdint>
#include <cstdio>
#include <cstring>

struct Config {
    uint32_t grid[3], block[3];
    uint64_t smem;
    void *stream;
    void *attrs;
    uint32_t nattrs;
}; // cudaLaunchConfig_t
using Callback = int (*)(Config *, void *, void **);

static Callback launch_callback = nullptr;
static int raised = 0;

extern "C" {
void flexfa4_set_callback(Callback c) { launch_callback = c; }
int flexfa4_take_error() {
    int r = raised;
    raised = 0;
    return r;
}

// 700: cudaErrorIllegalAddress stands for "the emulator stopped this launch"; 100: no device.
int _cudaLaunchKernelEx(Config *c, void *kernel, void **args) { return launch_callback ? launch_callback(c, kernel, args) : 100; }
int _cudaLaunchKernel(void *kernel, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, void **args,
                      uint64_t smem, void *stream) {
    Config c{{gx, gy, gz}, {bx, by, bz}, smem, stream, nullptr, 0};
    return _cudaLaunchKernelEx(&c, kernel, args);
}
int _cudaLibraryLoadData(void **lib, void *code, void *, void *, int, void *, void *, int) {
    *lib = code;
    return 0;
}
// A kernel handle says which binary it came from: names are not unique. It lives as long as the process, as a real module would.
struct Kernel {
    void *code;
    char *name;
};
int _cudaLibraryGetKernel(void **kernel, void *lib, const char *name) {
    char *copy = new char[std::strlen(name) + 1];
    std::strcpy(copy, name);
    *kernel = new Kernel{lib, copy};
    return 0;
}
int _cudaLibraryUnload(void *) { return 0; }
int _cudaGetDevice(int *d) {
    *d = 0;
    return 0;
}
int _cudaSetDevice(int) { return 0; }
int _cudaGetDeviceCount(int *n) {
    *n = 1;
    return 0;
}
int _cudaDeviceGetAttribute(int *v, int attr, int) {
    *v = attr == 97 ? 232448 : attr == 16 ? 148 : 1; // 97: shared memory a block may opt in to; 16: number of SMs
    return 0;
}
int _cuKernelGetAttribute(int *v, int, void *, int) {
    *v = 0;
    return 0;
}
int _cudaFuncSetAttribute(void *, int, int) { return 0; }
int _cudaKernelSetAttributeForDevice(void *, int, int, int) { return 0; }
int _cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *, int, uint64_t) {
    *n = 1;
    return 0;
}
int _cudaStreamSynchronize(void *) { return 0; }
int _cudaDeviceSynchronize() { return 0; }
const char *cuda_dialect_get_error_name(int) { return "the emulator stopped the launch"; }
void cuda_dialect_print_on_error(int) {}
void cuda_dialect_assert_success(int e) {
    if (e) raised = e;
}
int cuda_dialect_init_library_once(void **lib, int (*init)(void *), int (*load)(void *, int), void *) {
    if (*lib) return 0;
    int r = init(lib);
    return r ? r : load(lib, 0);
}
void cuda_dialect_unload_library_once(void **) {}
void CuteDSLRT_TVMFFISetRaisedCudaError(void *, int e) { raised = e; }
}
