// cuffi's own kernel that compares memory. compare.ts has it as PTX:
//
//   nvcc -ptx -arch=compute_75 -std=c++17 compare.cu
//
// with the head set to .version 7.4 and .target sm_70, and without the comments.

using u32 = unsigned int;
using u64 = unsigned long long;

// Adds to `equal` how many bytes are the same; `length` bytes, whole words of both first.
extern "C" __global__ void cuffi_count_equal(const unsigned char *a, const unsigned char *b, u64 length,
                                             u64 *equal) {
  const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
  const u64 first = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool aligned = ((reinterpret_cast<u64>(a) | reinterpret_cast<u64>(b)) & 3) == 0;
  const u64 words = aligned ? length / 4 : 0;
  u64 sum = 0;
  for (u64 at = first; at < words; at += step) {
    const u32 x = reinterpret_cast<const u32 *>(a)[at] ^ reinterpret_cast<const u32 *>(b)[at];
    // The high bit of every byte that is not zero.
    const u32 different = (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u;
    sum += 4 - __popc(different);
  }
  for (u64 at = 4 * words + first; at < length; at += step) sum += a[at] == b[at];
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lane);
  if ((threadIdx.x & 31) == 0) atomicAdd(equal, sum);
}
