"""MIL texts with the verdicts of engines' compilers, for conformance.py. All texts are written here, after published reports of
what was compiled; none is copied. The first line of a text has its verdicts, the second their source, and the third the rule of
which it is one side. A source that begins with "compiler" is a record of Apple's compiler: H, that is joshuaswarren/
mil-hwx-compiler, macOS 26.6.2 on an M1 Ultra (research/oracle-envelope.md, oracle-diff.md, h14-model-gap-findings.md: 548, 470 and
66 compiles for H13 and H14; 316 of them repeated for H15 to H18, with the same result). Other sources are reports (docs/ANE.md).
Not stated for H13: what its compiler takes, while an M1 returned zeros for it (rules 4 and 26, IK). Left out: refusals that came from
misplaced blob records (`transpose_y = false`, real_div with a blob) or from an untyped `true` (reductions over C alone).
SPDX-License-Identifier: MIT"""
import os, struct

INFO = '[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc-version", "3505.4.1"}})]'
generations = ("h13", "h14", "h15", "h16", "h17")
texts, blobs = {}, {}
C, A1, A2, GAP = "compiler, H", "compiler, H oracle-diff", "compiler, H oracle-envelope", "compiler, H h14-model-gap-findings"


def text(name, verdict, source, params, body, results="z", target="ios16", info=True, rule=None):
    """verdict: `accept` or `refuse:12` for all generations, or `h13=accept h14=...`."""
    if "=" not in verdict: verdict = " ".join(f"{g}={verdict}" for g in generations)
    lines = [f"// verdict: {verdict}", f"// source: {source}"] + ([f"// rule: {rule}"] if rule else []) + ["program(1.0)"]
    lines += ([INFO] if info else []) + ["{", f"    func main<{target}>({params}) {{"] + ["        " + l for l in body]
    texts[name + ".mil"] = "\n".join(lines + [f"    }} -> ({results});", "}", ""])


def T(s): return f"tensor<fp16, [{s}]>"
def const(ty, name, val): return f'{ty} {name} = const()[name = tensor<string, []>("{name}"), val = {ty}({val})];'
def ints(name, *v): return const(f"tensor<int32, [{len(v)}]>", name, f"[{', '.join(map(str, v))}]")


def blob(name, shape):
    """A constant from a file of its own, all 2^-6."""
    n = 1
    for d in shape.split(","): n *= int(d)
    blobs[f"w{n}.bin"] = n
    return const(T(shape), name, f'BLOBFILE(path = tensor<string, []>("@model_path/weights/w{n}.bin"), offset = tensor<uint64, []>(64))')


def only(verdict, *which): return " ".join(f"{g}={verdict}" for g in which)


I, B, S = "tensor<int32, []>", "tensor<bool, []>", "tensor<string, []>"
X = "1, 64, 1, 64"
P, Z = T(X) + " a_in", T(X) + " z"
OLD, LATER = ("h13", "h14"), ("h14", "h15", "h16", "h17")
both, no, yes = only("accept", *OLD), const(B, "no", "false"), const(B, "yes", "true")
ax1, ax3 = const(I, "ax", "1"), const(I, "ax", "3")


def attrs(stride=1, groups=1, pads=(0, 0)):
    """pads: columns before and after."""
    return [const(S, "pt", '"custom"' if pads[1] else '"valid"'), ints("st", stride, stride), ints("pd", 0, 0, *pads), const(I, "gr", groups), ints("dl", 1, 1)]


def conv(out, name="z", x="a_in", w="w", more=""):
    return f"{T(out)} {name} = conv(x = {x}, weight = {w}{more}, strides = st, pad_type = pt, pad = pd, dilations = dl, groups = gr);"


def matmul(out, x, y, tx="no", ty="no", name="z"):
    return f"{T(out)} {name} = matmul(x = {x}, y = {y}, transpose_x = {tx}, transpose_y = {ty});"


# Rule by rule: the side that engines take and the side that they do not.
text("rows_of_128_bytes", "accept", "MX pull request 35 (M5)", T("1, 32, 1, 64") + " a_in", [f"{T('1, 32, 1, 64')} z = relu(x = a_in);"], rule=1)
text("rows_of_64_bytes", "h13=accept h14=accept h16=accept h17=refuse:1", "MX pull request 35 (M5)", T("1, 32, 1, 32") + " a_in",
     [f"{T('1, 32, 1, 32')} z = relu(x = a_in);"], rule=1)
text("short_rows", "h13=accept h14=accept h16=accept", C + ": [1, C, 1, 1]; an M5 may differ (MX, pull request 35)", T("1, 64, 1, 1") + " a_in",
     [f"{T('1, 64, 1, 1')} z = relu(x = a_in);"])
pair = [T("1, 32, 1, 64") + " a", T("1, 64, 1, 64") + " b"]
sums = [f"{T('1, 32, 1, 64')} y = relu(x = a);", f"{T('1, 64, 1, 64')} z = relu(x = b);"]
text("inputs_rising", "accept", "IK: inputs of rising, outputs of falling size", ", ".join(pair), sums, "z, y", rule=4)
text("inputs_falling", "h13=refuse:4", "IK", f"{T(X)} a, {T('1, 32, 1, 64')} b", [f"{T('1, 32, 1, 64')} y = relu(x = b);", f"{Z} = relu(x = a);"], "z, y", rule=4)
text("concat", "accept", "AG chapter 17; AL", P, [no, ax1, f"{T('1, 128, 1, 64')} z = concat(values = (a_in, a_in), axis = ax, interleave = no);"], rule=9)
text("concat_negative_axis", "refuse:9", "AG chapter 17", P,
     [no, const(I, "ax", "-3"), f"{T('1, 128, 1, 64')} z = concat(values = (a_in, a_in), axis = ax, interleave = no);"], rule=9)
text("concat_of_one", "accept", C + ": 9 texts", P, [no, ax1, f"{Z} = concat(values = (a_in), axis = ax, interleave = no);"])
text("tanh", "accept", A1, P, [f"{Z} = tanh(x = a_in);"], rule=10)
text("gather_constant", "refuse:10", "IM", P, [const("tensor<int32, [64]>", "at", "5"), ax1, f"{Z} = gather(x = a_in, indices = at, axis = ax);"], rule=10)
eps = const("tensor<fp16, []>", "e", "0x1p-14")
for op in ("log", "rsqrt", "inverse"):
    text(f"{op}_epsilon", "accept", A1 if op != "inverse" else "IM", P, [eps, f"{Z} = {op}(x = a_in, epsilon = e);"], rule=11)
text("log_without_epsilon", "refuse:11", C, P, [f"{Z} = log(x = a_in);"], rule=11)
text("rsqrt_without_epsilon", "refuse:11", "IM; ES and IK: rsqrt fails", P, [f"{Z} = rsqrt(x = a_in);"], rule=11)
text("log_short_rows", "h13=refuse:11 h14=refuse:11 h16=refuse:11", C + ": the reason is the missing epsilon", T("1, 64, 1, 1") + " a_in",
     [f"{T('1, 64, 1, 1')} z = log(x = a_in);"])
w64 = blob("w", "64, 64, 1, 1")
text("bias_blob", "accept", A2 + ": 12 convolutions", P, [w64, blob("b", "64")] + attrs() + [conv(X, more=", bias = b")], rule=12)
text("bias_inline", "refuse:12", A1 + ": 6 convolutions; OR 15", P, [w64, const(T("64"), "b", "0x1p-1")] + attrs() + [conv(X, more=", bias = b")], rule=12)
text("softmax_named", "accept", A2, P, [ax3, f"{Z} = softmax(x = a_in, axis = ax);"], rule=13)
text("softmax_unnamed", "refuse:13", "OR; IM", P, [f"{Z} = softmax(x = a_in, axis = {I}(3));"], rule=13)
q = T("1, 32, 64, 64")
text("attention_op", "accept", "AG", q + " a_in", [f"{q} z = scaled_dot_product_attention(query = a_in, key = a_in, value = a_in);"], target="ios18", rule=14)
text("attention_op_mask", "refuse:14", "OR; MX: the mask has no effect", f"{q} a_in, {T('1, 1, 64, 64')} m",
     [f"{q} z = scaled_dot_product_attention(query = a_in, key = a_in, value = a_in, attn_mask = m);"], target="ios18", rule=14)
scale = blob("w", "1, 64, 1, 1")
text("blob_at_record", "accept", A2 + ": a constant per channel", P, [scale, f"{Z} = mul(x = a_in, y = w);"], rule=15)
text("blob_beside_record", "h13=refuse:15 h14=refuse:15 h15=refuse:15", "OR; H rms-gap: garbage in 64 channels", P,
     [scale.replace("(64)", "(96)"), f"{Z} = mul(x = a_in, y = w);"], rule=15)
text("result_computed", "accept", "OR", P, [f"{Z} = identity(x = a_in);"], rule=17)
text("result_is_input", "refuse:17", "OR; IM", P, [f"{Z} = identity(x = a_in);"], "a_in", rule=17)
text("port_fp32", "h13=refuse:23 h14=refuse:23 h15=accept h16=accept", "MX (M1, M2 refuse); IM (M3 takes it)", f"tensor<fp32, [{X}]> a_in",
     [const(S, "to", '"fp16"'), f"{Z} = cast(x = a_in, dtype = to);"], rule=23)
text("port_fp16", "accept", A1, P, [f"{Z} = relu(x = a_in);"], rule=23)
text("port_int32", "refuse:24", "IM", f"tensor<int32, [{X}]> a_in", [const(S, "to", '"fp16"'), f"{Z} = cast(x = a_in, dtype = to);"], rule=24)
text("port_bool", "accept", "IM", T("1, 64, 1, 128") + " a_in", ["tensor<bool, [1, 64, 1, 128]> z = greater(x = a_in, y = a_in);"], rule=24)
text("port_int4", "refuse:25", "IM", "tensor<int4, [1, 64, 1, 256]> a_in",
     [const(S, "to", '"fp16"'), f"{T('1, 64, 1, 256')} z = cast(x = a_in, dtype = to);"], rule=25)
text("port_no_int4", "accept", A1, P, [f"{Z} = abs(x = a_in);"], rule=25)
text("channels_64", "accept", A1, P, [f"{Z} = sigmoid(x = a_in);"], rule=26)
text("channels_33", "h13=refuse:26 h14=accept h16=accept", "IK (M1); H: odd channels are free", T("1, 33, 1, 64") + " a_in",
     [f"{T('1, 33, 1, 64')} z = relu(x = a_in);"], rule=26)
text("odd_channels", only("accept", "h14", "h16", "h17"), A2 + ": C of 96, 200, 300", T("1, 200, 1, 64") + " a_in", [f"{T('1, 200, 1, 64')} z = relu(x = a_in);"])
text("rank_5", "accept", "AG", T("1, 32, 2, 2, 64") + " a_in", [f"{T('1, 32, 2, 2, 64')} z = relu(x = a_in);"], rule=27)
text("rank_6", "refuse:27", "AG", T("1, 32, 1, 2, 2, 64") + " a_in", [f"{T('1, 32, 1, 2, 2, 64')} z = relu(x = a_in);"], rule=27)
for wide, verdict in ((13, "accept"), (16, "refuse:28")):
    text(f"kernel_of_{wide}", verdict, "AG: 13 wide on M1 to M3, 15 from M4", T("1, 32, 1, 64") + " a_in",
         [blob("w", f"32, 32, 1, {wide}")] + attrs(pads=((wide - 1) // 2, wide // 2)) + [conv("1, 32, 1, 64")], rule=28)
for n, verdict in ((64, only("accept", *generations)), (50, "h13=accept h14=accept h15=refuse:33 h16=accept"), (375, "h13=accept h14=accept h15=refuse:33 h16=accept")):
    text(f"softmax_{n}", verdict, A2 + " (H13, H14, H16); ES issue 257 (an M3)", T(f"1, 64, 1, {n}") + " a_in",
         [ax3, f"{T(f'1, 64, 1, {n}')} z = softmax(x = a_in, axis = ax);"], rule=33)


def computed(batch):
    return [ints("sh", 64, 64, 1, 1), f"{T('64, 64, 1, 1')} w = reshape(x = b_in, shape = sh);"] + attrs() + [conv(f"{batch}, 64, 1, 64")]


text("computed_weights", only("accept", "h13", "h14", "h16", "h17") + " h15=refuse:55", "AG; R (M3 Max ignores them)", f"{P}, {T('1, 64, 1, 64')} b_in", computed(1), rule=35)
text("computed_weights_batch", "refuse:35", "AG: the service ends", f"{T('2, 64, 1, 64')} b_in2, {T('1, 64, 1, 64')} b_in".replace("b_in2", "a_in"),
     computed(2), rule=35)
texts["computed_weights_batch.mil"] = texts["computed_weights_batch.mil"].replace("h13=refuse:35", "h13=refuse")   # 4 comes first on an M1
text("constant_weights_batch", "accept", "AG; H: batches", T("2, 64, 1, 64") + " a_in", [w64] + attrs() + [conv("2, 64, 1, 64")], rule=35)
text("flat_16384", "h13=accept h14=accept h16=accept", "AG", T("1, 16384") + " a_in", [f"{T('1, 16384')} z = relu(x = a_in);"], rule=36)
text("flat_16416", "h13=refuse", "AG: does not return", T("1, 16416") + " a_in", [f"{T('1, 16416')} z = relu(x = a_in);"], rule=36)
for rows in (1, 16, 32, 256, 512):
    text(f"product_{rows}x8192", only("accept", "h14") if rows < 32 else both, A2 + " section 2", T(f"1, 32, {rows}, 8192") + " a_in",
         [no, yes, blob("w", "1, 1, 64, 8192"), matmul(f"1, 32, {rows}, 64", "a_in", "w", ty="yes")], rule=49)
text("product_128x8192", only("refuse:49", *OLD), A2 + " section 6", T("1, 32, 128, 8192") + " a_in",
     [no, yes, blob("w", "1, 1, 64, 8192"), matmul("1, 32, 128, 64", "a_in", "w", ty="yes")], rule=49)
for k in (2048, 4096):
    text(f"product_128x{k}", both, A2 + " section 2", T(f"1, 32, 128, {k}") + " a_in",
         [no, yes, blob("w", f"1, 1, 64, {k}"), matmul("1, 32, 128, 64", "a_in", "w", ty="yes")], rule=49)
text("input_named_a", "accept", A1, P, [f"{Z} = square(x = a_in);"], rule=50)
text("input_named_state", "refuse:50", C + ": InvalidMILProgram", T(X) + " state", [f"{Z} = relu(x = state);"], rule=50)
scan, before = [], "state"
for i in range(4):
    scan += [f"{T('1, 1, 128, 128')} p{i} = mul(x = {before}, y = a{i});", f"{T('1, 1, 128, 128')} s{i} = add(x = p{i}, y = b{i});"]
    before = f"s{i}"
ports = [f"{T('1, 1, 128, 128')} {n}{i}" for i in range(4) for n in "ab"]
text("affine_scan", "refuse:50", C + ": InvalidMILProgram", ", ".join([T("1, 1, 128, 128") + " state"] + ports), scan, "s3", "ios18")
text("build_info", "accept", A1, P, [f"{Z} = silu(x = a_in);"], rule=51)
text("no_build_info", "refuse:51", C, P, [f"{Z} = relu(x = a_in);"], info=False, rule=51)
text("weights_fp16", "accept", A2, P, [w64] + attrs() + [conv(X)], rule=52)
text("constexpr_private", "refuse:52", C + ": fails in a text, compiles in a package", P,
     [const("tensor<int8, [64, 64, 1, 1]>", "q", "3"), const(T("64, 1, 1, 1"), "s", "0x1p-9"),
      f"{T('64, 64, 1, 1')} w = constexpr_blockwise_shift_scale(data = q, scale = s);"] + attrs() + [conv(X)], target="ios18", rule=52)
for ty, verdict, source in (("fp16", "accept", A1), ("fp32", "refuse:53", C)):
    text(f"clip_{ty}_bounds", verdict, source, P, [const(f"tensor<{ty}, []>", "lo", "-1"), const(f"tensor<{ty}, []>", "hi", "1"),
                                                  f"{Z} = clip(x = a_in, alpha = lo, beta = hi);"], rule=53)
text("tile_32", "h13=accept h14=accept h15=refuse:54 h16=accept", C + ": 28 texts; R (M3 Max: later evaluates fail)", T("1, 64, 1, 2") + " a_in",
     [ints("by", 1, 1, 1, 32), f"{T('1, 64, 1, 64')} z = tile(x = a_in, reps = by);"], rule=54)
text("no_tile", "accept", A1, P, [f"{Z} = exp(x = a_in);"], rule=54)
text("constant_weights", "accept", A2, P, [blob("w", "64, 64, 1, 1")] + attrs() + [conv(X)], rule=55)

# Forms that Apple's compiler was given.
text("comments", "accept", C + ": texts with comments", P, ["// a comment", f"{Z} = relu(x = a_in); // and another"])
text("keep_dims_inline", "accept", C, P, [ints("ax", 1), f"{T('1, 1, 1, 64')} s = reduce_sum(x = a_in, axes = ax, keep_dims = {B}(true));", f"{Z} = sub(x = a_in, y = s);"])
text("reduce_mean_ios18", "accept", C + "; ES issue 18 differs", P,
     [ints("ax", 1), yes, f"{T('1, 1, 1, 64')} s = reduce_mean(x = a_in, axes = ax, keep_dims = yes);", f"{Z} = sub(x = a_in, y = s);"], target="ios18")
text("seven_outputs", "accept", C + ": 7 to 10 outputs, all right", P, [f"{Z}{i} = relu(x = a_in);" for i in range(7)], ", ".join(f"z{i}" for i in range(7)))
text("eleven_inputs", "accept", C, ", ".join(f"{T(X)} a{i:02d}" for i in range(11)),
     [f"{T(X)} s{i:02d} = add(x = {'a00' if i == 1 else f's{i - 1:02d}'}, y = a{i:02d});" for i in range(1, 11)], "s10")
text("real_div_fp32", "refuse:0", C, P, [const("tensor<fp32, []>", "by", "2"), f"{Z} = real_div(x = a_in, y = by);"])
text("inline_list", "refuse:0", A1 + ": 12 operations with inline tensors", T("1, 2, 1, 64") + " a_in",
     [const(T("1, 2, 1, 1"), "w", f"[{T('')}(1), {T('')}(2)]"), f"{T('1, 2, 1, 64')} z = mul(x = a_in, y = w);"])
text("scalar_constant", "accept", A1 + ": 12 operations", P, [const(T(""), "c", "0.5"), f"{Z} = mul(x = a_in, y = c);"])
text("product_row_65536", only("accept", "h16", "h17"), C + ": 28 texts", T("1, 1, 32, 64") + " a_in",
     [no, const(T("1, 1, 64, 65536"), "w", "0x1p-10"), ints("at", 0, 0, 0, 0), ints("of", 1, 1, 32, 64), matmul("1, 1, 32, 65536", "a_in", "w", name="m"),
      f"{T('1, 1, 32, 64')} z = slice_by_size(x = m, begin = at, size = of);"])
for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"):
    text(f"gelu_{mode.split('_')[0].lower()}", "accept", A2 + "; OR 10 differs", P, [const(S, "mode", f'"{mode}"'), f"{Z} = gelu(x = a_in, mode = mode);"])
text("rank_2", only("accept", "h14", "h16", "h17"), C + ": ranks 2 and 3 at borders", T("32, 64") + " a_in", [f"{T('32, 64')} z = relu(x = a_in);"])
text("rank_3", only("accept", "h14", "h16", "h17"), C + ": ranks 2 and 3 at borders", T("2, 32, 64") + " a_in", [f"{T('2, 32, 64')} z = relu(x = a_in);"])
for i, op in enumerate(("add", "mul", "sub", "maximum", "minimum", "real_div", "pow")):
    text(f"two_inputs_{op}", both, A1 + ": 70 operations of two inputs", f"{P}, {T(X)} b_in", [f"{Z} = {op}(x = a_in, y = b_in);"])
for name, other in (("channel", "1, 96, 1, 1"), ("plane", "1, 1, 8, 64"), ("scalar", "1, 1, 1, 1")):
    text(f"broadcast_{name}", only("accept", "h14"), A2 + " section 1", f"{T('1, 96, 8, 64')} a_in, {T(other)} b_in",
         [f"{T('1, 96, 8, 64')} z = add(x = a_in, y = b_in);"])
text("broadcast_batch", only("accept", "h14"), A2 + " section 1", f"{T('8, 64, 8, 64')} a_in, {T('1, 64, 1, 1')} b_in", [f"{T('8, 64, 8, 64')} z = add(x = a_in, y = b_in);"])
for tx in ("no", "yes"):
    for ty in ("no", "yes"):
        text(f"runtime_product_{tx}_{ty}", both, A2 + ": all four forms", f"{T('1, 32, 128, 128')} a_in, {T('1, 32, 128, 128')} b_in",
             [no, yes, matmul("1, 32, 128, 128", "a_in", "b_in", tx, ty)])
text("constant_left", only("accept", "h14"), A2 + ": constant x, runtime y", T("1, 1, 2048, 64") + " a_in",
     [no, blob("w", "1, 1, 32, 2048"), matmul("1, 1, 32, 64", "w", "a_in")])
for kernel, stride, groups in ((1, 1, 1), (3, 1, 1), (3, 2, 1), (1, 1, 4), (3, 1, 4), (3, 2, 4), (3, 1, 64)):
    side = 64 if stride == 1 else 128
    text(f"conv_k{kernel}_s{stride}_g{groups}", both, A2 + " section 3", T(f"1, 64, {side + kernel - 1}, {side + kernel - 1}") + " a_in",
         [blob("w", f"64, {64 // groups}, {kernel}, {kernel}")] + attrs(stride, groups) + [conv("1, 64, 64, 64")])
text("chain_feed_forward", only("accept", "h14"), A2 + " section 5", T("1, 1, 32, 256") + " a_in",
     [no, yes, blob("u", "1, 1, 512, 256"), blob("d", "1, 1, 256, 512"), const(S, "mode", '"EXACT"'), matmul("1, 1, 32, 512", "a_in", "u", ty="yes", name="m"),
      f"{T('1, 1, 32, 512')} g = gelu(x = m, mode = mode);", matmul("1, 1, 32, 256", "g", "d", ty="yes")])
text("chain_norm_product", only("accept", "h14"), A2 + " section 5", T("1, 1, 32, 256") + " a_in",
     [no, yes, ints("ax", 3), eps, blob("w", "1, 1, 256, 256"), f"{T('1, 1, 32, 256')} n = layer_norm(x = a_in, axes = ax, epsilon = e);", matmul("1, 1, 32, 256", "n", "w", ty="yes")])
h = "1, 32, 128, 128"
text("chain_attention", both, A2 + " section 5: three inputs", f"{T(h)} a_q, {T(h)} b_k, {T(h)} c_v",
     [no, yes, ax3, matmul(h, "a_q", "b_k", ty="yes", name="s"), f"{T(h)} p = softmax(x = s, axis = ax);", matmul(h, "p", "c_v")])
text("chain_residual", both, A2 + " section 5: x + relu(x)", P, [f"{T(X)} r = relu(x = a_in);", f"{Z} = add(x = a_in, y = r);"])
text("select_bool", only("accept", "h14"), GAP, f"{P}, {T(X)} b_in", [f"tensor<bool, [{X}]> c = greater(x = a_in, y = b_in);", f"{Z} = select(cond = c, a = a_in, b = b_in);"])
text("select_fp16", only("refuse:0", *OLD), GAP, f"{P}, {T(X)} b_in", [f"{Z} = select(cond = a_in, a = a_in, b = b_in);"])


def write(folder):
    """The texts and the files of their weights."""
    os.makedirs(os.path.join(folder, "weights"), exist_ok=True)
    for name, content in texts.items():
        with open(os.path.join(folder, name), "w") as f: f.write(content)
    for name, n in blobs.items():
        data = struct.pack("<e", 2.0 ** -6) * n
        with open(os.path.join(folder, "weights", name), "wb") as f:
            f.write(struct.pack("<II", 1, 2) + bytes(56) + struct.pack("<IIQQQ", 0xDEADBEEF, 1, len(data), 128, 0) + bytes(32) + data)
