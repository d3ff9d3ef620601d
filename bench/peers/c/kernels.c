/*
 * Launches of kernels that do nothing, a graph of them, and the loading of their PTX: the file
 * KERNELS_PTX, as the compiler is told.
 */
#include <string.h>

#include "ptx.h"

#define GRAPH_KERNELS 100
#define CU_STREAM_CAPTURE_MODE_RELAXED 2
#define MEMORY_BYTES 64
/* In the last argument: the kernel writes its arguments down. */
#define ASKED 0x80000000u

static char *ptx;
static CUmodule module;
static CUfunction kernels[3];
static CUgraphExec graph;
static CUdeviceptr memory;

/* The values of sixteen arguments: those of the other kernels are the first of them. */
static float factor = 2.5f;
static unsigned int numbers[16];
static void *four[4] = { &factor, &memory, &memory, &numbers[3] };
static void *sixteen[16];

static void open_ptx(size_t bytes) {
  (void)bytes;
  if (!ptx) ptx = read_ptx(KERNELS_PTX);
}

static void open_kernels(size_t bytes) {
  static const char *const names[] = { "none", "four", "sixteen" };
  if (module) return;
  open_ptx(bytes);
  CHECK(cuModuleLoadDataEx, &module, ptx, 0, NULL, NULL);
  for (int at = 0; at < 3; at++) CHECK(cuModuleGetFunction, &kernels[at], module, names[at]);
  CHECK(cuMemAlloc_v2, &memory, MEMORY_BYTES);
  sixteen[0] = &memory;
  for (int at = 1; at < 16; at++) sixteen[at] = &numbers[at];
}

static CUresult launch(CUfunction kernel, long calls, void **arguments) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) {
    CUlaunchConfig config = { 1, 1, 1, 32, 1, 1, 0, stream, NULL, 0 };
    numbers[3] = (unsigned int)call;
    status |= cuLaunchKernelEx(&config, kernel, arguments, NULL);
  }
  return status;
}

static CUresult launch_none(long calls, size_t bytes) {
  (void)bytes;
  return launch(kernels[0], calls, NULL);
}

static CUresult launch_four(long calls, size_t bytes) {
  (void)bytes;
  return launch(kernels[1], calls, four);
}

static CUresult launch_sixteen(long calls, size_t bytes) {
  (void)bytes;
  return launch(kernels[2], calls, sixteen);
}

/* Clears the memory, launches once, and compares what the kernel has written there. */
static void require_written(CUresult (*call)(void), const void *written, size_t bytes) {
  unsigned char seen[MEMORY_BYTES];
  CHECK(cuMemsetD8Async, memory, 0, MEMORY_BYTES, stream);
  check(call(), "a launch");
  CHECK(cuStreamSynchronize, stream);
  CHECK(cuMemcpyDtoH_v2, seen, memory, MEMORY_BYTES);
  if (memcmp(seen, written, bytes) != 0) fail("the arguments of a launch did not arrive");
}

static void require_four(CUresult (*call)(void), unsigned int last) {
  struct { float factor; unsigned int last; CUdeviceptr y; } written = { factor, last, memory };
  require_written(call, &written, sizeof written);
}

static CUresult ask(CUfunction kernel, void **arguments) {
  CUlaunchConfig config = { 1, 1, 1, 32, 1, 1, 0, stream, NULL, 0 };
  return cuLaunchKernelEx(&config, kernel, arguments, NULL);
}

static CUresult ask_four(void) {
  numbers[3] = ASKED + 7;
  return ask(kernels[1], four);
}

static CUresult ask_sixteen(void) {
  numbers[15] = ASKED + 15;
  return ask(kernels[2], sixteen);
}

static void verify_four(size_t bytes) {
  (void)bytes;
  require_four(ask_four, ASKED + 7);
}

static void verify_sixteen(size_t bytes) {
  (void)bytes;
  for (unsigned int at = 1; at < 15; at++) numbers[at] = at;
  numbers[15] = ASKED + 15;
  unsigned int written[15];
  memcpy(written, numbers + 1, sizeof written);
  require_written(ask_sixteen, written, sizeof written);
  numbers[15] = 0;
}

static void open_graph(size_t bytes) {
  CUgraph captured;
  if (graph) return;
  open_kernels(bytes);
  CHECK(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  check(launch(kernels[1], GRAPH_KERNELS - 1, four), "cuLaunchKernelEx");
  /* The last one writes its arguments down. */
  check(ask_four(), "cuLaunchKernelEx");
  CHECK(cuStreamEndCapture, stream, &captured);
  CHECK(cuGraphInstantiateWithFlags, &graph, captured, 0);
  CHECK(cuGraphDestroy, captured);
}

/* Each call is one kernel. */
static CUresult graph_launch(long calls, size_t bytes) {
  CUresult status = 0;
  long launches = calls < GRAPH_KERNELS ? 1 : calls / GRAPH_KERNELS;
  (void)bytes;
  for (long call = 0; call < launches; call++) status |= cuGraphLaunch(graph, stream);
  return status;
}

static long long time_graph(long calls, size_t bytes) { return gpu_time(graph_launch, calls, bytes); }

static CUresult launch_graph(void) { return cuGraphLaunch(graph, stream); }

static void verify_graph(size_t bytes) {
  (void)bytes;
  require_four(launch_graph, ASKED + 7);
}

static CUresult module_load(long calls, size_t bytes) {
  CUresult status = 0;
  CUmodule loaded;
  (void)bytes;
  for (long call = 0; call < calls; call++) {
    status |= cuModuleLoadDataEx(&loaded, ptx, 0, NULL, NULL);
    status |= cuModuleUnload(loaded);
  }
  return status;
}

const struct batch kernel_batches[] = {
  { "launch.none", open_kernels, launch_none },
  { "launch.four", open_kernels, launch_four, .verify = verify_four },
  { "launch.sixteen", open_kernels, launch_sixteen, .verify = verify_sixteen },
  { "graph.launch", open_graph, graph_launch, .verify = verify_graph },
  { "gpu.graph", open_graph, .timed = time_graph, .verify = verify_graph },
  { "module.load", open_ptx, module_load },
  { NULL, NULL, NULL },
};

void close_kernels(void) {
  if (graph) CHECK(cuGraphExecDestroy, graph);
  if (!module) return;
  CHECK(cuMemFree_v2, memory);
  CHECK(cuModuleUnload, module);
}
