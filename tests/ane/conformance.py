#!/usr/bin/env python3
"""Verdicts of `segue mil check` against those of Apple's compiler, per generation of the engine.

  conformance.py                            the texts of this file (needs SEGUE_COMMAND)
  conformance.py --write FOLDER             writes them, with their verdicts and sources as comments
  conformance.py --check FOLDER VERDICTS    texts of another project: VERDICTS has lines PATH,GENERATION,VERDICT, where a
                                            verdict is accept, refuse or refuse:RULE; nothing is downloaded

A text states its verdicts in its first line: `// verdict: h13=accept h14=refuse:49`. At least 95 % per generation must agree.
SPDX-License-Identifier: MIT"""
import csv, json, os, re, struct, subprocess, sys, tempfile

command = os.environ.get("SEGUE_COMMAND", "segue")
generations = ("h13", "h14", "h15", "h16", "h17")
texts = {}
INFO = '[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc-version", "3505.4.1"}})]'


def text(name, verdict, source, params, body, results, target="ios16", info=True):
    lines = [f"// verdict: {verdict}", f"// source: {source}", "program(1.0)"] + ([INFO] if info else []) + ["{"]
    lines += [f"    func main<{target}>({params}) {{"] + ["        " + l for l in body] + [f"    }} -> ({results});", "}", ""]
    texts[name + ".mil"] = "\n".join(lines)


def T(s): return f"tensor<fp16, [{s}]>"
def const(ty,name,val): return f'{ty} {name} = const()[name = tensor<string, []>("{name}"), val = {ty}({val})];'
I="tensor<int32, []>"; B="tensor<bool, []>"
ALL=" ".join(f"h{g}={{}}" for g in (13,14,15,16,17))
def all_(v): return ALL.replace("{}",v)
A="a_in"; P=T("1, 64, 1, 64")+" a_in"
C="H, compiler of macOS 26.6.2"
text("comments",all_("accept"),"H: texts with comments compile",P,["// a comment",f"{T('1, 64, 1, 64')} z = relu(x = a_in); // and another"],"z")
text("short_rows","h13=accept h14=accept h16=accept",C+": [1, C, 1, 1]; an M5 may differ (MX, pull request 35)",T("1, 64, 1, 1")+" a_in",[f"{T('1, 64, 1, 1')} z = relu(x = a_in);"],"z")
text("odd_channels","h14=accept h16=accept h17=accept",C+": C of 96, 200, 300",T("1, 200, 1, 64")+" a_in",[f"{T('1, 200, 1, 64')} z = relu(x = a_in);"],"z")
conv=[const(T("64, 64, 1, 1"),"w","0x1p-6"),const("tensor<string, []>","pt",'"valid"'),const("tensor<int32, [2]>","st","[1, 1]"),const("tensor<int32, [4]>","pd","[0, 0, 0, 0]"),const(I,"gr","1")]
text("bias_blob","h13=accept h14=accept",C+", oracle-diff",P,conv+[const(T("64"),"b",'BLOBFILE(path = tensor<string, []>("@model_path/weights/bias.bin"), offset = tensor<uint64, []>(64))'),f"{T('1, 64, 1, 64')} z = conv(x = a_in, weight = w, bias = b, strides = st, pad_type = pt, pad = pd, dilations = st, groups = gr);"],"z")
text("bias_inline",all_("refuse:12"),"OR 15",P,conv+[const(T("64"),"b","0x1p-1"),f"{T('1, 64, 1, 64')} z = conv(x = a_in, weight = w, bias = b, strides = st, pad_type = pt, pad = pd, dilations = st, groups = gr);"],"z")
ax=const("tensor<int32, [1]>","ax","[1]")
text("keep_dims_inline",all_("accept"),C,P,[ax,f"{T('1, 1, 1, 64')} s = reduce_sum(x = a_in, axes = ax, keep_dims = {B}(true));",f"{T('1, 64, 1, 64')} z = sub(x = a_in, y = s);"],"z")
k=const(B,"k","true")
text("reduce_mean_ios18",all_("accept"),C+"; ES issue 18 differs",P,[ax,k,f"{T('1, 1, 1, 64')} s = reduce_mean(x = a_in, axes = ax, keep_dims = k);",f"{T('1, 64, 1, 64')} z = sub(x = a_in, y = s);"],"z","ios18")
for n in (50,375):
    text(f"softmax_{n}","h14=accept h16=accept",C+"; ES differs (257)",T(f"1, 64, 1, {n}")+" a_in",[const(I,"ax","3"),f"{T(f'1, 64, 1, {n}')} z = softmax(x = a_in, axis = ax);"],"z")
text("seven_outputs",all_("accept"),C+": 7 to 10 outputs, all right",P,[f"{T('1, 64, 1, 64')} z{i} = relu(x = a_in);" for i in range(7)],", ".join(f"z{i}" for i in range(7)))
text("eleven_inputs",all_("accept"),C,", ".join(f"{T('1, 64, 1, 64')} a{i:02d}" for i in range(11)),[f"{T('1, 64, 1, 64')} s{i:02d} = add(x = {'a00' if i==1 else f's{i-1:02d}'}, y = a{i:02d});" for i in range(1,11)],"s10")
off=const(B,"no","false")
for rows,v in ((64,all_("accept")),(128,"h13=refuse:49 h14=refuse:49")):
    # channels of 32 on an M1: rows in the channel axis would be 1, so the batch of matrices is 32 rows high
    text(f"product_{rows}x8192",v.replace("h13=accept ",""),C+", oracle-envelope 6",T(f"1, 32, {rows}, 8192")+" a_in",[off,const(T("1, 1, 8192, 64"),"w","0x1p-10"),f"{T(f'1, 32, {rows}, 64')} z = matmul(x = a_in, y = w, transpose_x = no, transpose_y = no);"],"z")
text("input_named_state",all_("refuse:50"),C+": InvalidMILProgram",T("1, 64, 1, 64")+" state",[f"{T('1, 64, 1, 64')} z = relu(x = state);"],"z")
text("log_without_epsilon",all_("refuse:11"),C,P,[f"{T('1, 64, 1, 64')} z = log(x = a_in);"],"z")
text("log_short_rows","h13=refuse:11 h14=refuse:11 h16=refuse:11",C+": the reason is the missing epsilon",T("1, 64, 1, 1")+" a_in",[f"{T('1, 64, 1, 1')} z = log(x = a_in);"],"z")
text("clip_fp32_bounds",all_("refuse:53"),C,P,[const("tensor<fp32, []>","lo","-1"),const("tensor<fp32, []>","hi","1"),f"{T('1, 64, 1, 64')} z = clip(x = a_in, alpha = lo, beta = hi);"],"z")
text("real_div_fp32",all_("refuse:0"),C,P,[const("tensor<fp32, []>","by","2"),f"{T('1, 64, 1, 64')} z = real_div(x = a_in, y = by);"],"z")
text("gather_constant",all_("refuse:10"),"IM",P,[const("tensor<int32, [64]>","at","5"),const(I,"ax","1"),f"{T('1, 64, 1, 64')} z = gather(x = a_in, indices = at, axis = ax);"],"z")
text("no_build_info",all_("refuse:51"),"H",P,[f"{T('1, 64, 1, 64')} z = relu(x = a_in);"],"z",info=False)
text("tile_32","h13=accept h14=accept h16=accept","H: 28 texts",T("1, 64, 1, 2")+" a_in",[const("tensor<int32, [4]>","by","[1, 1, 1, 32]"),f"{T('1, 64, 1, 64')} z = tile(x = a_in, reps = by);"],"z")
il=const(B,"no","false"); 
text("concat_of_one",all_("accept"),"H: 9 texts",P,[il,const(I,"ax","1"),f"{T('1, 64, 1, 64')} z = concat(values = (a_in), axis = ax, interleave = no);"],"z")
text("concat_negative_axis",all_("refuse:9"),"AG chapter 17",P,[il,const(I,"ax","-3"),f"{T('1, 128, 1, 64')} z = concat(values = (a_in, a_in), axis = ax, interleave = no);"],"z")
text("product_row_65536","h16=accept h17=accept","H: 28 texts",T("1, 1, 32, 64")+" a_in",[off,const(T("1, 1, 64, 65536"),"w","0x1p-10"),const("tensor<int32, [4]>","at","[0, 0, 0, 0]"),const("tensor<int32, [4]>","of","[1, 1, 32, 64]"),f"{T('1, 1, 32, 65536')} m = matmul(x = a_in, y = w, transpose_x = no, transpose_y = no);",f"{T('1, 1, 32, 64')} z = slice_by_size(x = m, begin = at, size = of);"],"z")
for mode in ("EXACT","TANH_APPROXIMATION","SIGMOID_APPROXIMATION"):
    text(f"gelu_{mode.split('_')[0].lower()}",all_("accept"),C+"; OR 10 differs",P,[const("tensor<string, []>","mode",f'"{mode}"'),f"{T('1, 64, 1, 64')} z = gelu(x = a_in, mode = mode);"],"z")
text("rank_2","h14=accept h16=accept h17=accept",C+": ranks 2 and 3 at borders",T("32, 64")+" a_in",[f"{T('32, 64')} z = relu(x = a_in);"],"z")
text("rank_3","h14=accept h16=accept h17=accept",C+": ranks 2 and 3 at borders",T("2, 32, 64")+" a_in",[f"{T('2, 32, 64')} z = relu(x = a_in);"],"z")
text("constexpr_private",all_("refuse:52"),"H: fails in a text, compiles in a package",P,[const("tensor<int8, [64, 64, 1, 1]>","q","3"),const(T("64, 1, 1, 1"),"s","0x1p-9"),f"{T('64, 64, 1, 1')} w = constexpr_blockwise_shift_scale(data = q, scale = s);"]+conv[1:]+[f"{T('1, 64, 1, 64')} z = conv(x = a_in, weight = w, strides = st, pad_type = pt, pad = pd, dilations = st, groups = gr);"],"z","ios18")


def write(folder):
    os.makedirs(os.path.join(folder, "weights"), exist_ok=True)
    for name, content in texts.items():
        with open(os.path.join(folder, name), "w") as f: f.write(content)
    data = struct.pack("<64e", *([0.5] * 64))
    with open(os.path.join(folder, "weights", "bias.bin"), "wb") as f:
        f.write(struct.pack("<II", 1, 2) + bytes(56) + struct.pack("<IIQQQ", 0xDEADBEEF, 1, len(data), 128, 0) + bytes(32) + data)


def stated(folder):
    """(path, generation, verdict) of the texts of a folder that state them."""
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".mil"): continue
        with open(os.path.join(folder, name)) as f: first = f.readline()
        for generation, verdict in re.findall(r"(h\d\d)=(\S+)", first): yield os.path.join(folder, name), generation, verdict


def verdict_of(path, generation):
    """(accepted, numbers of the broken rules); None: no verdict, the file cannot be read."""
    r = subprocess.run([command, "mil", "check", path, "--profile", generation, "--json"], capture_output=True, text=True)
    if r.returncode not in (0, 6): return None, r.stdout + r.stderr
    return r.returncode == 0, [v["constraint"] for v in json.loads(r.stdout)["violations"]]


def check(cases):
    bad = 0
    by = {}
    for path, generation, verdict in cases:
        accepted, rules = verdict_of(path, generation)
        wanted, _, rule = verdict.partition(":")
        # The first rule that is named is the reason that a user reads first.
        same = accepted == (wanted == "accept") and (not rule or rules[:1] == [int(rule)])
        agreed, all_n = by.get(generation, (0, 0))
        by[generation] = (agreed + same, all_n + 1)
        if not same: print(f"{generation} {path}: expected {verdict}, found {'accept' if accepted else 'refuse'} {rules}")
    for generation, (agreed, n) in sorted(by.items()):
        print(f"{generation}: {agreed} of {n} verdicts agree")
        bad |= agreed < 0.95 * n
    return bad or not by


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"] and len(sys.argv) == 3:
        write(sys.argv[2])
    elif sys.argv[1:2] == ["--check"] and len(sys.argv) == 4:
        with open(sys.argv[3], newline="") as f:
            sys.exit(check([(os.path.join(sys.argv[2], r[0]), r[1].strip(), r[2].strip()) for r in csv.reader(f) if r]))
    elif len(sys.argv) > 1:
        sys.exit(__doc__)
    elif not os.path.exists(command):
        print("SKIP conformance: the command is not built")
        sys.exit(77)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write(folder)
            bad = check(stated(folder))
            rules = json.loads(subprocess.run([command, "mil", "rules", "--json"], capture_output=True, text=True).stdout)["rules"]
            if [r["number"] for r in rules] != sorted(r["number"] for r in rules) or not all(r["sources"] for r in rules):
                bad = print("the table of rules is not in order") or 1
        sys.exit(1 if bad else 0)
