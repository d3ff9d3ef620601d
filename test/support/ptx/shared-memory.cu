// Kernels that share memory within a block, wait for each other there, and have arrays of their own,
// as docs/kernels.md has them. shared-memory.ptx is made of this:
//
//   nvcc -ptx -arch=compute_75 -std=c++17 shared-memory.cu
//
// with the head set to .version 7.4 and .target sm_70, and without the comments.

extern "C" __global__ void transpose(float *target, const float *source, int rows, int columns) {
  __shared__ float tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  if (y < rows && x < columns) tile[threadIdx.y][threadIdx.x] = source[y * columns + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
  if (y < columns && x < rows) target[y * rows + x] = tile[threadIdx.x][threadIdx.y];
}

// As below, of blocks of 256 threads, with static shared memory.
extern "C" __global__ void sums_of_256(float *sums, const float *source, int count) {
  __shared__ float shared[256];
  const int at = blockIdx.x * 256 + threadIdx.x;
  shared[threadIdx.x] = at < count ? source[at] : 0;
  __syncthreads();
  for (int step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = shared[0];
}

extern "C" __global__ void sums_of_blocks(float *sums, const float *source, int count) {
  extern __shared__ float shared[];
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  shared[threadIdx.x] = at < count ? source[at] : 0;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = shared[0];
}

extern "C" __global__ void multiply(float *c, const float *a, const float *b, int n) {
  __shared__ float left[16][16], right[16][16];
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
  for (int start = 0; start < n; start += 16) {
    left[y][x] = row < n && start + x < n ? a[row * n + start + x] : 0;
    right[y][x] = start + y < n && column < n ? b[(start + y) * n + column] : 0;
    __syncthreads();
    for (int k = 0; k < 16; k += 1) sum += left[y][k] * right[k][x];
    __syncthreads();
  }
  if (row < n && column < n) c[row * n + column] = sum;
}

extern "C" __global__ void median(float *target, const float *source, int count, int width) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at + width > count || width > 32) return;
  float sorted[32];
  for (int n = 0; n < width; n += 1) {
    const float item = source[at + n];
    int place = n;
    for (; place > 0 && sorted[place - 1] > item; place -= 1) sorted[place] = sorted[place - 1];
    sorted[place] = item;
  }
  target[at] = sorted[width / 2];
}
