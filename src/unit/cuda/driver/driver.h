/* driver.h: the part of the CUDA driver API that this unit uses, declared here and looked up at run time in libcuda.so.1, so
 * that the program also starts without a driver, and is built without the CUDA toolkit's headers. Names and values are those of
 * cuda.h; see the CUDA driver API reference.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_DRIVER_H
#define SG_UNIT_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef int cu_result;               /* CUresult; 0: success */
typedef int cu_device;                 /* CUdevice: index of a GPU in the driver's numbering */
typedef uint64_t cu_ptr;             /* CUdeviceptr: address in GPU memory */
typedef struct cu_ctx_s *cu_ctx;
typedef struct cu_mod_s *cu_mod;
typedef struct cu_fn_s *cu_fn;
typedef struct cu_stream_s *cu_stream;
typedef struct cu_event_s *cu_event;
typedef struct cu_graph_s *cu_graph;
typedef struct cu_exec_s *cu_exec;
typedef struct cu_green_s *cu_green; /* green context: a subset of the multiprocessors */

/* CUresult, CUdevice_attribute, CUfunction_attribute and CUlaunchAttributeID, CUmemorytype, flags. */
enum { CU_OUT_OF_MEMORY = 2, CU_NOT_READY = 600, CU_PEER_ALREADY_ENABLED = 704, CU_OLD_DRIVER = 803 };
enum { CU_ATTR_SMS = 16, CU_ATTR_MAJOR = 75, CU_ATTR_MINOR = 76, CU_ATTR_SHARED_OPTIN = 97 };
enum { CU_FN_MAX_DYNAMIC_SHARED = 8, CU_FN_CARVEOUT = 9, CU_LAUNCH_CLUSTER = 4, CU_LAUNCH_PROGRAMMATIC = 6 };
enum { CU_ON_HOST = 1, CU_ON_DEVICE = 2 };  /* memory types of cu_copy_2d_end */
enum { CU_HOST_MAPPED = 3, CU_STREAM_NON_BLOCKING = 1, CU_EVENT_UNTIMED = 2 };
enum { CU_MIN_VERSION = 12000 };          /* driver API version that this unit was written for */

/* CUlaunchAttribute and CUlaunchConfig. The grid is counted in blocks, the block in threads, `shared` is bytes of dynamic shared
 * memory. */
struct cu_launch_attr {
    int id;
    int pad;
    union { int allowed; unsigned cluster[3]; unsigned char reserved[64]; } value;
};
struct cu_launch {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    cu_stream stream;
    struct cu_launch_attr *attrs;
    unsigned attrs_n;
};

/* CUDA_MEMCPY2D: `lines` lines of `bytes` bytes, `pitch` apart at each end. */
/* One end: memory type (CU_ON_HOST or CU_ON_DEVICE), its address in `host` or `device`, offsets of the first byte and line. */
struct cu_copy_2d_end {
    size_t at_byte, at_line;
    int kind;
    void *host;
    cu_ptr device;
    void *array;
    size_t pitch;
};
struct cu_copy_2d {
    struct cu_copy_2d_end from, to;  /* one of them on the host, one on the GPU */
    size_t bytes, lines;
};

/* Required functions: X(member of struct cu_driver, the driver's symbol, arguments). */
#define CU_FUNCTIONS(X)                                                                    \
    X(init, "cuInit", (unsigned flags))                                                    \
    X(version, "cuDriverGetVersion", (int *version))                                       \
    X(count, "cuDeviceGetCount", (int *n))                                                 \
    X(get, "cuDeviceGet", (cu_device *device, int index))                                      \
    X(name, "cuDeviceGetName", (char *name, int cap, cu_device device))                        \
    X(total, "cuDeviceTotalMem_v2", (size_t *bytes, cu_device device))                         \
    X(get_attribute, "cuDeviceGetAttribute", (int *value, int which, cu_device device))            \
    X(uuid, "cuDeviceGetUuid", (unsigned char *uuid, cu_device device))                        \
    X(retain, "cuDevicePrimaryCtxRetain", (cu_ctx *ctx, cu_device device))                     \
    X(release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                             \
    X(push, "cuCtxPushCurrent_v2", (cu_ctx ctx))                                           \
    X(pop, "cuCtxPopCurrent_v2", (cu_ctx *ctx))                                            \
    X(module_load, "cuModuleLoadData", (cu_mod *module, const void *image))                \
    X(module_unload, "cuModuleUnload", (cu_mod module))                                    \
    X(get_function, "cuModuleGetFunction", (cu_fn *fn, cu_mod module, const char *name))       \
    X(func_set_attr, "cuFuncSetAttribute", (cu_fn fn, int which, int value))                \
    X(mem_info, "cuMemGetInfo_v2", (size_t *unused, size_t *all))                       \
    X(alloc, "cuMemAlloc_v2", (cu_ptr *p, size_t bytes))                                   \
    X(free, "cuMemFree_v2", (cu_ptr p))                                                    \
    X(host_alloc, "cuMemHostAlloc", (void **p, size_t bytes, unsigned flags))              \
    X(host_free, "cuMemFreeHost", (void *p))                                               \
    X(host_ptr, "cuMemHostGetDevicePointer_v2", (cu_ptr *p, void *host, unsigned flags))   \
    X(copy_htod, "cuMemcpyHtoDAsync_v2", (cu_ptr to, const void *from, size_t n, cu_stream s)) \
    X(copy_dtoh, "cuMemcpyDtoHAsync_v2", (void *to, cu_ptr from, size_t n, cu_stream s))     \
    X(copy_2d, "cuMemcpy2DAsync_v2", (const struct cu_copy_2d *l, cu_stream s))           \
    X(copy_dtod, "cuMemcpyDtoDAsync_v2", (cu_ptr to, cu_ptr from, size_t n, cu_stream s))       \
    X(copy_peer, "cuMemcpyPeerAsync", (cu_ptr to, cu_ctx there, cu_ptr from, cu_ctx here, size_t n, cu_stream s)) \
    X(can_access_peer, "cuDeviceCanAccessPeer", (int *can, cu_device from, cu_device to))            \
    X(peer_enable, "cuCtxEnablePeerAccess", (cu_ctx there, unsigned flags))                \
    X(memset_d8, "cuMemsetD8Async", (cu_ptr to, unsigned char value, size_t n, cu_stream s))    \
    X(stream_new, "cuStreamCreateWithPriority", (cu_stream * s, unsigned flags, int priority)) \
    X(stream_free, "cuStreamDestroy_v2", (cu_stream s))                                    \
    X(stream_sync, "cuStreamSynchronize", (cu_stream s))                                   \
    X(stream_query, "cuStreamQuery", (cu_stream s))                                          \
    X(priorities, "cuCtxGetStreamPriorityRange", (int *least, int *greatest))              \
    X(event_new, "cuEventCreate", (cu_event *e, unsigned flags))                           \
    X(event_free, "cuEventDestroy_v2", (cu_event e))                                       \
    X(event_record, "cuEventRecord", (cu_event e, cu_stream s))                            \
    X(event_sync, "cuEventSynchronize", (cu_event e))                                      \
    X(event_query, "cuEventQuery", (cu_event e))                                             \
    X(stream_wait_event, "cuStreamWaitEvent", (cu_stream s, cu_event e, unsigned flags))        \
    X(ctx_sync, "cuCtxSynchronize", (void))                                                \
    X(event_between, "cuEventElapsedTime", (float *ms, cu_event a, cu_event b))            \
    X(capture_begin, "cuStreamBeginCapture_v2", (cu_stream s, int mode))                         \
    X(capture_end, "cuStreamEndCapture", (cu_stream s, cu_graph *graph))                   \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", (cu_exec *exec, cu_graph graph, uint64_t flags)) \
    X(graph_free, "cuGraphDestroy", (cu_graph graph))                                      \
    X(exec_free, "cuGraphExecDestroy", (cu_exec exec))                                     \
    X(graph_launch, "cuGraphLaunch", (cu_exec exec, cu_stream s))                              \
    X(launch, "cuLaunchKernelEx", (const struct cu_launch *l, cu_fn fn, void **args, void **extra)) \
    X(error_name, "cuGetErrorName", (cu_result r, const char **text))

/* CUdevResource: a set of multiprocessors. The driver's struct may become larger, hence the reserved bytes. */
struct cu_resource {
    int type;
    unsigned char pad[92];
    unsigned sms;
    unsigned char reserved[924];
};
enum { CU_RESOURCE_SMS = 1, CU_GREEN_DEFAULT_STREAM = 1 };

/* Green contexts: optional functions, in driver 12.4 and later; `resource` is NULL where one is missing. */
#define CU_GREEN_FUNCTIONS(X)                                                                                            \
    X(resource, "cuDeviceGetDevResource", (cu_device device, struct cu_resource *r, int type))                     \
    X(resource_split, "cuDevSmResourceSplitByCount", (struct cu_resource *parts, unsigned *n,                  \
        const struct cu_resource *all, struct cu_resource *rest, unsigned flags, unsigned least))              \
    X(resource_desc, "cuDevResourceGenerateDesc", (void **desc, struct cu_resource *r, unsigned n))            \
    X(green_new, "cuGreenCtxCreate", (cu_green *green, void *desc, cu_device device, unsigned flags))              \
    X(green_free, "cuGreenCtxDestroy", (cu_green green))                                                       \
    X(green_stream, "cuGreenCtxStreamCreate", (cu_stream *s, cu_green green, unsigned flags, int priority))

/* Optional: describes a matrix in GPU memory to the bulk tensor copies of compute capability 9. NULL where it is missing. */
enum { CU_TENSOR_INT32 = 3, CU_TENSOR_SWIZZLE_128 = 3, CU_TENSOR_L2_256 = 3 };
#define CU_TENSOR_FUNCTIONS(X)                                                                                          \
    X(tensor_map, "cuTensorMapEncodeTiled", (void *map, int type, uint32_t rank, void *p, const uint64_t *dims, \
        const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int l2, int fill))

/* The looked-up functions. All return cu_result; most need a current context (cu_enter). */
struct cu_driver {
    void *library;
#define X(name, symbol, args) cu_result (*name) args;
    CU_FUNCTIONS(X)
    CU_GREEN_FUNCTIONS(X)
    CU_TENSOR_FUNCTIONS(X)
#undef X
};

/* Opens the library, looks up all functions and calls cuInit. EUNIT: no driver, too old, or a required function is missing;
 * nothing is left open then. */
segue_status cu_driver_open(struct cu_driver *d, segue_error *err);
void cu_driver_close(struct cu_driver *d);

/* Converts the result of a driver call; `what` begins the error. EMEMORY: GPU memory is full. All others are ELOST: most driver
 * errors are sticky, so the context cannot be used any more. */
segue_status cu_check(const struct cu_driver *d, cu_result r, const char *what, segue_error *err);

#endif
