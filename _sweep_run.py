import sys, numpy as np, cupy
folder=sys.argv[1]
rows=[l.split() for l in open(folder+'/index.txt')]
ref={}; best={}
st=cupy.cuda.Stream(non_blocking=True)
out=open(sys.argv[2],'w')
wait=cupy.RawKernel('extern "C" __global__ void wait(long long c){for(const long long s=clock64();clock64()-s<c;){}}','wait')
data={}
for r in rows:
    name,N,C,H,M,blocks,threads,tiles,cost,desc,nums=r; N,C,H,M=map(int,(N,C,H,M))
    key=(N,H)
    if key not in data:
        cupy.random.seed(1)
        reps=9
        xs=[cupy.random.standard_normal((N,C,H,H),np.float32) for _ in range(reps)]; ys=[cupy.zeros((N,M,H,H),np.float32) for _ in range(reps)]
        w=cupy.random.standard_normal((M,C,3,3),np.float32); b=cupy.random.standard_normal(M,np.float32)
        # reference
        xp=cupy.pad(xs[0].astype(np.float64),((0,0),(0,0),(1,1),(1,1))); y=cupy.zeros((N,M,H,H))
        for i in range(3):
            for j in range(3):
                y+=cupy.einsum('nchw,mc->nmhw',xp[:,:,i:i+H,j:j+H],w[:,:,i,j].astype(np.float64))
        y=cupy.maximum(y+b[:,None,None],0)
        data={key:(xs,ys,w,b,y)}; cupy.cuda.Device().synchronize()
    xs,ys,w,b,y=data[key]
    try:
        f=cupy.RawModule(path=f'{folder}/{name}.cubin').get_function('conv_direct')
        numbers=[int(t) for t in nums.split(',')]
        def args(i): return (np.array([xs[i].data.ptr,w.data.ptr,b.data.ptr,ys[i].data.ptr]+numbers,np.uint64),)
        ys[0].fill(0); cupy.cuda.Device().synchronize()
        occ=f.max_dynamic_shared_size_bytes
        from cupy_backends.cuda.api import driver
        per=driver.occupancyMaxActiveBlocksPerMultiprocessor(f.kernel.ptr,int(threads),0)
        grids={int(blocks)}
        res=[]
        with st:
            f((int(blocks),),(int(threads),),args(0)); st.synchronize()
        err=float(cupy.abs(ys[0]-y).max())
        g={}
        for k in (1,len(xs)):
            with st:
                st.begin_capture()
                for rep in range(2):
                    for i in range(k): f((int(blocks),),(int(threads),),args(i))
                g[k]=st.end_capture()
        s,e=cupy.cuda.Event(),cupy.cuda.Event()
        ts=[]
        for _ in range(9):
            t={}
            for k in g:
                best1=1e9
                for _ in range(2):
                    with st:
                        wait((1,),(1,),(np.int64(200000),)); s.record(); g[k].launch(st); e.record(); e.synchronize()
                    best1=min(best1,cupy.cuda.get_elapsed_time(s,e)*1e3)
                t[k]=best1
            ts.append((t[len(xs)]-t[1])/(2*(len(xs)-1)))
        us=float(np.median(ts))
        print(name,f'{us:.2f} us err {err:.1e} occ {per} blocks {blocks}/{tiles} cost {float(cost)/1980:.1f}',desc,file=out,flush=True)
        if err<1e-3 and us<best.get(key,(1e9,))[0]: best[key]=(us,desc,blocks,per)
        if err>=1e-3: print('WRONG',name,err,desc)
        if name.endswith('_0'): print('chosen',key,f'{us:.2f}',desc)
    except Exception as x: print(name,'failed',repr(x)[:200])
for k,v in best.items(): print('best',k,v)
