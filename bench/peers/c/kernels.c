/*
 * Launches of kernels that do nothing, a graph of them, and the loading of their PTX: the file
 * KERNELS_PTX, as the compiler is told.
 */
#include <stddef.h>

#include "ptx.h"

#define GRAPH_KERNELS 100
#define CU_STREAM_CAPTURE_MODE_RELAXED 2

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
  CHECK(cuMemAlloc_v2, &memory, 64);
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

static void open_graph(size_t bytes) {
  CUgraph captured;
  if (graph) return;
  open_kernels(bytes);
  CHECK(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  check(launch(kernels[1], GRAPH_KERNELS, four), "cuLaunchKernelEx");
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
  { "launch.four", open_kernels, launch_four },
  { "launch.sixteen", open_kernels, launch_sixteen },
  { "graph.launch", open_graph, graph_launch },
  { "module.load", open_ptx, module_load },
  { NULL, NULL, NULL },
};

void close_kernels(void) {
  if (graph) CHECK(cuGraphExecDestroy, graph);
  if (!module) return;
  CHECK(cuMemFree_v2, memory);
  CHECK(cuModuleUnload, module);
}
