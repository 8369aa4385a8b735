/* tokjson.c: reads tokenizer.json and tokenizer_config.json. Each part of the pipeline that a file asks for is either
 * implemented exactly or refused with its name; nothing is ignored silently.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "tensor/json.h"
#include "text/tokenizer/tokparts.h"

/* State of reading one file. what: its name for messages. */
struct json_reader {
    struct sg_tokenizer *t;
    const char *what;
    segue_error *err;
    int unk_missing; /* the unknown token is not in the vocabulary */
    int templates;    /* number of TemplateProcessing post-processors so far; at most one is supported */
    int byte_decoder; /* 1: the decoder is ByteLevel; 0: another one; -1: the file has none */
};

/* The error for a valid file with an unsupported setting. */
static segue_status unsupported(struct json_reader *r, const char *part, const char *name)
{
    return sg_fail(r->err, SEGUE_EUNSUPPORTED,
                   "read tokenizer: %s: %s \"%s\" is not supported; choose another model", r->what, part, name);
}

/* The error for a damaged file. */
static segue_status malformed(struct json_reader *r, const char *part)
{
    return sg_fail(r->err, SEGUE_EFORMAT,
                   "read tokenizer: %s: %s is missing or has the wrong type; fetch the file again", r->what,
                   part);
}

/* The "type" of a pipeline step; "" when it has none. */
static const char *type_of(const json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "";
}

/* 1: the type of o is `type`. */
static int is_type(const json_t *o, const char *type) { return strcmp(type_of(o), type) == 0; }

/* Copy a string, which may contain NULs, into the tokenizer's arena. */
static segue_status copy_text(struct json_reader *r, const json_t *v, const char *part, const char **out,
                              size_t *len)
{
    if (!json_is_string(v)) return malformed(r, part);
    *len = json_string_length(v);
    *out = sg_arena_strndup(&r->t->arena, json_string_value(v), *len);
    return *out ? SEGUE_OK : sg_no_memory("tokenizer", *len, r->err);
}

typedef segue_status step_fn(struct json_reader *r, const json_t *o);

/* Call step for o, or for each member of a Sequence, whose array has the name `list`. Nested at most 8 deep. */
static segue_status for_each_step(struct json_reader *r, const json_t *o, const char *list, step_fn *step, int depth)
{
    /* the part is absent: no steps */
    if (!o || json_is_null(o)) return SEGUE_OK;
    if (!json_is_object(o) || depth > 8) return malformed(r, list);
    if (!is_type(o, "Sequence")) return step(r, o);
    const json_t *items = json_object_get(o, list);
    if (!json_is_array(items)) return malformed(r, list);
    for (size_t i = 0; i < json_array_size(items); i++)
        SG_TRY(for_each_step(r, json_array_get(items, i), list, step, depth + 1));
    return SEGUE_OK;
}

/* --- normalizers --- */

/* One normalizer. NFKC, Lowercase, StripAccents and others are used by no supported model family; they are refused
 * because an approximation would change tokens silently. */
static segue_status normalizer(struct json_reader *r, const json_t *o)
{
    struct sg_tokenizer *t = r->t;
    struct sg_normalizer n = {0};
    if (t->norms_n == SG_NORMS) return unsupported(r, "normalizer", "Sequence of more than 16");
    if (is_type(o, "NFC")) {
        n.kind = SG_NORM_NFC;
    } else if (is_type(o, "Prepend")) {
        n.kind = SG_NORM_PREPEND;
        SG_TRY(copy_text(r, json_object_get(o, "prepend"), "normalizer Prepend", &n.to, &n.to_len));
    } else if (is_type(o, "Replace")) {
        n.kind = SG_NORM_REPLACE;
        /* a pattern is {"String": text} or {"Regex": text} */
        const json_t *pattern = json_object_get(json_object_get(o, "pattern"), "String");
        if (!pattern) return unsupported(r, "normalizer", "Replace by regular expression");
        SG_TRY(copy_text(r, pattern, "normalizer Replace", &n.from, &n.from_len));
        SG_TRY(copy_text(r, json_object_get(o, "content"), "normalizer Replace", &n.to, &n.to_len));
        if (!n.from_len) return malformed(r, "normalizer Replace: pattern");
    } else if (is_type(o, "Strip")) {
        n.kind = SG_NORM_STRIP;
        SG_TRY(sg_json_bool(o, "strip_left", 1, &n.left, r->what, r->err));
        SG_TRY(sg_json_bool(o, "strip_right", 1, &n.right, r->what, r->err));
    } else {
        return unsupported(r, "normalizer", type_of(o));
    }
    t->norms[t->norms_n++] = n;
    return SEGUE_OK;
}

/* --- pre-tokenizers --- */

/* Append a splitter; it is freed on error. ByteLevel maps text to the byte alphabet, so a step after it would see other
 * characters than here. */
static segue_status add_split(struct json_reader *r, struct sg_split split)
{
    struct sg_tokenizer *t = r->t;
    if (t->splits_n == SG_SPLITS || t->byte_level) {
        sg_split_free(&split);
        return unsupported(r, "pre_tokenizer",
                           t->byte_level ? "steps after ByteLevel" : "Sequence of more than 16");
    }
    /* sg_tokenizer_close frees it from here on */
    t->splits[t->splits_n++] = split;
    return SEGUE_OK;
}

/* The behavior of a Split for its matches. Of the inverted ones only "Removed" is used by models: it keeps the
 * matches and drops the rest. */
static segue_status read_rule(struct json_reader *r, const json_t *o, enum sg_split_rule *rule)
{
    static const char *const names[] = {"Isolated",           "Removed",        "",
                                        "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name;
    int invert;
    SG_TRY(sg_json_text(o, "behavior", "Isolated", &name, r->what, r->err));
    SG_TRY(sg_json_bool(o, "invert", 0, &invert, r->what, r->err));
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (!*name || strcmp(name, names[i]) != 0) continue;
        /* names[] is in the order of sg_split_rule; KEPT has no name of its own */
        *rule = invert && i == SG_RULE_REMOVED ? SG_RULE_KEPT : (enum sg_split_rule)i;
        return invert && i > SG_RULE_REMOVED ? unsupported(r, "pre_tokenizer Split, inverted,", name)
                                             : SEGUE_OK;
    }
    return unsupported(r, "pre_tokenizer Split behavior", name);
}

/* A Split by a literal text or a regular expression. */
static segue_status splitter(struct json_reader *r, const json_t *o)
{
    struct sg_split split = {.kind = SG_SPLIT_LITERAL};
    enum sg_split_rule rule = SG_RULE_ISOLATED;
    const json_t *pattern = json_object_get(o, "pattern"), *text = json_object_get(pattern, "String");
    SG_TRY(read_rule(r, o, &rule));
    if (text) {
        SG_TRY(copy_text(r, text, "pre_tokenizer Split: pattern", &split.text, &split.len));
        if (!split.len) return malformed(r, "pre_tokenizer Split: pattern");
    } else {
        text = json_object_get(pattern, "Regex");
        if (!json_is_string(text)) return malformed(r, "pre_tokenizer Split: pattern");
        SG_TRY(
            sg_split_of_pattern(&split, json_string_value(text), json_string_length(text), r->what, r->err));
        /* The scanners match all of a text without gaps, so only rules that keep each match apart are valid. */
        if (split.kind != SG_SPLIT_REGEX && rule != SG_RULE_ISOLATED && rule != SG_RULE_KEPT)
            return unsupported(r, "pre_tokenizer Split", "behavior that joins or drops every piece");
    }
    split.rule = rule;
    return add_split(r, split);
}

/* *prepend: see sg_split. The default is "always"; older files have add_prefix_space instead. */
static segue_status read_prepend(struct json_reader *r, const json_t *o, int *prepend)
{
    const char *scheme;
    int space;
    SG_TRY(sg_json_bool(o, "add_prefix_space", 1, &space, r->what, r->err));
    SG_TRY(sg_json_text(o, "prepend_scheme", space ? "always" : "never", &scheme, r->what, r->err));
    *prepend = strcmp(scheme, "always") == 0 ? 2 : strcmp(scheme, "first") == 0 ? 1 : 0;
    return *prepend || strcmp(scheme, "never") == 0 ? SEGUE_OK
                                                    : unsupported(r, "Metaspace prepend_scheme", scheme);
}

/* Newer Llama and Mistral files replace spaces by U+2581 here instead of in a normalizer. */
static segue_status metaspace(struct json_reader *r, const json_t *o)
{
    struct sg_split split = {.kind = SG_SPLIT_META};
    const char *mark;
    int cuts;
    SG_TRY(sg_json_text(o, "replacement", "\xe2\x96\x81", &mark, r->what, r->err));
    if (strcmp(mark, "\xe2\x96\x81") != 0) return unsupported(r, "Metaspace replacement", mark);
    SG_TRY(sg_json_bool(o, "split", 1, &cuts, r->what, r->err));
    SG_TRY(read_prepend(r, o, &split.prepend));
    /* split = false: only replace spaces */
    split.whole = !cuts;
    return add_split(r, split);
}

/* One pre-tokenizer. ByteLevel may add a space in front and split by GPT-2's pattern, then maps bytes. */
static segue_status pre_tokenizer(struct json_reader *r, const json_t *o)
{
    int yes;
    if (is_type(o, "Split")) return splitter(r, o);
    if (is_type(o, "Metaspace")) return metaspace(r, o);
    if (is_type(o, "Digits")) {
        SG_TRY(sg_json_bool(o, "individual_digits", 0, &yes, r->what, r->err));
        return add_split(r, (struct sg_split){.kind = yes ? SG_SPLIT_DIGIT : SG_SPLIT_DIGITS});
    }
    if (!is_type(o, "ByteLevel")) return unsupported(r, "pre_tokenizer", type_of(o));
    SG_TRY(sg_json_bool(o, "add_prefix_space", 1, &yes, r->what, r->err));
    /* the order of ByteLevel: space, pattern, bytes */
    if (yes) SG_TRY(add_split(r, (struct sg_split){.kind = SG_SPLIT_SPACE_FIRST}));
    SG_TRY(sg_json_bool(o, "use_regex", 1, &yes, r->what, r->err));
    if (yes) SG_TRY(add_split(r, (struct sg_split){.kind = SG_SPLIT_GPT2}));
    r->t->byte_level = 1;
    return SEGUE_OK;
}

/* The name of a chain of splitters, for display and for GGUF; NULL if it has none. */
static const char *pre_name(const struct sg_tokenizer *t)
{
    static const char *const names[] = {"gpt2", "llama3", "qwen2", "qwen35"};
    const struct sg_split *s = t->splits;
    uint32_t n = t->splits_n;
    for (uint32_t i = 0; i < n; i++)
        if (s[i].kind == SG_SPLIT_REGEX) return "regex";
    /* a leading space does not change the name */
    if (n && s[0].kind == SG_SPLIT_SPACE_FIRST) s++, n--;
    if (n == 2 && s[0].kind == SG_SPLIT_DIGIT && s[1].kind == SG_SPLIT_GPT2) return "smollm";
    return n == 1 && s[0].kind <= SG_SPLIT_QWEN35 ? names[s[0].kind] : NULL;
}

/* --- decoders --- */

/* Decoders are not run in sequence. Each accepted chain is equivalent to the byte alphabet, or to U+2581 and <0xXX>
 * with or without dropping one space in front; other chains are refused. */
static segue_status decoder(struct json_reader *r, const json_t *o)
{
    int64_t start, stop;
    int prepend;
    const char *text = json_string_value(json_object_get(o, "content"));
    const char *from = json_string_value(json_object_get(json_object_get(o, "pattern"), "String"));
    if (is_type(o, "ByteLevel")) {
        r->byte_decoder = 1;
        return SEGUE_OK;
    }
    /* a further decoder does not reset the flag */
    r->byte_decoder = r->byte_decoder == 1;
    if (is_type(o, "ByteFallback") || is_type(o, "Fuse")) return SEGUE_OK;
    if (is_type(o, "Replace") && from && text && strcmp(from, "\xe2\x96\x81") == 0 && strcmp(text, " ") == 0)
        return SEGUE_OK;
    if (is_type(o, "Metaspace")) {
        SG_TRY(read_prepend(r, o, &prepend));
        r->t->strip_space = prepend != 0;
        return SEGUE_OK;
    }
    if (!is_type(o, "Strip") || !text || strcmp(text, " ") != 0) return unsupported(r, "decoder", type_of(o));
    SG_TRY(sg_json_int(o, "start", 0, &start, r->what, r->err));
    SG_TRY(sg_json_int(o, "stop", 0, &stop, r->what, r->err));
    if (start < 0 || start > 1 || stop)
        return unsupported(r, "decoder", "Strip of more than one space in front");
    r->t->strip_space = start == 1;
    return SEGUE_OK;
}

/* --- post-processors --- */

/* Append an id that is put before or after every text. */
static segue_status add_end(struct json_reader *r, int after, int64_t id)
{
    struct sg_tokenizer *t = r->t;
    uint32_t *n = after ? &t->after_n : &t->before_n;
    if (id < 0 || id >= t->tokens_n) return malformed(r, "post_processor: a special token's id");
    if (*n == SG_ENDS) return unsupported(r, "post_processor", "TemplateProcessing with more than 16 tokens");
    (after ? t->after : t->before)[(*n)++] = (int32_t)id;
    return SEGUE_OK;
}

/* Only the template for a single text is used. Its $A separates the tokens before the text from those after it. */
static segue_status post_processor(struct json_reader *r, const json_t *o)
{
    if (is_type(o, "ByteLevel")) return SEGUE_OK; /* offsets only */
    if (!is_type(o, "TemplateProcessing") || r->templates++)
        return unsupported(r, "post_processor", type_of(o));
    const json_t *single = json_object_get(o, "single"), *specials = json_object_get(o, "special_tokens");
    int after = 0;
    if (!json_is_array(single)) return malformed(r, "post_processor: single");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *special = json_object_get(json_array_get(single, i), "SpecialToken");
        /* {"Sequence": {"id": "A"}}, the text itself */
        if (!special) {
            after = 1;
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
        if (!json_is_array(ids)) return malformed(r, "post_processor: special_tokens");
        for (size_t k = 0; k < json_array_size(ids); k++) {
            const json_t *id = json_array_get(ids, k);
            SG_TRY(add_end(r, after, json_is_integer(id) ? json_integer_value(id) : -1));
        }
    }
    return SEGUE_OK;
}

/* --- model and tokens --- */

/* *n: highest id + 1 of the vocabulary and the added tokens. EFORMAT when the ids have absurdly large gaps, as
 * arrays are allocated by id. */
static segue_status count_ids(struct json_reader *r, const json_t *vocab, const json_t *added, size_t *n)
{
    int64_t high = -1;
    size_t count = json_object_size(vocab) + json_array_size(added);
    const char *key;
    json_t *v, *copy = NULL;
    memcpy(&copy, &vocab, sizeof copy); /* jansson's iterator takes a non-const pointer but does not write */
    json_object_foreach(copy, key, v)
    {
        if (!json_is_integer(v)) return malformed(r, "model.vocab: an id");
        if (json_integer_value(v) > high) high = json_integer_value(v);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *id = json_object_get(json_array_get(added, i), "id");
        if (!json_is_integer(id)) return malformed(r, "added_tokens: id");
        if (json_integer_value(id) > high) high = json_integer_value(id);
    }
    /* up to 65536 more ids than twice the tokens are padding */
    if (high >= 0 && (uint64_t)high > 2 * (uint64_t)count + 65536)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "read tokenizer: %s: highest id %lld, but only %zu tokens; fetch the file again",
                       r->what, (long long)high, count);
    *n = (size_t)(high + 1);
    return SEGUE_OK;
}

/* Index the model's tokens first, so that an added token with the same text gets the same id. */
static segue_status read_vocab(struct json_reader *r, const json_t *vocab, const json_t *added)
{
    size_t n = 0;
    const char *key;
    json_t *v, *copy = NULL;
    memcpy(&copy, &vocab, sizeof copy);
    SG_TRY(count_ids(r, vocab, added, &n));
    SG_TRY(sg_vocab_reserve(r->t, n, r->what, r->err));
    json_object_foreach(copy, key, v) SG_TRY(
        sg_vocab_put(r->t, json_integer_value(v), key, strlen(key), SG_TOKEN_NORMAL, 0, r->what, r->err));
    SG_TRY(sg_vocab_index(r->t, r->err));
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i), *text = json_object_get(a, "content");
        int64_t id = json_integer_value(json_object_get(a, "id"));
        int special;
        if (!json_is_string(text)) return malformed(r, "added_tokens: content");
        SG_TRY(sg_json_bool(a, "special", 0, &special, r->what, r->err));
        int32_t known = sg_vocab_find(r->t, json_string_value(text), json_string_length(text));
        if (known >= 0) id = known; /* as in the `tokenizers` library, the model's id takes precedence */
        SG_TRY(sg_vocab_put(r->t, id, json_string_value(text), json_string_length(text),
                            special ? SG_TOKEN_CONTROL : SG_TOKEN_USER, 0, r->what, r->err));
        /* not in model.vocab: merging must not produce it */
        r->t->tokens[id].outside = known < 0;
    }
    return sg_vocab_index(r->t, r->err);
}

/* One merge: "a b", split at the first space after the first byte, or ["a", "b"]. */
static segue_status read_merge(struct json_reader *r, const json_t *m, uint32_t rank)
{
    const char *left, *right;
    size_t left_len, right_len;
    if (json_is_string(m)) {
        left = json_string_value(m);
        size_t len = json_string_length(m);
        const char *space = len > 1 ? memchr(left + 1, ' ', len - 1) : NULL;
        if (!space) return malformed(r, "model.merges: an entry");
        left_len = (size_t)(space - left);
        right = space + 1;
        right_len = len - left_len - 1;
    } else {
        const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        if (!json_is_string(a) || !json_is_string(b) || json_array_size(m) != 2)
            return malformed(r, "model.merges: an entry");
        left = json_string_value(a);
        left_len = json_string_length(a);
        right = json_string_value(b);
        right_len = json_string_length(b);
    }
    return sg_merges_put(r->t, left, left_len, right, right_len, rank, 1, r->what, r->err);
}

/* The BPE model. Settings that change the result and that no supported family uses are refused, not ignored. */
static segue_status read_model(struct json_reader *r, const json_t *model, const json_t *added)
{
    static const char *const must_be_empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    struct sg_tokenizer *t = r->t;
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    const char *text;
    double dropout;
    int fallback, fuse, ignore;
    if (!json_is_object(model)) return malformed(r, "model");
    /* older files have no type */
    if (*type_of(model) && !is_type(model, "BPE")) return unsupported(r, "model", type_of(model));
    if (!json_is_object(vocab) || !json_is_array(merges)) return malformed(r, "model.vocab or model.merges");
    SG_TRY(sg_json_real(model, "dropout", 0, &dropout, r->what, r->err));
    if (dropout != 0) return unsupported(r, "model setting", "dropout");
    for (size_t i = 0; i < 2; i++) {
        SG_TRY(sg_json_text(model, must_be_empty[i], "", &text, r->what, r->err));
        if (*text) return unsupported(r, "model setting", must_be_empty[i]);
    }
    SG_TRY(sg_json_bool(model, "byte_fallback", 0, &fallback, r->what, r->err));
    SG_TRY(sg_json_bool(model, "fuse_unk", 0, &fuse, r->what, r->err));
    SG_TRY(sg_json_bool(model, "ignore_merges", 0, &ignore, r->what, r->err));
    t->byte_fallback = fallback != 0;
    t->fuse_unk = fuse != 0;
    t->ignore_merges = ignore != 0;
    SG_TRY(read_vocab(r, vocab, added));
    /* merges are looked up by text, so the vocabulary comes first */
    SG_TRY(sg_merges_reserve(t, json_array_size(merges), r->err));
    for (size_t i = 0; i < json_array_size(merges); i++)
        SG_TRY(read_merge(r, json_array_get(merges, i), (uint32_t)i));
    SG_TRY(sg_json_text(model, "unk_token", NULL, &text, r->what, r->err));
    t->unk = text ? sg_vocab_find_model(t, text, strlen(text)) : -1;
    r->unk_missing = text && *text && t->unk < 0;
    return SEGUE_OK;
}

/* Added tokens with `normalized` are matched in normalized text, so that their texts pass the same steps. */
static segue_status normalized_text(struct json_reader *r, struct sg_added *a)
{
    struct sg_buf out[2] = {{0}, {0}};
    const char *s = a->text;
    size_t n = a->len;
    uint64_t budget = sg_text_budget(n);
    segue_status st = sg_normalize(r->t, &s, &n, out, &budget, r->err);
    if (st == SEGUE_OK) {
        a->text = sg_arena_strndup(&r->t->arena, s, n);
        a->len = (uint32_t)n;
        if (!a->text) st = sg_no_memory("tokenizer", n, r->err);
    }
    sg_buf_free(&out[0]);
    sg_buf_free(&out[1]);
    return st;
}

/* One added token. `normalized` defaults to true for tokens that are not special. */
static segue_status read_added(struct json_reader *r, const json_t *a, struct sg_added *out, int *normalized)
{
    const json_t *text = json_object_get(a, "content");
    int special, left, right, word;
    SG_TRY(sg_json_bool(a, "special", 0, &special, r->what, r->err));
    SG_TRY(sg_json_bool(a, "lstrip", 0, &left, r->what, r->err));
    SG_TRY(sg_json_bool(a, "rstrip", 0, &right, r->what, r->err));
    SG_TRY(sg_json_bool(a, "single_word", 0, &word, r->what, r->err));
    SG_TRY(sg_json_bool(a, "normalized", !special, normalized, r->what, r->err));
    int32_t id = sg_vocab_find(r->t, json_string_value(text), json_string_length(text));
    struct sg_vocab_token *k = &r->t->tokens[id];
    *out = (struct sg_added){.text = k->text,
                             .len = k->text_len,
                             .id = id,
                             .special = special != 0,
                             .lstrip = left != 0,
                             .rstrip = right != 0,
                             .single_word = word != 0};
    if (!*normalized) return SEGUE_OK;
    SG_TRY(normalized_text(r, out));
    k->bytes = out->text; /* it decodes to the text that it matches */
    k->bytes_len = out->len;
    return SEGUE_OK;
}

/* Two sets for the two searches of a text: in the raw text, then in the normalized text. */
static segue_status split_added(struct json_reader *r, const json_t *added)
{
    size_t n = json_array_size(added), raw_n = 0, normal_n = 0;
    /* + 1: an allocation of zero bytes is avoided */
    struct sg_added *raw = sg_alloc(n * sizeof *raw + 1), *normal = sg_alloc(n * sizeof *normal + 1);
    segue_status s = raw && normal ? SEGUE_OK : sg_no_memory("tokenizer", n * sizeof *raw, r->err);
    for (size_t i = 0; i < n && s == SEGUE_OK; i++) {
        struct sg_added a;
        int normalized;
        s = read_added(r, json_array_get(added, i), &a, &normalized);
        if (s == SEGUE_OK && normalized)
            normal[normal_n++] = a;
        else if (s == SEGUE_OK)
            raw[raw_n++] = a;
    }
    if (s == SEGUE_OK) s = sg_added_make(r->t, &r->t->raw, raw, raw_n, r->what, r->err);
    if (s == SEGUE_OK) s = sg_added_make(r->t, &r->t->normal, normal, normal_n, r->what, r->err);
    sg_free(raw);
    sg_free(normal);
    return s;
}

/* --- tokenizer_config.json --- */

/* The id of a token that the config names as a text or as {"content": text}; -1 if absent or unknown. */
static int32_t named_token(const struct sg_tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? sg_vocab_find(t, json_string_value(v), json_string_length(v)) : -1;
}

/* bos, eos and stops. add_bos_token and add_eos_token of the config override the post-processor. */
static segue_status read_config_ends(struct json_reader *r, const json_t *config)
{
    struct sg_tokenizer *t = r->t;
    const json_t *bos = json_object_get(config, "add_bos_token"),
                 *eos = json_object_get(config, "add_eos_token");
    t->info.bos = config ? named_token(t, config, "bos_token") : t->before_n ? t->before[0] : -1;
    t->info.eos = named_token(t, config, "eos_token");
    /* only a single bos or eos is removed: a longer template is kept */
    if (json_is_false(bos) && t->before_n == 1 && t->before[0] == t->info.bos) t->before_n = 0;
    if (json_is_false(eos) && t->after_n == 1 && t->after[0] == t->info.eos) t->after_n = 0;
    if (json_is_true(bos) && !t->before_n && t->info.bos >= 0) SG_TRY(add_end(r, 0, t->info.bos));
    if (json_is_true(eos) && !t->after_n && t->info.eos >= 0) SG_TRY(add_end(r, 1, t->info.eos));
    t->info.stops = &t->info.eos;
    t->info.stops_n = t->info.eos >= 0;
    return SEGUE_OK;
}

/* The order matters: added tokens need the normalizers, the ends need the tokens, and sg_vocab_finish needs
 * everything. */
static segue_status read_json(struct json_reader *r, const json_t *root, const json_t *config)
{
    struct sg_tokenizer *t = r->t;
    const json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(root)) return malformed(r, "the outermost object");
    if (added && !json_is_array(added) && !json_is_null(added)) return malformed(r, "added_tokens");
    SG_TRY(read_model(r, json_object_get(root, "model"), added));
    SG_TRY(for_each_step(r, json_object_get(root, "normalizer"), "normalizers", normalizer, 0));
    SG_TRY(for_each_step(r, json_object_get(root, "pre_tokenizer"), "pretokenizers", pre_tokenizer, 0));
    SG_TRY(for_each_step(r, json_object_get(root, "post_processor"), "processors", post_processor, 0));
    SG_TRY(for_each_step(r, json_object_get(root, "decoder"), "decoders", decoder, 0));
    /* each byte has a token, so a byte-level file may name an unknown token that does not exist */
    if (r->unk_missing && !t->byte_level) return malformed(r, "model.unk_token: its entry in model.vocab");
    /* the decoder must be the inverse of the pre-tokenizer */
    if (r->byte_decoder >= 0 && r->byte_decoder != t->byte_level)
        return unsupported(r, "decoder",
                           t->byte_level ? "other than ByteLevel" : "ByteLevel without its pre_tokenizer");
    /* after the normalizers, which normalized_text runs */
    SG_TRY(split_added(r, added));
    SG_TRY(read_config_ends(r, config));
    t->info.kind = t->byte_level ? "bpe" : "spm";
    t->info.pre = pre_name(t);
    if (t->info.pre && strcmp(t->info.pre, "regex") == 0)
        t->info.warning =
            "the split pattern has no built-in scanner; PCRE2 may classify recent Unicode characters differently";
    sg_fim_find(t);
    return sg_vocab_finish(t, 0, r->what, r->err);
}

/* The JSON documents are freed before the return: the tokenizer holds copies. */
segue_status sg_tokenizer_of_json(struct sg_tokenizer **out, const char *json, size_t json_len,
                                  const char *config, size_t config_len, const char *what, segue_error *err)
{
    json_t *root = NULL, *settings = NULL;
    struct sg_tokenizer *t = sg_alloc(sizeof *t);
    if (!t) return sg_no_memory("tokenizer", sizeof *t, err);
    t->unk = t->info.bos = t->info.eos = -1;
    struct json_reader r = {.t = t, .what = what, .err = err, .byte_decoder = -1};
    segue_status s = sg_json_parse(&root, json, json_len, what, err);
    if (s == SEGUE_OK && config)
        s = sg_json_parse(&settings, config, config_len, "tokenizer_config.json", err);
    if (s == SEGUE_OK) s = read_json(&r, root, settings);
    json_decref(root);
    json_decref(settings);
    if (s == SEGUE_OK)
        *out = t;
    else
        sg_tokenizer_close(t);
    return s;
}
