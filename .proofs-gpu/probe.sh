cat >/tmp/p.py <<'P'
import ctypes as c,sys,os,subprocess as s
l=c.CDLL('libcuda.so.1');P=c.c_uint64;B=c.byref
if len(sys.argv)>1:
 r=l.cuInit(0)
 if sys.argv[1]=='a':
  n=c.c_int(-1);q=l.cuDeviceGetCount(B(n));print(r,q,n.value);sys.exit()
 x=P();l.cuDevicePrimaryCtxRetain(B(x),0);l.cuCtxSetCurrent(x)
 t=b'.version 8.0\n.target sm_70\n.address_size 64\n.global .attribute(.managed) .align 4 .u32 m=7;\n.global .attribute(.managed) .align 4 .b8 z[16];\n.global .align 4 .u32 g=5;\n\0'
 m=P();print('load',l.cuModuleLoadDataEx(B(m),t,0,None,None))
 for k in (b'm',b'z',b'g'):
  a,z=P(),P();print(k,l.cuModuleGetGlobal_v2(B(a),B(z),m,k),hex(a.value),z.value)
  for w in (1,2,3,4,7,8,9,10,11,12,13,14,15,17):
   v=P(0);print(w,l.cuPointerGetAttribute(B(v),w,a),hex(v.value),end='; ')
  v,w=P(),P();print('range',l.cuMemGetAddressRange_v2(B(v),B(w),a),hex(v.value),w.value)
  if k!=b'g':print('host reads',c.c_uint32.from_address(a.value).value)
  h=(c.c_ubyte*64)();print('ipc',l.cuIpcGetMemHandle(h,a),'free',l.cuMemFree_v2(a))
 print('unload',l.cuModuleUnload(m));sys.exit()
def go(v):
 e=dict(os.environ);e.pop('CUDA_VISIBLE_DEVICES',0)
 if v is not None:e['CUDA_VISIBLE_DEVICES']=v
 return s.run([sys.executable,'/tmp/p.py','a'],env=e,capture_output=True,text=True).stdout.strip()
U=[x.split('UUID: ')[1].rstrip(')') for x in s.getoutput('nvidia-smi -L').split('\n') if 'UUID' in x]
g=U[0];print(len(U),go(None))
for v in ['','-1','0','0,0','0,','0,9','9,0',',0',' ','0x0','00','+0','-0','0a','a',' 0','0,-1,0',g,g[:9],g[:5],'GPU-',g.upper(),g.lower(),g+',0','0,'+g,g+','+g,g[:12]+','+g,' '+g,g+'x','GPU-zz','MIG-1','0,MIG-1',g[4:],'0;1']:print(repr(v.replace(g,'U')),go(v))
print(s.getoutput('python3 /tmp/p.py g'))
P
python3 /tmp/p.py
