// Variables in managed memory, as managed.ptx has them:
//   nvcc -ptx -arch=compute_75 managed.cu, then .version 7.4 and .target sm_70
// (no instruction needs more).
extern "C" {

__device__ unsigned int plain = 7;
__managed__ unsigned int hits = 41;
__managed__ float table[4] = { 1, 2, 3 };
__managed__ double zeros[8];
__managed__ unsigned char bytes[3] = { 1, 2, 255 };

__global__ void increment(unsigned int *to) { *to += 1; }

}
