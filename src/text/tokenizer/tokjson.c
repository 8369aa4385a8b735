/* tokjson.c: tokenizer.json and tokenizer_config.json. Every part of the pipeline that a file asks for is
 * either done exactly or refused by its name; nothing is skipped in silence.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "tensor/json.h"
#include "text/tokenizer/tokparts.h"

struct reading {
    struct sg_tokenizer *t;
    const char *what;
    segue_error *err;
    int lost_unknown; /* the unknown token is not in the vocabulary */
    int templates;    /* post-processors met that put tokens around a text */
    int byte_decoder; /* the decoder reads the byte alphabet; -1: the file names none */
};

/* A sound file that asks for something we do not do: the remedy is another model. */
static segue_status unsupported(struct reading *r, const char *part, const char *name)
{
    return sg_fail(r->err, SEGUE_EUNSUPPORTED,
                   "read tokenizer: %s: %s \"%s\" is not known; choose another model", r->what, part, name);
}

/* A damaged file. */
static segue_status malformed(struct reading *r, const char *part)
{
    return sg_fail(r->err, SEGUE_EFORMAT,
                   "read tokenizer: %s: %s is missing or of a wrong kind; fetch the file again", r->what,
                   part);
}

/* The type of a step of the pipeline; "" when it has none. */
static const char *type_of(const json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "";
}

static int is_type(const json_t *o, const char *type) { return strcmp(type_of(o), type) == 0; }

/* A string that may hold NULs, kept as long as the tokenizer. */
static segue_status copy_text(struct reading *r, const json_t *v, const char *part, const char **out,
                              size_t *len)
{
    if (!json_is_string(v)) return malformed(r, part);
    *len = json_string_length(v);
    *out = sg_arena_strndup(&r->t->arena, json_string_value(v), *len);
    return *out ? SEGUE_OK : sg_no_memory("tokenizer", *len, r->err);
}

typedef segue_status step_fn(struct reading *r, const json_t *o);

/* A step, or the members of a sequence of steps one by one. */
static segue_status each(struct reading *r, const json_t *o, const char *list, step_fn *step, int depth)
{
    if (!o || json_is_null(o)) return SEGUE_OK;
    if (!json_is_object(o) || depth > 8) return malformed(r, list);
    if (!is_type(o, "Sequence")) return step(r, o);
    const json_t *items = json_object_get(o, list);
    if (!json_is_array(items)) return malformed(r, list);
    for (size_t i = 0; i < json_array_size(items); i++)
        SG_TRY(each(r, json_array_get(items, i), list, step, depth + 1));
    return SEGUE_OK;
}

/* --- normalizers --- */

/* One step. NFKC, Lowercase, StripAccents and the like belong to families that this house has none of; doing
 * them almost right would be worse than a refusal. */
static segue_status normalizer(struct reading *r, const json_t *o)
{
    struct sg_tokenizer *t = r->t;
    struct sg_norm n = {0};
    if (t->norms_n == SG_NORMS) return unsupported(r, "normalizer", "Sequence of more than 16");
    if (is_type(o, "NFC")) {
        n.kind = SG_NORM_NFC;
    } else if (is_type(o, "Prepend")) {
        n.kind = SG_NORM_PREPEND;
        SG_TRY(copy_text(r, json_object_get(o, "prepend"), "normalizer Prepend", &n.to, &n.to_len));
    } else if (is_type(o, "Replace")) {
        n.kind = SG_NORM_REPLACE;
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

/* ByteLevel turns text into the byte alphabet, so steps behind it would see other characters than here. */
static segue_status add_split(struct reading *r, struct sg_split split)
{
    struct sg_tokenizer *t = r->t;
    if (t->splits_n == SG_SPLITS || t->byte_level) {
        sg_split_free(&split);
        return unsupported(r, "pre_tokenizer",
                           t->byte_level ? "steps after ByteLevel" : "Sequence of more than 16");
    }
    t->splits[t->splits_n++] = split;
    return SEGUE_OK;
}

/* What happens to matches. Inverted, only keeping the matches and dropping the rest is in use. */
static segue_status rule_of(struct reading *r, const json_t *o, enum sg_split_rule *rule)
{
    static const char *const names[] = {"Isolated",           "Removed",        "",
                                        "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name;
    int invert;
    SG_TRY(sg_json_text(o, "behavior", "Isolated", &name, r->what, r->err));
    SG_TRY(sg_json_bool(o, "invert", 0, &invert, r->what, r->err));
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (!*name || strcmp(name, names[i]) != 0) continue;
        *rule = invert && i == SG_RULE_REMOVED ? SG_RULE_KEPT : (enum sg_split_rule)i;
        return invert && i > SG_RULE_REMOVED ? unsupported(r, "pre_tokenizer Split, inverted,", name)
                                             : SEGUE_OK;
    }
    return unsupported(r, "pre_tokenizer Split behavior", name);
}

static segue_status splitter(struct reading *r, const json_t *o)
{
    struct sg_split split = {.kind = SG_SPLIT_LITERAL};
    enum sg_split_rule rule = SG_RULE_ISOLATED;
    const json_t *pattern = json_object_get(o, "pattern"), *text = json_object_get(pattern, "String");
    SG_TRY(rule_of(r, o, &rule));
    if (text) {
        SG_TRY(copy_text(r, text, "pre_tokenizer Split: pattern", &split.text, &split.len));
        if (!split.len) return malformed(r, "pre_tokenizer Split: pattern");
    } else {
        text = json_object_get(pattern, "Regex");
        if (!json_is_string(text)) return malformed(r, "pre_tokenizer Split: pattern");
        SG_TRY(
            sg_split_of_pattern(&split, json_string_value(text), json_string_length(text), r->what, r->err));
        /* The known patterns match every text from end to end, so only what keeps matches apart makes sense.
         */
        if (split.kind != SG_SPLIT_REGEX && rule != SG_RULE_ISOLATED && rule != SG_RULE_KEPT)
            return unsupported(r, "pre_tokenizer Split", "behavior that joins or drops every piece");
    }
    split.rule = rule;
    return add_split(r, split);
}

/* "always" by default; the older spelling is add_prefix_space. */
static segue_status prepend_of(struct reading *r, const json_t *o, int *prepend)
{
    const char *scheme;
    int space;
    SG_TRY(sg_json_bool(o, "add_prefix_space", 1, &space, r->what, r->err));
    SG_TRY(sg_json_text(o, "prepend_scheme", space ? "always" : "never", &scheme, r->what, r->err));
    *prepend = strcmp(scheme, "always") == 0 ? 2 : strcmp(scheme, "first") == 0 ? 1 : 0;
    return *prepend || strcmp(scheme, "never") == 0 ? SEGUE_OK
                                                    : unsupported(r, "Metaspace prepend_scheme", scheme);
}

/* Newer Llama and Mistral files: spaces become U+2581 here instead of in a normalizer. */
static segue_status metaspace(struct reading *r, const json_t *o)
{
    struct sg_split split = {.kind = SG_SPLIT_META};
    const char *mark;
    int cuts;
    SG_TRY(sg_json_text(o, "replacement", "\xe2\x96\x81", &mark, r->what, r->err));
    if (strcmp(mark, "\xe2\x96\x81") != 0) return unsupported(r, "Metaspace replacement", mark);
    SG_TRY(sg_json_bool(o, "split", 1, &cuts, r->what, r->err));
    SG_TRY(prepend_of(r, o, &split.prepend));
    split.whole = !cuts;
    return add_split(r, split);
}

static segue_status pre_tokenizer(struct reading *r, const json_t *o)
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
    if (yes) SG_TRY(add_split(r, (struct sg_split){.kind = SG_SPLIT_SPACE_FIRST}));
    SG_TRY(sg_json_bool(o, "use_regex", 1, &yes, r->what, r->err));
    if (yes) SG_TRY(add_split(r, (struct sg_split){.kind = SG_SPLIT_GPT2}));
    r->t->byte_level = 1;
    return SEGUE_OK;
}

/* The family's name for a chain of splitters, for people and for tests; the chain itself is what works. */
static const char *pre_name(const struct sg_tokenizer *t)
{
    static const char *const names[] = {"gpt2", "llama3", "qwen2", "qwen35"};
    const struct sg_split *s = t->splits;
    uint32_t n = t->splits_n;
    for (uint32_t i = 0; i < n; i++)
        if (s[i].kind == SG_SPLIT_REGEX) return "regex";
    if (n && s[0].kind == SG_SPLIT_SPACE_FIRST) s++, n--;
    if (n == 2 && s[0].kind == SG_SPLIT_DIGIT && s[1].kind == SG_SPLIT_GPT2) return "smollm";
    return n == 1 && s[0].kind <= SG_SPLIT_QWEN35 ? names[s[0].kind] : NULL;
}

/* --- decoders --- */

/* Decoders are not run one after the other: every accepted chain comes down to the byte alphabet, or to
 * U+2581 and <0xXX>, with or without one space less in front. Chains that do anything else are refused. */
static segue_status decoder(struct reading *r, const json_t *o)
{
    int64_t start, stop;
    int prepend;
    const char *text = json_string_value(json_object_get(o, "content"));
    const char *from = json_string_value(json_object_get(json_object_get(o, "pattern"), "String"));
    if (is_type(o, "ByteLevel")) {
        r->byte_decoder = 1;
        return SEGUE_OK;
    }
    r->byte_decoder = r->byte_decoder == 1;
    if (is_type(o, "ByteFallback") || is_type(o, "Fuse")) return SEGUE_OK;
    if (is_type(o, "Replace") && from && text && strcmp(from, "\xe2\x96\x81") == 0 && strcmp(text, " ") == 0)
        return SEGUE_OK;
    if (is_type(o, "Metaspace")) {
        SG_TRY(prepend_of(r, o, &prepend));
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

/* An id that stands before or after every text. */
static segue_status add_end(struct reading *r, int after, int64_t id)
{
    struct sg_tokenizer *t = r->t;
    uint32_t *n = after ? &t->after_n : &t->before_n;
    if (id < 0 || id >= t->tokens_n) return malformed(r, "post_processor: a special token's id");
    if (*n == SG_ENDS) return unsupported(r, "post_processor", "TemplateProcessing with more than 16 tokens");
    (after ? t->after : t->before)[(*n)++] = (int32_t)id;
    return SEGUE_OK;
}

/* Of a template only the form for one text counts; its $A divides what stands before from what stands after.
 */
static segue_status post_processor(struct reading *r, const json_t *o)
{
    if (is_type(o, "ByteLevel")) return SEGUE_OK; /* offsets only */
    if (!is_type(o, "TemplateProcessing") || r->templates++)
        return unsupported(r, "post_processor", type_of(o));
    const json_t *single = json_object_get(o, "single"), *specials = json_object_get(o, "special_tokens");
    int after = 0;
    if (!json_is_array(single)) return malformed(r, "post_processor: single");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *special = json_object_get(json_array_get(single, i), "SpecialToken");
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

/* Highest id + 1 of vocabulary and added tokens; EFORMAT when ids leave absurd holes. */
static segue_status ids_end(struct reading *r, const json_t *vocab, const json_t *added, size_t *n)
{
    int64_t high = -1;
    size_t count = json_object_size(vocab) + json_array_size(added);
    const char *key;
    json_t *v, *copy = NULL;
    memcpy(&copy, &vocab, sizeof copy); /* jansson's iterator wants it without const, and changes nothing */
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
    if (high >= 0 && (uint64_t)high > 2 * (uint64_t)count + 65536)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "read tokenizer: %s: highest id %lld, but only %zu tokens; fetch the file again",
                       r->what, (long long)high, count);
    *n = (size_t)(high + 1);
    return SEGUE_OK;
}

/* The model's own tokens are indexed first, so that an added token of the same text finds its id. */
static segue_status read_vocab(struct reading *r, const json_t *vocab, const json_t *added)
{
    size_t n = 0;
    const char *key;
    json_t *v, *copy = NULL;
    memcpy(&copy, &vocab, sizeof copy);
    SG_TRY(ids_end(r, vocab, added, &n));
    SG_TRY(sg_vocab_room(r->t, n, r->what, r->err));
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
        if (known >= 0) id = known; /* as in the field, the model's id holds */
        SG_TRY(sg_vocab_put(r->t, id, json_string_value(text), json_string_length(text),
                            special ? SG_TOKEN_CONTROL : SG_TOKEN_USER, 0, r->what, r->err));
        r->t->tokens[id].outside = known < 0;
    }
    return sg_vocab_index(r->t, r->err);
}

/* "a b" (split at the first space after position 0) or ["a", "b"]. */
static segue_status read_merge(struct reading *r, const json_t *m, uint32_t rank)
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

/* Settings that change the result and that no family uses are refused, not ignored. */
static segue_status read_model(struct reading *r, const json_t *model, const json_t *added)
{
    static const char *const must_be_empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    struct sg_tokenizer *t = r->t;
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    const char *text;
    double dropout;
    int fallback, fuse, ignore;
    if (!json_is_object(model)) return malformed(r, "model");
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
    SG_TRY(sg_merges_room(t, json_array_size(merges), r->err));
    for (size_t i = 0; i < json_array_size(merges); i++)
        SG_TRY(read_merge(r, json_array_get(merges, i), (uint32_t)i));
    SG_TRY(sg_json_text(model, "unk_token", NULL, &text, r->what, r->err));
    t->unk = text ? sg_vocab_find_model(t, text, strlen(text)) : -1;
    r->lost_unknown = text && *text && t->unk < 0;
    return SEGUE_OK;
}

/* Added tokens with `normalized` are looked for in normalized text, so they go through the same steps. */
static segue_status normalized_text(struct reading *r, struct sg_added *a)
{
    struct sg_buf out[2] = {{0}, {0}};
    const char *s = a->text;
    size_t n = a->len;
    segue_status st = sg_normalize(r->t, &s, &n, out, r->err);
    if (st == SEGUE_OK) {
        a->text = sg_arena_strndup(&r->t->arena, s, n);
        a->len = (uint32_t)n;
        if (!a->text) st = sg_no_memory("tokenizer", n, r->err);
    }
    sg_buf_free(&out[0]);
    sg_buf_free(&out[1]);
    return st;
}

/* One added token. A missing `normalized` means: unless it is special. */
static segue_status read_added(struct reading *r, const json_t *a, struct sg_added *out, int *normalized)
{
    const json_t *text = json_object_get(a, "content");
    int special, left, right, word;
    SG_TRY(sg_json_bool(a, "special", 0, &special, r->what, r->err));
    SG_TRY(sg_json_bool(a, "lstrip", 0, &left, r->what, r->err));
    SG_TRY(sg_json_bool(a, "rstrip", 0, &right, r->what, r->err));
    SG_TRY(sg_json_bool(a, "single_word", 0, &word, r->what, r->err));
    SG_TRY(sg_json_bool(a, "normalized", !special, normalized, r->what, r->err));
    int32_t id = sg_vocab_find(r->t, json_string_value(text), json_string_length(text));
    struct sg_token *k = &r->t->tokens[id];
    *out = (struct sg_added){.text = k->text,
                             .len = k->text_len,
                             .id = id,
                             .special = special != 0,
                             .lstrip = left != 0,
                             .rstrip = right != 0,
                             .single_word = word != 0};
    if (!*normalized) return SEGUE_OK;
    SG_TRY(normalized_text(r, out));
    k->bytes = out->text; /* it stands for what it matched, so it decodes to that */
    k->bytes_len = out->len;
    return SEGUE_OK;
}

/* Two passes over a text need two sets: raw first, then what normalizing left. */
static segue_status split_added(struct reading *r, const json_t *added)
{
    size_t n = json_array_size(added), raw_n = 0, normal_n = 0;
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

/* The id of a token that is given as text or as {"content": text}; -1 when it is not said or not there. */
static int32_t named_token(const struct sg_tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? sg_vocab_find(t, json_string_value(v), json_string_length(v)) : -1;
}

/* add_bos_token and add_eos_token outrank the post-processor when they are said. */
static segue_status ends_of_config(struct reading *r, const json_t *config)
{
    struct sg_tokenizer *t = r->t;
    const json_t *bos = json_object_get(config, "add_bos_token"),
                 *eos = json_object_get(config, "add_eos_token");
    t->info.bos = config ? named_token(t, config, "bos_token") : t->before_n ? t->before[0] : -1;
    t->info.eos = named_token(t, config, "eos_token");
    if (json_is_false(bos) && t->before_n == 1 && t->before[0] == t->info.bos) t->before_n = 0;
    if (json_is_false(eos) && t->after_n == 1 && t->after[0] == t->info.eos) t->after_n = 0;
    if (json_is_true(bos) && !t->before_n && t->info.bos >= 0) SG_TRY(add_end(r, 0, t->info.bos));
    if (json_is_true(eos) && !t->after_n && t->info.eos >= 0) SG_TRY(add_end(r, 1, t->info.eos));
    t->info.stops = &t->info.eos;
    t->info.stops_n = t->info.eos >= 0;
    return SEGUE_OK;
}

/* In this order: added tokens are normalized, ends name tokens, the tables follow from all of it. */
static segue_status read_json(struct reading *r, const json_t *root, const json_t *config)
{
    struct sg_tokenizer *t = r->t;
    const json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(root)) return malformed(r, "the outermost object");
    if (added && !json_is_array(added) && !json_is_null(added)) return malformed(r, "added_tokens");
    SG_TRY(read_model(r, json_object_get(root, "model"), added));
    SG_TRY(each(r, json_object_get(root, "normalizer"), "normalizers", normalizer, 0));
    SG_TRY(each(r, json_object_get(root, "pre_tokenizer"), "pretokenizers", pre_tokenizer, 0));
    SG_TRY(each(r, json_object_get(root, "post_processor"), "processors", post_processor, 0));
    SG_TRY(each(r, json_object_get(root, "decoder"), "decoders", decoder, 0));
    /* Bytes all have tokens, so byte-level files may name an unknown token that is none. */
    if (r->lost_unknown && !t->byte_level) return malformed(r, "model.unk_token: its entry in model.vocab");
    if (r->byte_decoder >= 0 && r->byte_decoder != t->byte_level)
        return unsupported(r, "decoder",
                           t->byte_level ? "other than ByteLevel" : "ByteLevel without its pre_tokenizer");
    SG_TRY(split_added(r, added));
    SG_TRY(ends_of_config(r, config));
    t->info.kind = t->byte_level ? "bpe" : "spm";
    t->info.pre = pre_name(t);
    if (t->info.pre && strcmp(t->info.pre, "regex") == 0)
        t->info.warning =
            "its split pattern is not one of the known; PCRE2 may class new characters differently";
    return sg_vocab_finish(t, 0, r->what, r->err);
}

segue_status sg_tokenizer_of_json(struct sg_tokenizer **out, const char *json, size_t json_len,
                                  const char *config, size_t config_len, const char *what, segue_error *err)
{
    json_t *root = NULL, *settings = NULL;
    struct sg_tokenizer *t = sg_alloc(sizeof *t);
    if (!t) return sg_no_memory("tokenizer", sizeof *t, err);
    t->unk = t->info.bos = t->info.eos = -1;
    struct reading r = {.t = t, .what = what, .err = err, .byte_decoder = -1};
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
