/** compare.cu as PTX: the kernel that counts equal bytes. */
export const comparePtx: string = `.version 7.4
.target sm_70
.address_size 64

.visible .entry cuffi_count_equal(
  .param .u64 cuffi_count_equal_param_0,
  .param .u64 cuffi_count_equal_param_1,
  .param .u64 cuffi_count_equal_param_2,
  .param .u64 cuffi_count_equal_param_3
)
{
  .reg .pred   %p<21>;
  .reg .b16   %rs<3>;
  .reg .b32   %r<55>;
  .reg .b64   %rd<80>;

  ld.param.u64   %rd16, [cuffi_count_equal_param_0];
  ld.param.u64   %rd17, [cuffi_count_equal_param_1];
  ld.param.u64   %rd18, [cuffi_count_equal_param_2];
  ld.param.u64   %rd19, [cuffi_count_equal_param_3];
  cvta.to.global.u64   %rd1, %rd16;
  mov.u32   %r1, %ntid.x;
  mov.u32   %r2, %ctaid.x;
  mul.wide.u32   %rd21, %r2, %r1;
  mov.u32   %r3, %tid.x;
  cvt.u64.u32   %rd22, %r3;
  add.s64   %rd23, %rd21, %rd22;
  or.b64    %rd24, %rd17, %rd16;
  and.b64    %rd25, %rd24, 3;
  setp.eq.s64   %p1, %rd25, 0;
  mov.u64   %rd79, 0;
  shr.u64   %rd26, %rd18, 2;
  selp.b64   %rd27, %rd26, 0, %p1;
  setp.ge.u64   %p2, %rd23, %rd27;
  @%p2 bra   $L__BB0_3;

  mov.u64   %rd79, 0;
  mov.u32   %r17, %nctaid.x;
  mov.u64   %rd74, %rd23;

$L__BB0_2:
  cvta.to.global.u64   %rd31, %rd17;
  shl.b64   %rd32, %rd74, 2;
  add.s64   %rd33, %rd1, %rd32;
  add.s64   %rd34, %rd31, %rd32;
  ld.global.u32   %r7, [%rd34];
  ld.global.u32   %r8, [%rd33];
  xor.b32    %r9, %r7, %r8;
  and.b32    %r10, %r9, 2139062143;
  add.s32   %r11, %r10, 2139062143;
  or.b32    %r12, %r11, %r9;
  and.b32    %r13, %r12, -2139062144;
  popc.b32   %r14, %r13;
  mov.u32   %r15, 4;
  sub.s32   %r16, %r15, %r14;
  cvt.s64.s32   %rd35, %r16;
  add.s64   %rd79, %rd79, %rd35;
  mul.wide.u32   %rd36, %r17, %r1;
  add.s64   %rd74, %rd74, %rd36;
  setp.lt.u64   %p4, %rd74, %rd27;
  @%p4 bra   $L__BB0_2;

$L__BB0_3:
  shl.b64   %rd45, %rd27, 2;
  add.s64   %rd77, %rd45, %rd23;
  setp.ge.u64   %p6, %rd77, %rd18;
  @%p6 bra   $L__BB0_6;

  mov.u32   %r22, %nctaid.x;
  mul.wide.u32   %rd8, %r22, %r1;

$L__BB0_5:
  cvta.to.global.u64   %rd58, %rd17;
  add.s64   %rd59, %rd58, %rd77;
  ld.global.u8   %rs1, [%rd59];
  add.s64   %rd60, %rd1, %rd77;
  ld.global.u8   %rs2, [%rd60];
  setp.eq.s16   %p8, %rs2, %rs1;
  selp.u64   %rd61, 1, 0, %p8;
  add.s64   %rd79, %rd79, %rd61;
  add.s64   %rd77, %rd77, %rd8;
  setp.lt.u64   %p9, %rd77, %rd18;
  @%p9 bra   $L__BB0_5;

$L__BB0_6:
  mov.b64 {%r26,%r27}, %rd79;
  mov.u32   %r46, 2;
  mov.u32   %r47, 31;
  mov.u32   %r48, 16;
  mov.u32   %r49, -1;
  shfl.sync.down.b32   %r29|%p10, %r27, %r48, %r47, %r49;
  shfl.sync.down.b32   %r28|%p11, %r26, %r48, %r47, %r49;
  mov.b64 %rd63, {%r28,%r29};
  add.s64   %rd64, %rd63, %rd79;
  mov.b64 {%r30,%r31}, %rd64;
  mov.u32   %r50, 8;
  shfl.sync.down.b32   %r33|%p12, %r31, %r50, %r47, %r49;
  shfl.sync.down.b32   %r32|%p13, %r30, %r50, %r47, %r49;
  mov.b64 %rd65, {%r32,%r33};
  add.s64   %rd66, %rd65, %rd64;
  mov.b64 {%r34,%r35}, %rd66;
  mov.u32   %r51, 4;
  shfl.sync.down.b32   %r37|%p14, %r35, %r51, %r47, %r49;
  shfl.sync.down.b32   %r36|%p15, %r34, %r51, %r47, %r49;
  mov.b64 %rd67, {%r36,%r37};
  add.s64   %rd68, %rd67, %rd66;
  mov.b64 {%r38,%r39}, %rd68;
  shfl.sync.down.b32   %r41|%p16, %r39, %r46, %r47, %r49;
  shfl.sync.down.b32   %r40|%p17, %r38, %r46, %r47, %r49;
  mov.b64 %rd69, {%r40,%r41};
  add.s64   %rd70, %rd69, %rd68;
  mov.b64 {%r42,%r43}, %rd70;
  mov.u32   %r52, 1;
  shfl.sync.down.b32   %r45|%p18, %r43, %r52, %r47, %r49;
  shfl.sync.down.b32   %r44|%p19, %r42, %r52, %r47, %r49;
  mov.b64 %rd71, {%r44,%r45};
  add.s64   %rd15, %rd71, %rd70;
  and.b32    %r54, %r3, 31;
  setp.ne.s32   %p20, %r54, 0;
  @%p20 bra   $L__BB0_8;

  cvta.to.global.u64   %rd72, %rd19;
  atom.global.add.u64   %rd73, [%rd72], %rd15;

$L__BB0_8:
  ret;

}
`;
