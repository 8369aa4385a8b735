#!/usr/bin/env python3
"""Every operation of the software NPU against NumPy under the profile ieee: odd shapes, broadcasts, constants from blobs.
SPDX-License-Identifier: MIT"""
import math, os, re, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *
try:
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError as e:
    print(f"SKIP mil_ops: {e}")
    sys.exit(77)

rng = np.random.default_rng(5)
folder = os.path.join(top.name, "p")
os.makedirs(os.path.join(folder, "weights"))
covered = set()
chip = os.path.join(top.name, "odd.chip")
with open(chip, "w") as f: f.write("ane_row_bytes 2 bytes # inputs and outputs of odd widths\n")
DT = {"float16": "fp16", "float32": "fp32", "int8": "int8", "uint8": "uint8", "int32": "int32", "bool": "bool"}


def typ(a):
    return f"tensor<{DT[str(a.dtype)]}, [{', '.join(map(str, a.shape))}]>"


def blob(name, a, code=None, bits=None):
    """A one-blob file; returns the MIL reference."""
    raw = a.tobytes()
    code = code or {"float16": 1, "float32": 2, "uint8": 3, "int8": 4}[str(a.dtype)]
    head = struct.pack("<II56x", 1, 2) + struct.pack("<IIQQQ32x", 0xDEADBEEF, code, len(raw), 128, 0)
    with open(os.path.join(folder, "weights", name), "wb") as f: f.write(head + raw)
    return f'BLOBFILE(path = string("@model_path/weights/{name}"), offset = uint64(64))'


def program(body, inputs, results, target="ios18"):
    params = ", ".join(f"{typ(a)} {n}" for n, a in inputs.items())
    return f"program(1.3)\n{{\n    func main<{target}>({params}) {{\n{body}\n    }} -> ({', '.join(results)});\n}}\n"


def execute(text, inputs, *flags):
    with open(os.path.join(folder, "p00.mil"), "w") as f: f.write(text)
    i, o = os.path.join(top.name, "in.safetensors"), os.path.join(top.name, "out.safetensors")
    save_file({k: (v.astype(np.float32) if v.dtype == bool or v.dtype == np.int8 else v) for k, v in inputs.items()}, i)
    code, out, err = run("mil", "run", folder, "--in", i, "--out", o, "--profile", "ieee", "--chip", chip, "-t", 3, *flags)
    return (load_file(o) if code == 0 else None), err


def half(x): return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def case(op, body, inputs, want, rel=2e-3, absolute=1e-6, dtype="fp16"):
    """Runs a body that computes z and compares it with want, the result of NumPy."""
    covered.add(op)
    want = np.asarray(want)
    got, err = execute(program(body.replace("$T", f"tensor<{dtype}, [{', '.join(map(str, want.shape))}]>"), inputs, ["z"]), inputs)
    if got is None: return expect(f"{op}: runs", False, err)
    w = want.astype(np.float32)
    z = got["z"].reshape(w.shape)
    bad = ~((np.abs(z - w) <= absolute + rel * np.abs(w)) | ((z == w) | (np.isnan(z) & np.isnan(w))))
    expect(f"{op}: equals NumPy", not bad.any(), f"{bad.sum()} of {bad.size}: {z[bad][:4]} not {w[bad][:4]}\n{body}")
    other_places(op, body.replace("$T", f"tensor<{dtype}, [{', '.join(map(str, want.shape))}]>"), inputs, got["z"])


# A constant in the text, as `name = type(value)` or `name = type([values])`. `val` belongs to const.
CONSTANT = re.compile(r"(?P<name>(?!val\b|path\b)\w+) = (?P<type>tensor<(?P<tensor>\w+), \[(?P<shape>[^\]]*)\]>|(?P<scalar>fp16|bool|int32|int8|string))"
                      r"\((?P<values>\[[^\]]*\]|[^()\[\]]*)\)")
placed = set()


def elements(m):
    """The values of a constant as an array, or None where a blob file cannot have its type."""
    kind = m["tensor"] or m["scalar"]
    if kind not in ("fp16", "int32", "int8", "bool"): return None
    words = [w.strip() for w in m["values"].strip("[]").split(",")]
    if kind == "bool": return np.array([w == "true" for w in words], np.uint8)
    numbers = [float.fromhex(w) if "0x" in w else float(w) for w in words]
    n = int(np.prod([int(d) for d in m["shape"].split(",")])) if m["tensor"] and m["shape"].strip() else 1
    return np.array(numbers * (n if len(numbers) == 1 else 1)).astype({"fp16": np.float16, "int32": np.int32, "int8": np.int8}[kind])


def other_places(op, body, inputs, result):
    """Every constant operand of an operation from every other place: the same result, or an error that names the operand."""
    for m in CONSTANT.finditer(body):
        before = body[:m.start()]
        kinds = [k for k in re.findall(r"= (\w+)(?:<\w+>)?\((?=[^;]*$)", before) if k not in DT.values() and k != "string"]
        kind = kinds[-1] if kinds else op
        code = {"int32": 14, "bool": 3}.get(m["tensor"] or m["scalar"])
        values, start = elements(m), before.rfind(";") + 1
        attribute = ")[" in before[start:]
        file = None if values is None else blob("place.bin", values, code)
        places = {"named": f"{m['type']} k_ = const()[val = {m['type']}({m['values']})];"}
        if file: places["blob"] = f"{m['type']} k_ = const()[val = {m['type']}({file})];"
        if file: places["inline blob"] = ""
        if (m["tensor"] or m["scalar"]) == "fp16" and file:
            places["computed"] = f"{m['type']} j_ = const()[val = {m['type']}({m['values']})]; {m['type']} k_ = mul(x = j_, y = j_);"
        for place, text in places.items():
            if (kind, m["name"], place) in placed or (attribute and text): continue
            placed.add((kind, m["name"], place))
            given = f"{m['name']} = " + ("k_" if text else f"{m['type']}({file})")
            got, err = execute(program(body[:start] + text + body[start:m.start()] + given + body[m.end():], inputs, ["z"]), inputs)
            if place == "computed":  # another value: only its silence would be wrong
                expect(f"{kind}: {m['name']} {place}", got is not None or m["name"] in err or "k_" in err, err)
                continue
            same = got is not None and got["z"].shape == result.shape and np.array_equal(got["z"], result, equal_nan=True)
            expect(f"{kind}: {m['name']} {place}", same or (got is None and (m["name"] in err or "k_" in err)), (err, body))


def x(*shape, scale=1.0): return (rng.standard_normal(shape) * scale).astype(np.float16)
def f(a): return a.astype(np.float32)
def ints(*v): return f"tensor<int32, [{len(v)}]>([{', '.join(map(str, v))}])"


a, b = x(1, 32, 3, 64), x(1, 32, 1, 64)
A, B = f(a), f(b)
erf = np.vectorize(math.erf)
unary = {"square": A * A, "exp": np.exp(A), "exp2": np.exp2(A), "abs": abs(A), "sign": np.sign(A), "erf": erf(A), "ceil": np.ceil(A),
         "floor": np.floor(A), "round": np.sign(A) * np.floor(np.abs(A) + 0.5), "atan": np.arctan(A), "relu": np.maximum(A, 0), "relu6": np.clip(A, 0, 6),
         "sigmoid": 1 / (1 + np.exp(-A)), "tanh": np.tanh(A), "silu": A / (1 + np.exp(-A)), "softplus": np.log1p(np.exp(A)),
         "softsign": A / (1 + abs(A)), "identity": A}
for op, want in unary.items(): case(op, f"$T z = {op}(x = a);", {"a": a}, want)
p = np.abs(a) + np.float16(0.1)
case("sqrt", "$T z = sqrt(x = a);", {"a": p}, np.sqrt(f(p)))
for op, fn in (("rsqrt", lambda v: 1 / np.sqrt(v)), ("log", np.log), ("inverse", lambda v: 1 / v)):
    case(op, f"$T z = {op}(x = a, epsilon = fp16(0x1p-4));", {"a": p}, fn(f(p) + 0.0625), absolute=2e-3)
case("clip", "$T z = clip(x = a, alpha = fp16(-0.5), beta = fp16(0.75));", {"a": a}, np.clip(A, -0.5, 0.75))
# Scalar parameters whose value is in a blob file.


def scalar(name, value): return f"fp16 {name} = const()[val = fp16({blob(name + '.bin', np.float16(value).reshape(1))})]; "


for op, fn in (("rsqrt", lambda v: 1 / np.sqrt(v)), ("log", np.log), ("inverse", lambda v: 1 / v)):
    case(op, scalar("eps", 0.25) + f"$T z = {op}(x = a, epsilon = eps);", {"a": p}, fn(f(p) + 0.25), absolute=2e-3)
case("clip", scalar("lo", -0.5) + scalar("hi", 0.75) + "$T z = clip(x = a, alpha = lo, beta = hi);", {"a": a}, np.clip(A, -0.5, 0.75))
mean, var = A.mean(-1, keepdims=True), A.var(-1, keepdims=True)
case("layer_norm", scalar("eps", 0.5) + "$T z = layer_norm(x = a, axes = tensor<int32, [1]>([-1]), epsilon = eps);", {"a": a},
     (A - mean) / np.sqrt(var + 0.5), rel=4e-3, absolute=2e-3)
mean, var = A.mean((2, 3), keepdims=True), A.var((2, 3), keepdims=True)
case("instance_norm", scalar("eps", 0.5) + "$T z = instance_norm(x = a, epsilon = eps);", {"a": a}, (A - mean) / np.sqrt(var + 0.5),
     rel=4e-3, absolute=2e-3)
with open(os.path.join(folder, "p00.mil"), "w") as text:  # a shape parameter in a blob is refused, never replaced by its default
    text.write(program(f"bool keep = const()[val = bool({blob('keep.bin', np.ones(1, np.uint8))})]; "
                       "tensor<fp16, [1, 32, 3, 1]> z = reduce_sum(x = a, axes = tensor<int32, [1]>([-1]), keep_dims = keep);", {"a": a}, ["z"]))
code, out, err = run("mil", "check", folder, "--profile", "ieee")
expect("keep_dims from a blob: refused by name", code != 0 and "keep_dims" in out + err, out + err)
with open(os.path.join(folder, "p00.mil"), "w") as text:  # an axis beyond the rank is refused also where one element serves all
    text.write(program("tensor<int8, [1, 32, 3, 64]> t = quantize(input = a, scale = fp16(0x1p-5), output_dtype = string(\"int8\")); "
                       "tensor<fp16, [1, 32, 3, 64]> z = dequantize(input = t, scale = fp16(0x1p-5), axis = int32(7));", {"a": a}, ["z"]))
code, out, err = run("mil", "check", folder, "--profile", "ieee")
expect("an axis beyond the rank: refused by name", code != 0 and "axis" in out + err, out + err)
case("gelu", '$T z = gelu(x = a, mode = string("EXACT"));', {"a": a}, A * 0.5 * (1 + erf(A / math.sqrt(2))), absolute=1e-4)
case("gelu", '$T z = gelu(x = a, mode = string("TANH_APPROXIMATION"));', {"a": a},
     0.5 * A * (1 + np.tanh(math.sqrt(2 / math.pi) * (A + 0.044715 * A ** 3))), absolute=1e-4)
binary = {"add": A + B, "sub": A - B, "mul": A * B, "real_div": A / B, "maximum": np.maximum(A, B), "minimum": np.minimum(A, B),
          "floor_div": np.floor(A / B)}
for op, want in binary.items(): case(op, f"$T z = {op}(x = a, y = b);", {"a": a, "b": b}, half(want))
case("add", "$T z = add(x = b, y = a);", {"a": a, "b": b}, A + B)
long = (np.arange(9 * 32 * 64).reshape(1, 9, 32, 64) % 101 - 50).astype(np.float16)  # one long row, cut for the threads
case("sub", "$T z = sub(x = a, y = b);", {"a": long, "b": long[:, ::-1].copy()}, f(long) - f(long[:, ::-1]))
case("mul", "$T z = mul(x = a, y = fp16(-0x1.8p+0));", {"a": a}, A * -1.5)
case("pow", "$T z = pow(x = a, y = fp16(-0.5));", {"a": p}, f(p) ** -0.5)
case("pow", "$T z = pow(x = a, y = fp16(3.0));", {"a": a}, A ** 3)
case("pow", "$T z = pow(x = a, y = b);", {"a": p, "b": a}, f(p) ** A)
# A value just above half a step shows double rounding: the result must be rounded once, to even.
tie = np.full((1, 32, 1, 32), 2048, np.float16)
case("add", "$T z = add(x = a, y = fp16(1.0));", {"a": tie}, np.full(tie.shape, 2048.0))
for op, fn in (("greater", np.greater), ("greater_equal", np.greater_equal), ("less", np.less), ("less_equal", np.less_equal),
               ("equal", np.equal), ("not_equal", np.not_equal)):
    case(op, f"tensor<bool, [1, 32, 3, 64]> t = {op}(x = a, y = b); $T z = cast(x = t, dtype = string(\"fp16\"));", {"a": a, "b": b}, fn(A, B))
case("select", "tensor<bool, [1, 32, 3, 64]> t = greater(x = a, y = b); $T z = select(cond = t, a = a, b = b);", {"a": a, "b": b},
     np.maximum(A, B))
case("logical_not", "tensor<bool, [1, 32, 3, 64]> t = greater(x = a, y = b); tensor<bool, [1, 32, 3, 64]> u = logical_not(x = t);"
     " $T z = cast(x = u, dtype = string(\"fp16\"));", {"a": a, "b": b}, ~(A > B))
c8 = x(1, 32, 3, 64, scale=90)
case("cast", 'tensor<int8, [1, 32, 3, 64]> t = cast(x = a, dtype = string("int8")); $T z = cast(x = t, dtype = string("fp16"));',
     {"a": c8}, np.clip(np.trunc(f(c8)), -128, 127))
# Products.
w, xx = x(70, 33, 1, 1, scale=0.2), x(1, 33, 5, 64)
CONV = ('conv(strides = tensor<int32, [2]>([{s}, {s}]), pad_type = string("{p}"), pad = tensor<int32, [4]>([{t}, {u}, {l}, {r}]), '
        'dilations = tensor<int32, [2]>([{d}, {d}]), groups = int32({g}), weight = w, x = a)')


def conv(x_, w_, s, pad, d, g):
    n, ci, h, wd = x_.shape
    o, ig, kh, kw = w_.shape
    q = np.pad(x_, ((0, 0), (0, 0), pad[:2], pad[2:]))
    oh, ow = (q.shape[2] - (kh - 1) * d - 1) // s + 1, (q.shape[3] - (kw - 1) * d - 1) // s + 1
    z = np.zeros((n, o, oh, ow), np.float64)
    for k in range(o):
        at = k // (o // g) * ig
        for i in range(kh):
            for j in range(kw):
                z[:, k] += np.einsum("nchw,c->nhw", q[:, at:at + ig, i * d:i * d + (oh - 1) * s + 1:s, j * d:j * d + (ow - 1) * s + 1:s], w_[k, :, i, j])
    return z


def conv_case(xv, wv, s=1, p="valid", pad=(0, 0, 0, 0), d=1, g=1, ref=None):
    body = f"        {typ(wv)} w = const()[val = {typ(wv)}({blob('w.bin', wv)})];\n        $T z = " + CONV.format(
        s=s, p=p, t=pad[0], u=pad[1], l=pad[2], r=pad[3], d=d, g=g) + ";"
    case("conv", body, {"a": xv}, conv(f(xv), f(wv), s, ref or pad, d, g), absolute=2e-3)


conv_case(xx, w)
conv_case(x(2, 33, 1, 100), w)
conv_case(x(1, 8, 9, 32), x(6, 8, 3, 3, scale=0.2), 2, "custom", (1, 2, 0, 1))
conv_case(x(1, 8, 9, 32), x(6, 8, 3, 3, scale=0.2), 1, "same", ref=(1, 1, 1, 1))
conv_case(x(1, 8, 12, 32), x(16, 2, 2, 3), 1, "valid", d=2, g=4)
conv_case(x(1, 32, 1, 67), x(32, 1, 1, 4), 1, "custom", (0, 0, 3, 0), g=32)
m, n = x(2, 3, 37, 50), x(2, 1, 50, 65)
M, N = f(m), f(n)
for tx, ty in ((0, 0), (0, 1), (1, 0), (1, 1)):
    mm, nn = (np.ascontiguousarray(m.swapaxes(2, 3)) if tx else m), (np.ascontiguousarray(n.swapaxes(2, 3)) if ty else n)
    case("matmul", f"$T z = matmul(x = a, y = b, transpose_x = bool({'true' if tx else 'false'}), transpose_y = bool({'true' if ty else 'false'}));",
         {"a": mm, "b": nn}, M @ N, absolute=6e-3)
wl, bl = x(40, 50, scale=0.2), x(40)
case("linear", f"{typ(wl)} w = const()[val = {typ(wl)}({blob('w.bin', wl)})]; {typ(bl)} b = const()[val = {typ(bl)}({blob('b.bin', bl)})]; "
     "$T z = linear(x = a, weight = w, bias = b);", {"a": m}, half(M @ f(wl).T) + f(bl), absolute=6e-3)
q, k, v = x(1, 2, 9, 32), x(1, 2, 11, 32), x(1, 2, 11, 24)
case("einsum", '$T z = einsum(values = (a, b), equation = string("bhqd,bhkd->bhqk"));', {"a": q, "b": k}, np.einsum("bhqd,bhkd->bhqk", f(q), f(k)),
     absolute=6e-3)
s = np.einsum("bhqd,bhkd->bhqk", f(q), f(k)) / math.sqrt(32)
e = np.exp(s - s.max(-1, keepdims=True))
case("scaled_dot_product_attention", "$T z = scaled_dot_product_attention(query = a, key = b, value = c);", {"a": q, "b": k, "c": v},
     e / e.sum(-1, keepdims=True) @ f(v), absolute=2e-3)
# Reductions and norms.
for axis in range(4):
    e = np.exp(A - A.max(axis, keepdims=True))
    case("softmax", f"$T z = softmax(x = a, axis = int32({axis}));", {"a": a}, e / e.sum(axis, keepdims=True))
red = {"reduce_sum": np.sum, "reduce_mean": np.mean, "reduce_max": np.max, "reduce_min": np.min,
       "reduce_l1_norm": lambda v, **o: abs(v).sum(**o), "reduce_l2_norm": lambda v, **o: np.sqrt((v * v).sum(**o)),
       "reduce_sum_square": lambda v, **o: (v * v).sum(**o), "reduce_log_sum_exp": lambda v, **o: np.log(np.exp(v).sum(**o))}
for op, fn in red.items():
    for axes in ((1,), (3,), (1, 3), (2, 3)):
        case(op, f"$T z = {op}(x = a, axes = {ints(*axes)}, keep_dims = bool(true));", {"a": a}, fn(A, axis=axes, keepdims=True), absolute=2e-2)
case("reduce_sum", f"$T z = reduce_sum(x = a, axes = {ints(1)}, keep_dims = bool(false));", {"a": a}, A.sum(1), absolute=2e-2)
case("reduce_log_sum", f"$T z = reduce_log_sum(x = a, axes = {ints(3)}, keep_dims = bool(true));", {"a": p}, np.log(f(p).sum(3, keepdims=True)))
for op, fn in (("reduce_argmax", np.argmax), ("reduce_argmin", np.argmin)):
    case(op, f"tensor<int32, [1, 32, 3, 1]> t = {op}(x = a, axis = int32(3), keep_dims = bool(true)); $T z = cast(x = t, dtype = string(\"fp16\"));",
         {"a": a}, fn(A, axis=3)[..., None])
g_, b_ = x(32), x(32)
mu, var = A.mean(1, keepdims=True), A.var(1, keepdims=True)
case("layer_norm", f"{typ(g_)} g = const()[val = {typ(g_)}({blob('w.bin', g_)})]; {typ(b_)} h = const()[val = {typ(b_)}({blob('b.bin', b_)})]; "
     f"$T z = layer_norm(x = a, axes = {ints(1)}, gamma = g, beta = h, epsilon = fp16(0x1p-10));", {"a": a},
     (A - mu) / np.sqrt(var + 2 ** -10) * f(g_)[:, None, None] + f(b_)[:, None, None], absolute=4e-3)
mu, var = A.mean((2, 3), keepdims=True), A.var((2, 3), keepdims=True)
case("instance_norm", "$T z = instance_norm(x = a, epsilon = fp16(0x1p-10));", {"a": a}, (A - mu) / np.sqrt(var + 2 ** -10), absolute=4e-3)
case("l2_norm", "$T z = l2_norm(x = a, epsilon = fp16(0));", {"a": a}, A / np.sqrt((A * A).sum((1, 2, 3), keepdims=True)))
pv = np.abs(g_) + np.float16(0.5)
case("batch_norm", f"{typ(b_)} m = const()[val = {typ(b_)}({blob('w.bin', b_)})]; {typ(pv)} v = const()[val = {typ(pv)}({blob('b.bin', pv)})]; "
     "$T z = batch_norm(x = a, mean = m, variance = v, epsilon = fp16(0x1p-10));", {"a": a},
     (A - f(b_)[:, None, None]) / np.sqrt(f(pv)[:, None, None] + 2 ** -10), absolute=4e-3)
top_v = -np.sort(-A, axis=3)[..., :5]
case("topk", "$T z, tensor<int32, [1, 32, 3, 5]> i = topk(x = a, k = int32(5), axis = int32(3), ascending = bool(false));", {"a": a}, top_v)
case("topk", "$T z, tensor<int32, [1, 32, 3, 5]> i = topk(x = a, k = int32(5), axis = int32(3), ascending = bool(false), sort = bool(true), "
     "return_indices = bool(true));", {"a": a}, top_v)
case("argsort", "tensor<int32, [1, 32, 3, 64]> t = argsort(x = a, axis = int32(3), ascending = bool(true)); $T z = cast(x = t, dtype = string(\"fp16\"));",
     {"a": a}, np.argsort(A, axis=3, kind="stable"))
# Data movement.
case("reshape", f"tensor<fp16, [1, 96, 1, 64]> t = reshape(x = a, shape = {ints(1, -1, 1, 64)}); $T z = mul(x = t, y = fp16(2));", {"a": a},
     A.reshape(1, 96, 1, 64) * 2)
for perm in ((0, 2, 1, 3), (0, 3, 1, 2), (3, 2, 1, 0)):
    case("transpose", f"$T z = transpose(x = a, perm = {ints(*perm)});", {"a": a}, A.transpose(perm))
case("expand_dims", f"$T z = expand_dims(x = a, axes = {ints(0)});", {"a": a}, A[None])
case("squeeze", f"$T z = squeeze(x = a, axes = {ints(0)});", {"a": a}, A[0])
case("slice_by_size", f"$T z = slice_by_size(x = a, begin = {ints(0, 3, 1, 5)}, size = {ints(1, 8, -1, 32)});", {"a": a}, A[:, 3:11, 1:, 5:37])
case("slice_by_index", f"$T z = slice_by_index(x = a, begin = {ints(0, 30, 1, 60)}, end = {ints(1, 2, 2, 0)}, stride = {ints(1, -3, 1, -4)}, "
     "end_mask = tensor<bool, [4]>([true, false, false, false]), squeeze_mask = tensor<bool, [4]>([false, false, true, false]));", {"a": a},
     A[:, 30:2:-3, 1, 60:0:-4])
masks = [f"{m}_mask = tensor<bool, [4]>([{', '.join('true' if i == k else 'false' for i in range(4))}])" for k, m in ((0, "begin"), (3, "end"), (9, "squeeze"))]
case("slice_by_index", f"$T z = slice_by_index(x = a, begin = {ints(1, 4, 0, 8)}, end = {ints(1, 20, 3, 9)}, {', '.join(masks)});", {"a": a}, A[:, 4:20, :, 8:])
u = x(1, 4, 3, 16)
want = A.copy(); want[:, 2:10:2, :, 8:24] = f(u)
case("slice_update", f"$T z = slice_update(x = a, update = u, begin = {ints(0, 2, 0, 8)}, end = {ints(1, 10, 3, 24)}, stride = {ints(1, 2, 1, 1)});",
     {"a": a, "u": u}, want)
u = x(1, 4, 3, 56)
want = A.copy(); want[:, 2:6, :, 8:] = f(u)
case("slice_update", f"$T z = slice_update(x = a, update = u, begin = {ints(1, 2, 0, 8)}, end = {ints(1, 6, 3, 9)}, {', '.join(masks)});",
     {"a": a, "u": u}, want)
for axis, other in ((1, x(1, 7, 3, 64)), (3, x(1, 32, 3, 9)), (2, b)):
    case("concat", f"$T z = concat(values = (a, b, a), axis = int32({axis}), interleave = bool(false));", {"a": a, "b": other},
         np.concatenate([A, f(other), A], axis))
d = x(1, 32, 3, 64)
case("concat", "$T z = concat(values = (a, b), axis = int32(1), interleave = bool(true));", {"a": a, "b": d},
     np.stack([A, f(d)], 2).reshape(1, 64, 3, 64))
case("split", "tensor<fp16, [1, 16, 3, 64]> s, tensor<fp16, [1, 16, 3, 64]> t = split(x = a, num_splits = int32(2), axis = int32(1)); "
     "$T z = sub(x = t, y = s);", {"a": a}, A[:, 16:] - A[:, :16])
case("split", f"tensor<fp16, [1, 10, 3, 64]> s, $T z = split(x = a, split_sizes = {ints(10, 22)}, axis = int32(1));", {"a": a}, A[:, 10:])
case("stack", "$T z = stack(values = (a, b), axis = int32(1));", {"a": a, "b": d}, np.stack([A, f(d)], 1))
case("tile", f"$T z = tile(x = a, reps = {ints(2, 1, 3, 2)});", {"a": a}, np.tile(A, (2, 1, 3, 2)))
for mode, how in (("constant", {"constant_values": 1.5}), ("reflect", {}), ("replicate", {})):
    case("pad", f'$T z = pad(x = a, pad = {ints(1, 2, 3, 4)}, mode = string("{mode}"), constant_val = fp16(1.5));', {"a": a},
         np.pad(A, ((0, 0), (0, 0), (1, 2), (3, 4)), mode.replace("replicate", "edge"), **how))
case("reverse", f"$T z = reverse(x = a, axes = {ints(1, 3)});", {"a": a}, A[:, ::-1, :, ::-1])
dd = A.reshape(1, 2, 2, 8, 3, 64).transpose(0, 3, 4, 1, 5, 2).reshape(1, 8, 6, 128)
case("depth_to_space", "$T z = depth_to_space(x = a, block_size = int32(2));", {"a": a}, dd)
case("space_to_depth", "$T z = space_to_depth(x = a, block_size = int32(2));", {"a": dd.astype(np.float16)}, A)
case("pixel_shuffle", "$T z = pixel_shuffle(x = a, upscale_factor = int32(2));", {"a": a},
     A.reshape(1, 8, 2, 2, 3, 64).transpose(0, 1, 4, 2, 5, 3).reshape(1, 8, 6, 128))
case("gather", "$T z = gather(x = a, indices = tensor<int32, [3]>([5, 0, -1]), axis = int32(1));", {"a": a}, A[:, [5, 0, -1]])
case("gather", "$T z = gather(x = a, indices = tensor<int32, [2]>([7, 1]), axis = int32(1), batch_dims = int32(0), validate_indices = bool(false));",
     {"a": a}, A[:, [7, 1]])
# Conversions and compressed constants.
case("quantize", "tensor<int8, [1, 32, 3, 64]> t = quantize(input = a, scale = fp16(0x1p-5), zero_point = int8(3), output_dtype = string(\"int8\")); "
     "$T z = dequantize(input = t, scale = fp16(0x1p-5), zero_point = int8(3));", {"a": a}, (np.clip(np.rint(A * 32) + 3, -128, 127) - 3) / 32)
covered.add("dequantize")
steps = np.array([2.0 ** -(4 + i % 3) for i in range(32)], np.float16)
by = f"scale = {typ(steps)}([{', '.join(map(str, steps))}]), axis = int32(1)"
case("quantize", f"tensor<int8, [1, 32, 3, 64]> t = quantize(input = a, {by}, output_dtype = string(\"int8\")); $T z = dequantize(input = t, {by});",
     {"a": a}, np.clip(np.rint(A / f(steps)[:, None, None]), -128, 127) * f(steps)[:, None, None])
# A dequantize of a constant is a constant.
q8 = rng.integers(-127, 128, (32, 1, 1)).astype(np.int8)
case("dequantize", f"{typ(q8)} q = const()[val = {typ(q8)}({blob('w.bin', q8)})]; {typ(steps)} s = const()[val = {typ(steps)}({blob('b.bin', steps)})]; "
     f"{typ(q8).replace('int8', 'fp16')} w = dequantize(input = q, scale = s, axis = int32(0)); $T z = mul(x = a, y = w);", {"a": a},
     A * half(f(q8) * f(steps)[:, None, None]), rel=4e-3)
qw, sc = rng.integers(-127, 128, (32, 64)).astype(np.int8), np.abs(x(32, scale=0.01))
la = x(1, 1, 8, 64)
case("constexpr_affine_dequantize", f"tensor<fp16, [32, 64]> w = constexpr_affine_dequantize()[axis = int32(0), quantized_data = {typ(qw)}({blob('w.bin', qw)}), "
     f"scale = {typ(sc)}({blob('b.bin', sc)}), zero_point = int8(0)]; $T z = linear(x = a, weight = w);", {"a": la},
     f(la) @ half(f(qw) * f(sc)[:, None]).T, absolute=2e-2)
for bits in (4, 6):
    idx, lut = rng.integers(0, 2 ** bits, 32 * 64).astype(np.uint8), np.sort(x(2 ** bits))
    packed = np.packbits(((idx[:, None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(-1), bitorder="little")
    case("constexpr_lut_to_dense", f"tensor<fp16, [32, 64]> w = constexpr_lut_to_dense()[indices = {typ(packed)}({blob('w.bin', packed)}), "
         f"lut = {typ(lut)}({blob('b.bin', lut)}), shape = tensor<uint32, [2]>([32, 64])]; $T z = linear(x = a, weight = w);", {"a": la},
         f(la) @ f(lut)[idx].reshape(32, 64).T, absolute=4e-2)
    t2 = f"tensor<fp16, [1, 1, {2 ** bits}, 1]>"
    case("constexpr_lut_to_dense", f"tensor<uint{bits}, [32, 64]> i = const()[val = tensor<uint{bits}, [32, 64]>({blob('w.bin', packed, {4: 11, 6: 13}[bits])})]; "
         f"{t2} l = const()[val = {t2}({blob('b.bin', lut)})]; tensor<fp16, [32, 64]> w = constexpr_lut_to_dense(indices = i, lut = l); "
         "$T z = linear(x = a, weight = w);", {"a": la}, f(la) @ f(lut)[idx].reshape(32, 64).T, absolute=4e-2)
mask = rng.random(32 * 64) < 0.3
nz, mb = x(int(mask.sum())), np.packbits(mask.astype(np.uint8), bitorder="little")
sw = np.zeros(32 * 64, np.float32); sw[mask] = f(nz)
case("constexpr_sparse_to_dense", f"tensor<fp16, [32, 64]> w = constexpr_sparse_to_dense()[nonzero_data = {typ(nz)}({blob('w.bin', nz)}), "
     f"mask = {typ(mb)}({blob('b.bin', mb)}), shape = tensor<uint32, [2]>([32, 64])]; $T z = linear(x = a, weight = w);", {"a": la},
     f(la) @ sw.reshape(32, 64).T, absolute=4e-2)
bs = np.abs(x(32, 4, scale=0.01))
case("constexpr_blockwise_shift_scale", f"{typ(qw)} q = const()[val = {typ(qw)}({blob('w.bin', qw)})]; {typ(bs)} s = const()[val = {typ(bs)}({blob('b.bin', bs)})]; "
     "tensor<fp16, [32, 64]> w = constexpr_blockwise_shift_scale(data = q, scale = s); $T z = linear(x = a, weight = w);", {"a": la},
     f(la) @ half(f(qw) * np.repeat(f(bs), 16, 1)).T, absolute=2e-2)
buffer = "tensor_buffer<fp16, shape=[1, 1, 16, 20], strides=[1024, 1024, 64, 1], interleave_factors=[1, 1, 1, 1]>"
bb = x(1, 1, 16, 20)
with open(os.path.join(folder, "p00.mil"), "w") as fh:
    fh.write(f"program(1.3)\n{{\nfunc main<ios18>({buffer} a) {{\ntensor<fp16, [1, 1, 16, 20]> t = tensor_buffer_to_tensor<ios17>(input = a);\n"
             f"tensor<fp16, [1, 1, 16, 20]> u = mul(x = t, y = t);\n{buffer} z = tensor_to_tensor_buffer<ios17>(input = u, interleave_factors = "
             "tensor<uint8, [4]>([1, 1, 1, 1]), strides = tensor<int64, [4]>([1024, 1024, 64, 1]));\n} -> (z);\n}\n")
got, err = execute(open(os.path.join(folder, "p00.mil")).read(), {"a": bb})
expect("buffers", got is not None and np.allclose(got["z"], half(f(bb) ** 2)), err)
covered |= {"tensor_buffer_to_tensor", "tensor_to_tensor_buffer"}
# Every operation that the software NPU computes was tested.
table = open(os.path.join(source, "src", "unit", "ane", "mil", "milops.c")).read()
known = set(re.findall(r'(?:\{|UNARY\(|UNARY_EPS\(|BINARY\(|COMPARE\(|REDUCE\()"([a-z0-9_]+)"', table)) - {"const", "read_state", "coreml_update_state"}
expect("every operation of the table is tested", known <= covered, sorted(known - covered))
# Every constant parameter of the table, a name with !, but four, came from a blob file at least once, unless it is a string.
rows = re.findall(r'\{"(\w+)", "([^"]*)"', table)
rows += [(n, "axes! keep_dims!") for n in re.findall(r'\n    REDUCE\("(\w+)"', table)] + [(n, "epsilon!") for n in re.findall(r'\n    UNARY_EPS\("(\w+)"', table)]
strings = {"pad_type", "equation", "mode", "dtype", "output_dtype", "output_indices_dtype"}
missing = {(kind, a.split("!")[0]) for kind, args in rows for a in args.split() if "!" in a and a.split("!")[0] not in strings}
missing -= {(kind, name) for kind, name, place in placed if "blob" in place}
# Those above that are vectors, and data of compressed constants; an offset and a vector axis are not in any program.
data = {"gamma", "beta", "mean", "variance", "quantized_data", "indices", "lut", "nonzero_data", "mask", "data", "offset", "vector_axis"}
missing -= {(kind, name) for kind, name in missing if name in data or (kind.startswith("constexpr_") and name in ("scale", "zero_point"))}
# Not covered: no case writes these in a form that other_places moves to a blob file.
missing -= {("constexpr_lut_to_dense", "shape"), ("constexpr_sparse_to_dense", "shape"), ("tensor_to_tensor_buffer", "interleave_factors"),
            ("tensor_to_tensor_buffer", "strides")}
expect("every other parameter came from a blob file", not missing, sorted(missing))
done()
