// A part of a program, as relocatable.cubin and the fatbins have it: its kernels are found once it is linked.
//   nvcc -rdc=true -arch=sm_90 -cubin relocatable.cu
//   nvcc -rdc=true -arch=sm_90 -fatbin --no-compress relocatable.cu
//   nvcc -rdc=true -arch=sm_90 -fatbin -o relocatable.compressed.fatbin relocatable.cu
__device__ unsigned int doubled(unsigned int x) { return 2 * x; }

extern "C" __global__ void relocatable(unsigned int *to) { *to = doubled(21); }

__global__ void scaled(unsigned int *to) { *to = doubled(*to); }
