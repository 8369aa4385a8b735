#!/usr/bin/env python3
"""segue mil emit --mlpackage, read by coremltools: operations and arguments by name, inferred types and shapes, blobs, and
evaluated constants. SPDX-License-Identifier: MIT"""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

try:
    import logging
    logging.disable(logging.WARNING)       # it misses the parts that only a Mac has
    import numpy as np
    from safetensors.numpy import load_file, save_file
    import coremltools as ct
    from coremltools.converters.mil.mil import types
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.libmilstoragepython import _BlobStorageReader as reader
    from coremltools.proto import MIL_pb2
except Exception as e:                     # a wheel for another system lacks its own libraries
    print(f"SKIP mil_package: coremltools is not here ({e})")
    sys.exit(77)

names = {v.number: v.name for v in MIL_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values}
kinds = {"FLOAT16": "fp16", "FLOAT32": "fp32", "INT32": "int32", "BOOL": "bool", "STRING": "string"}


def weights_of(path):
    """F32, F16 and BF16 tensors of a safetensors file as fp32 (NumPy has no BF16)."""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__": continue
        a = np.frombuffer(raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]], {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[t["dtype"]])
        out[name] = ((a.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else a.astype(np.float32)).reshape(t["shape"])
    return out


def inside(package): return os.path.join(package, "Data", "com.apple.CoreML")


def opened(package):
    """Returns the block as written, and the function that coremltools builds from it with its own type inference."""
    manifest = json.load(open(os.path.join(package, "Manifest.json")))
    items = manifest["itemInfoEntries"]
    root = os.path.join(package, "Data", items[manifest["rootModelIdentifier"]]["path"])
    expect("the manifest leads to the model", os.path.exists(root) and len(items) == 2, items)
    spec = ct.models.utils.load_spec(root)
    program = load(spec, specification_version=spec.specificationVersion, file_weights_dir=os.path.join(inside(package), "weights"))
    program.validate()
    written = spec.mlProgram.functions["main"]
    return spec, written.block_specializations[written.opset], program.functions["main"]


def compare(what, spec, block, function):
    """Compares every operation, argument, type and shape."""
    found = {o.name: o for op in function.operations for o in op.outputs}
    seen = set()
    for op in block.operations:
        seen.add(op.type)
        for out in op.outputs:
            t, var = out.type.tensorType, found.get(out.name)
            if var is None: return expect(f"{what}: {out.name} is there", False, op.type)
            shape = tuple(d.constant.size for d in t.dimensions)
            expect(f"{what}: {op.type} {out.name}: type and shape", (kinds[names[t.dataType]], shape) ==
                   (types.builtin_to_string(var.dtype), tuple(var.shape)), (names[t.dataType], shape, var.dtype, var.shape))
            expect(f"{what}: {out.name}: the same operation", var.op.op_type == op.type, (var.op.op_type, op.type))
        for name, argument in op.inputs.items():
            given = [b.name for b in argument.arguments]
            held = found[op.outputs[0].name].op.inputs[name]
            expect(f"{what}: {op.type}: {name}", [v.name for v in (held if isinstance(held, (list, tuple)) else [held])] == given, given)
    inputs = {f.name: tuple(f.type.multiArrayType.shape) for f in spec.description.input}
    expect(f"{what}: inputs", inputs == {n: tuple(v.shape) for n, v in function.inputs.items()}, inputs)
    expect(f"{what}: outputs", [f.name for f in spec.description.output] == [o.name for o in function.outputs])
    return seen


# Model families: attention, sliding window with softcap, learned positions, gated delta rule; prefill and decode.
everything = set()
for family in ("llama", "gemma3", "gpt2", "qwen3_5"):
    model = os.path.join(source, "tests", "golden", "tiny", family)
    for rows in (1, 64):
        package, folder = (os.path.join(top.name, f"{family}{rows}{e}") for e in (".mlpackage", ""))
        code, out, err = run("mil", "emit", "-m", model, "--tokens-per-dispatch", rows, "--layers-per-program", 99, "-o", folder, "--mlpackage", package)
        expect(f"{family}: written", code == 0, err)
        spec, block, function = opened(package)
        everything |= compare(f"{family} {rows}", spec, block, function) or set()
        manifest = json.load(open(os.path.join(folder, "manifest.json")))
        given = weights_of(os.path.join(model, "model.safetensors"))
        values = {o.name: o for op in function.operations if op.op_type == "const" for o in op.outputs}
        checked = 0
        for t in manifest["programs"][0]["tensors"]:
            name = next((n for n in (t["tensor"], "transformer." + t["tensor"]) if n in given), None)
            got, raw = values[t["value"]].val, reader(os.path.join(inside(package), "weights", "weight.bin")).read_fp16_data(t["offset"])
            expect(f"{family}: {t['tensor']}: as its reader reads it", np.array_equal(got.reshape(-1).view(np.uint16), np.frombuffer(raw.tobytes(), np.uint16)))
            if name is None: continue
            want = given[name].reshape(-1, given[name].shape[-1])[t["row"]:t["row"] + t["rows"]].astype(np.float16)
            checked += got.size == want.size and np.array_equal(got.reshape(-1), want.reshape(-1))
        expect(f"{family}: weights are those of the file", checked >= 3, checked)
expect("the set of operations is no small one", {"conv", "matmul", "softmax", "exp", "pow", "concat", "slice_by_size",
       "softplus", "reduce_max"} <= everything, sorted(everything))

# Constants from blobs and literals: values that coremltools infers, against the software NPU.
rng = np.random.default_rng(3)
folder = os.path.join(top.name, "text")
os.makedirs(os.path.join(folder, "weights"))
w, u = rng.normal(size=(1, 32, 1, 32)).astype(np.float16), rng.normal(size=(1, 1, 32, 32)).astype(np.float16)
blob = struct.pack("<II56x", 2, 2)
for a in (w, u): blob += struct.pack("<IIQQQ32x", 0xDEADBEEF, 1, a.nbytes, len(blob) + 64, 0) + a.tobytes()
with open(os.path.join(folder, "weights", "a.bin"), "wb") as f: f.write(blob)
wide, square = "tensor<fp16, [1, 32, 1, 32]>", "tensor<fp16, [1, 1, 32, 32]>"
parts = [("add", f"{wide} t0 = add(x = w, y = fp16(0.5));"), ("mul", f"{wide} t1 = mul(x = w, y = w);"), ("exp", f"{wide} t2 = exp(x = w);"),
         ("softmax", f"{wide} t3 = softmax(x = w, axis = int32(1));"), ("maximum", f"{wide} t4 = maximum(x = w, y = fp16(0.25));"),
         ("transpose", f"{square} r5 = transpose(x = w, perm = tensor<int32, [4]>([0, 2, 3, 1])); {wide} t5 = reshape(x = r5, shape = "
          "tensor<int32, [4]>([1, 32, 1, 32]));"),
         ("matmul", f"{square} m6 = matmul(x = u, y = u, transpose_x = bool(false), transpose_y = bool(true)); {wide} t6 = reshape(x = m6, "
          "shape = tensor<int32, [4]>([1, 32, 1, 32]));"),
         ("slice", f"tensor<fp16, [1, 16, 1, 32]> a7 = slice_by_size(x = w, begin = tensor<int32, [4]>([0, 16, 0, 0]), size = tensor<int32, [4]>"
          f"([1, 16, 1, 32])); {wide} t7 = concat(values = (a7, a7), axis = int32(1), interleave = bool(false));")]
body = "".join(f"{t} {n} = const()[val = {t}(BLOBFILE(path = string(\"@model_path/weights/a.bin\"), offset = uint64({at})))];\n"
               for n, t, at in (("w", wide, 64), ("u", square, 64 + 64 + w.nbytes)))
for i, (name, text) in enumerate(parts):
    # the input is used last, so that everything before it is constant
    program = (f"program(1.3)\n{{\n    func main<ios18>({wide} a) {{\n{body}{text}\n{wide} z = add(x = a, y = t{i});\n    }} -> (z);\n}}\n")
    path, package = os.path.join(folder, "p.mil"), os.path.join(top.name, f"{name}.mlpackage")
    with open(path, "w") as f: f.write(program)
    code, out, err = run("mil", "emit", path, "--mlpackage", package)
    expect(f"{name}: written", code == 0, err)
    spec, block, function = opened(package)
    compare(name, spec, block, function)
    inferred = next(o for op in function.operations for o in op.outputs if o.name == f"t{i}").val
    save_file({"a": np.zeros((1, 32, 1, 32), np.float16)}, os.path.join(top.name, "i.safetensors"))
    code, out, err = run("mil", "run", path, "--in", os.path.join(top.name, "i.safetensors"), "--out", os.path.join(top.name, "o.safetensors"), "--profile", "ieee")
    computed = load_file(os.path.join(top.name, "o.safetensors"))["z"] if code == 0 else None
    expect(f"{name}: by value inference", inferred is not None and computed is not None and
           np.allclose(np.asarray(inferred, np.float32), computed, rtol=2e-3, atol=2e-3), (inferred is None, err))

refused(2, ["mil", "emit", os.path.join(folder, "p.mil")], "--mlpackage")
with open(os.path.join(folder, "p.mil"), "w") as f: f.write(program[:300])
refused(4, ["mil", "emit", os.path.join(folder, "p.mil"), "--mlpackage", os.path.join(top.name, "bad.mlpackage")], "p.mil")
done()
