// The kernels of the tests, as kernels.ptx has them:
//   nvcc -ptx -arch=compute_75 kernels.cu, then .version 7.4 and .target sm_70
// (no instruction needs more).
extern "C" {

__device__ unsigned int counter = 41;
__constant__ float weights[4] = { 1, 2, 3, 4 };

__global__ void nothing() {}

__global__ void saxpy(float a, const float *x, float *y, unsigned int n) {
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

struct triple { int x; short y; unsigned char z; };

// Every type of value, each as it came, in eight bytes.
__global__ void collect(long long *to, bool a, signed char b, short c, int d, long long e,
                        unsigned char f, unsigned short g, unsigned int h, unsigned long long i,
                        unsigned short j, float k, double l, struct triple m, const void *n) {
  to[0] = a; to[1] = b; to[2] = c; to[3] = d; to[4] = e; to[5] = f; to[6] = g; to[7] = h; to[8] = i;
  to[9] = j; to[10] = __float_as_int(k); to[11] = __double_as_longlong(l);
  to[12] = m.x; to[13] = m.y; to[14] = m.z; to[15] = (long long)n;
}

// Sixteen arguments, for what a launch of many costs.
__global__ void sixteen(int *to, int a, int b, int c, int d, int e, int f, int g, int h, int i,
                        int j, int k, int l, int m, int n, int o) {
  if (to) *to = a + b + c + d + e + f + g + h + i + j + k + l + m + n + o;
}

__global__ void count(unsigned int *to) {
  counter += 1;
  *to = counter + (unsigned int)weights[3];
}

extern __shared__ unsigned char dynamic_bytes[];

// How much shared memory a block got, told by writing to the end of it.
__global__ void touch_shared(unsigned int *to, unsigned int bytes) {
  dynamic_bytes[bytes - 1] = 7;
  __syncthreads();
  *to = dynamic_bytes[bytes - 1];
}

__global__ void __launch_bounds__(64) narrow(unsigned int *to) { *to = blockDim.x; }

__global__ void trap() { asm volatile("trap;"); }

__global__ void stray(unsigned int *to) { *to = 1; }

// A grid that waits for itself: every block adds one, and none goes on before all have.
__global__ void gather_all(volatile unsigned int *arrived, unsigned int *to) {
  if (threadIdx.x == 0) {
    atomicAdd((unsigned int *)arrived, 1);
    while (*arrived < gridDim.x) {}
    atomicAdd(to, 1);
  }
}

}
