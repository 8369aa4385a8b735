#!/usr/bin/env python3
"""make_layers.py FOLDER [LAYERS]: a program of SmolLM2-135M's layer shape with random weights: 128 columns, 512 keys, no head. For timing the
software NPU: segue mil run FOLDER --in FOLDER/in.safetensors --out /tmp/out.safetensors --profile ieee -t 2 --json
SPDX-License-Identifier: MIT"""
import os, struct, sys
import numpy as np
from safetensors.numpy import save_file

rng=np.random.default_rng(1)
folder = sys.argv[1]
os.makedirs(os.path.join(folder, 'weights'), exist_ok=True)
D,H,KV,HD,F,S=576,9,3,64,1536,128
L = int(sys.argv[2]) if len(sys.argv) > 2 else 30
CAP=512
out=[]
f=open(os.path.join(folder, 'weights/w.bin'),'wb'); f.write(b'\0'*64); n=0
def W(name,*shape,scale=0.02):
    global n
    a=(rng.standard_normal(shape)*scale).astype(np.float16).tobytes()
    at=f.tell(); pad=(-at)%64; f.write(b'\0'*pad); at+=pad
    f.write(struct.pack("<IIQQQ32x",0xDEADBEEF,1,len(a),at+64,0)); f.write(a); n+=1
    t="tensor<fp16, [%s]>"%", ".join(map(str,shape))
    out.append(f'{t} {name} = const()[val = {t}(BLOBFILE(path = string("@model_path/weights/w.bin"), offset = uint64({at})))];')
def T(*s): return "tensor<fp16, [%s]>"%", ".join(map(str,s))
conv='conv(strides = tensor<int32, [2]>([1, 1]), pad_type = string("valid"), pad = tensor<int32, [4]>([0, 0, 0, 0]), dilations = tensor<int32, [2]>([1, 1]), groups = int32(1), '
def I(*v): return "tensor<int32, [%d]>([%s])"%(len(v),", ".join(map(str,v)))
def norm(y,x,w):
    out.append(f"{T(1,D,1,S)} {y}q = mul(x = {x}, y = {x});")
    out.append(f"{T(1,1,1,S)} {y}s = reduce_sum(x = {y}q, axes = {I(1)}, keep_dims = bool(true));")
    out.append(f"{T(1,1,1,S)} {y}m = mul(x = {y}s, y = fp16({1/D}));")
    out.append(f"{T(1,1,1,S)} {y}e = add(x = {y}m, y = fp16(0.00001));")
    out.append(f"{T(1,1,1,S)} {y}r = pow(x = {y}e, y = fp16(-0.5));")
    out.append(f"{T(1,D,1,S)} {y}n = mul(x = {x}, y = {y}r);")
    W(y+"w",1,D,1,1,scale=1)
    out.append(f"{T(1,D,1,S)} {y} = mul(x = {y}n, y = {y}w);")
def lin(y,x,o,i):
    W(y+"w",o,i,1,1)
    out.append(f"{T(1,o,1,S)} {y} = {conv}weight = {y}w, x = {x});")
x="x"
W("kc",1,KV,CAP-S,HD); W("vc",1,KV,CAP-S,HD); W("mask",1,1,S,CAP)
for l in range(L):
    p=f"l{l}"
    norm(p+"a",x,None)
    lin(p+"q",p+"a",H*HD,D); lin(p+"k",p+"a",KV*HD,D); lin(p+"v",p+"a",KV*HD,D)
    for c,h in (("q",H),("k",KV),("v",KV)):
        out.append(f"{T(1,h,HD,S)} {p}{c}h = reshape(x = {p}{c}, shape = {I(1,h,HD,S)});")
        out.append(f"{T(1,h,S,HD)} {p}{c}t = transpose(x = {p}{c}h, perm = {I(0,1,3,2)});")
    for c in "qk":  # rotary
        h=H if c=="q" else KV
        out.append(f"{T(1,h,S,HD//2)} {p}{c}1 = slice_by_size(x = {p}{c}t, begin = {I(0,0,0,0)}, size = {I(1,h,S,HD//2)});")
        out.append(f"{T(1,h,S,HD//2)} {p}{c}2 = slice_by_size(x = {p}{c}t, begin = {I(0,0,0,HD//2)}, size = {I(1,h,S,HD//2)});")
        out.append(f"{T(1,h,S,HD//2)} {p}{c}3 = mul(x = {p}{c}2, y = fp16(-1.0));")
        out.append(f"{T(1,h,S,HD)} {p}{c}4 = concat(values = ({p}{c}3, {p}{c}1), axis = int32(3), interleave = bool(false));")
        out.append(f"{T(1,h,S,HD)} {p}{c}5 = mul(x = {p}{c}4, y = fp16(0.5));")
        out.append(f"{T(1,h,S,HD)} {p}{c}r = add(x = {p}{c}5, y = {p}{c}t);")
    out.append(f"{T(1,KV,CAP,HD)} {p}K = concat(values = (kc, {p}kr), axis = int32(2), interleave = bool(false));")
    out.append(f"{T(1,KV,CAP,HD)} {p}V = concat(values = (vc, {p}vt), axis = int32(2), interleave = bool(false));")
    out.append(f"{T(KV,H//KV,S,HD)} {p}qg = reshape(x = {p}qr, shape = {I(KV,H//KV,S,HD)});")
    out.append(f"{T(KV,1,CAP,HD)} {p}Kg = reshape(x = {p}K, shape = {I(KV,1,CAP,HD)});")
    out.append(f"{T(KV,1,CAP,HD)} {p}Vg = reshape(x = {p}V, shape = {I(KV,1,CAP,HD)});")
    out.append(f"{T(KV,H//KV,S,CAP)} {p}s = matmul(x = {p}qg, y = {p}Kg, transpose_x = bool(false), transpose_y = bool(true));")
    out.append(f"{T(KV,H//KV,S,CAP)} {p}sc = mul(x = {p}s, y = fp16(0.125));")
    out.append(f"{T(KV,H//KV,S,CAP)} {p}sm = add(x = {p}sc, y = mask);")
    out.append(f"{T(KV,H//KV,S,CAP)} {p}sf = softmax(x = {p}sm, axis = int32(3));")
    out.append(f"{T(KV,H//KV,S,HD)} {p}o = matmul(x = {p}sf, y = {p}Vg, transpose_x = bool(false), transpose_y = bool(false));")
    out.append(f"{T(1,H,S,HD)} {p}oh = reshape(x = {p}o, shape = {I(1,H,S,HD)});")
    out.append(f"{T(1,H,HD,S)} {p}ot = transpose(x = {p}oh, perm = {I(0,1,3,2)});")
    out.append(f"{T(1,D,1,S)} {p}of = reshape(x = {p}ot, shape = {I(1,D,1,S)});")
    lin(p+"w",p+"of",D,D)
    out.append(f"{T(1,D,1,S)} {p}x = add(x = {x}, y = {p}w);")
    norm(p+"b",p+"x",None)
    lin(p+"g",p+"b",F,D); lin(p+"u",p+"b",F,D)
    out.append(f"{T(1,F,1,S)} {p}si = silu(x = {p}g);")
    out.append(f"{T(1,F,1,S)} {p}gu = mul(x = {p}si, y = {p}u);")
    lin(p+"d",p+"gu",D,F)
    out.append(f"{T(1,D,1,S)} {p}y = add(x = {p}x, y = {p}d);")
    x=p+"y"
out.append(f"{T(1,D,1,S)} z = identity(x = {x});")
f.seek(0); f.write(struct.pack("<II",n,2)); f.close()
open(os.path.join(folder, 'p00.mil'),'w').write("program(1.3)\n{\nfunc main<ios18>(%s x) {\n%s\n} -> (z);\n}\n"%(T(1,D,1,S),"\n".join(out)))
save_file({"x":rng.standard_normal((1,D,1,S)).astype(np.float16)},os.path.join(folder, 'in.safetensors'))
