/* jinja_lex.c: splits template source into tokens, one per call. Outside of tags, text up to the next tag is one DATA
 * token; inside of tags it yields names, literals and operators. trim_blocks and lstrip_blocks are on: the newline
 * after a block tag and the blanks before one on its line are not part of the text. '-' and '+' at a tag override that,
 * as in jinja2.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/parse/jinja_parse.h"
#include "text/jinja/value/jinja_text.h"
#include "text/unicode/unicode.h"

/* State of the lexer. *_NEXT: the text before a tag was returned; next is the begin of a variable or block tag, or
 * the text of a raw block. */
enum { TEXT, IN_VAR, IN_BLOCK, VAR_NEXT, BLOCK_NEXT, RAW_NEXT };

/* EFORMAT with template and line. why: the cause, followed by at most 40 bytes of `what`. */
static segue_status lex_fail(struct sg_jinja_lexer *lx, const char *why, const char *what, size_t n)
{
    return sg_fail(lx->err, SEGUE_EFORMAT, "template: %s line %u: %s%.*s; correct the template", lx->what,
                   (unsigned)lx->line, why, (int)(n > 40 ? 40 : n), what);
}

/* The source is untrusted: its size is bounded and its UTF-8 checked here, so that no later step has to. */
segue_status sg_lexer_open(struct sg_jinja_lexer *lx, struct sg_arena *arena, const char *source, size_t len,
                           const char *what, segue_error *err)
{
    *lx = (struct sg_jinja_lexer){.line = 1, .line_start = 1, .arena = arena, .what = what, .err = err};
    if (len > SG_SOURCE_BYTES)
        return sg_fail(err, SEGUE_ELIMIT,
                       "template: %s: source of %zu bytes, more than %d; pass a chat template", what,
                       len, (int)SG_SOURCE_BYTES);
    if (sg_utf8_valid(source, len) != len) return lex_fail(lx, "the source is not UTF-8", "", 0);
    char *copy = sg_arena_alloc(arena, len + 1);
    if (!copy) return sg_no_memory("template source", len, err);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        /* \r and \r\n become \n, as in jinja2 */
        int cr = source[i] == '\r';
        copy[n++] = cr ? '\n' : source[i];
        if (cr && i + 1 < len && source[i + 1] == '\n') i++;
    }
    if (n && copy[n - 1] == '\n') n--;
    lx->p = copy;
    lx->end = copy + n;
    return SEGUE_OK;
}

/* Move to q and count the lines in between; q before lx->p changes nothing. */
static void advance_to(struct sg_jinja_lexer *lx, const char *q)
{
    for (; lx->p < q; lx->p++) lx->line += *lx->p == '\n';
    if (q > lx->p) lx->p = q;
}

/* 1: the source at p begins with `what`. */
static int starts_with(const struct sg_jinja_lexer *lx, const char *p, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(lx->end - p) >= n && !memcmp(p, what, n);
}

/* The first character at or after p that is not whitespace. */
static const char *skip_space(const struct sg_jinja_lexer *lx, const char *p)
{
    while (p < lx->end) {
        const char *q = p;
        if (!sg_char_is(sg_char_get(&q), SG_IS_SPACE)) break;
        p = q;
    }
    return p;
}

/* Start of the whitespace that [s, e) ends with; e if there is none. */
static const char *trim_right(const char *s, const char *e)
{
    while (e > s) {
        const char *q = e - 1;
        while (q > s && ((unsigned char)*q & 0xc0) == 0x80) q--;
        const char *r = q;
        if (!sg_char_is(sg_char_get(&r), SG_IS_SPACE)) break;
        e = q;
    }
    return e;
}

/* Where the source continues after the end of a tag at p; NULL = p is not its end. close: "%}", "}}" or "#}". "-"
 * before it also skips the whitespace after it. plus: "+" is allowed before it. trim: skip one newline. */
static const char *tag_end(const struct sg_jinja_lexer *lx, const char *p, const char *close, int plus, int trim)
{
    if (plus && p < lx->end && *p == '+' && starts_with(lx, p + 1, close)) return p + 3;
    if (p < lx->end && *p == '-' && starts_with(lx, p + 1, close)) return skip_space(lx, p + 3);
    if (!starts_with(lx, p, close)) return NULL;
    p += 2;
    return trim && p < lx->end && *p == '\n' ? p + 1 : p;
}

/* New end of the text [s, e) before a tag with this sign: '-' removes whitespace, '+' nothing, otherwise the blanks
 * before a block tag or comment that is the first on its line. */
static const char *strip_text(const struct sg_jinja_lexer *lx, const char *s, const char *e, char sign, int is_var)
{
    if (sign == '-') return trim_right(s, e);
    if (sign == '+' || is_var) return e;
    const char *line = e;
    while (line > s && line[-1] != '\n') line--;
    /* the line began before s, with a tag */
    if (line == s && !lx->line_start) return e;
    return trim_right(line, e) == line ? line : e;
}

/* '-' or '+' at p, else 0. */
static char sign_at(const struct sg_jinja_lexer *lx, const char *p)
{
    return p < lx->end && (*p == '-' || *p == '+') ? *p : 0;
}

/* 1: `word` is at *p after optional whitespace; *p moves past it and the whitespace after it. */
static int skip_word(const struct sg_jinja_lexer *lx, const char **p, const char *word)
{
    const char *q = skip_space(lx, *p);
    if (!starts_with(lx, q, word)) return 0;
    *p = skip_space(lx, q + strlen(word));
    return 1;
}

/* After "{%" and a sign: the end of a {% raw %} tag, or NULL for any other tag. */
static const char *raw_block_start(const struct sg_jinja_lexer *lx, const char *p)
{
    return skip_word(lx, &p, "raw") ? tag_end(lx, p, "%}", 0, 0) : NULL;
}

/* Skip a comment; lx->p is after "{#". */
static segue_status skip_comment(struct sg_jinja_lexer *lx)
{
    for (const char *q = lx->p; q < lx->end; q++) {
        const char *e = *q == '+' || *q == '-' || *q == '#' ? tag_end(lx, q, "#}", 1, 1) : NULL;
        if (!e) continue;
        advance_to(lx, e);
        lx->line_start = e[-1] == '\n';
        return SEGUE_OK;
    }
    return lex_fail(lx, "a comment is not closed", "", 0);
}

/* Text up to the next tag, whose kind becomes the state. *n = 0: there is no text before it. */
static segue_status lex_text(struct sg_jinja_lexer *lx, const char **s, size_t *n)
{
    const char *p = lx->p, *q = p;
    *s = p;
    while (q < lx->end && !(*q == '{' && q + 1 < lx->end && (q[1] == '%' || q[1] == '{' || q[1] == '#'))) q++;
    if (q == lx->end) {
        *n = (size_t)(q - p);
        advance_to(lx, q);
        return SEGUE_OK;
    }
    char kind = q[1], sign = sign_at(lx, q + 2);
    const char *body = q + 2 + (sign != 0), *raw = kind == '%' ? raw_block_start(lx, body) : NULL;
    *n = (size_t)(strip_text(lx, p, q, sign, kind == '{') - p);
    advance_to(lx, raw ? raw : body);
    lx->line_start = lx->p[-1] == '\n';
    if (kind == '#') return skip_comment(lx);
    lx->state = raw ? RAW_NEXT : kind == '{' ? VAR_NEXT : BLOCK_NEXT;
    return SEGUE_OK;
}

/* The text of a raw block up to {% endraw %}; tags in it are text. */
static segue_status lex_raw(struct sg_jinja_lexer *lx, const char **s, size_t *n)
{
    const char *p = lx->p;
    for (const char *q = p; q < lx->end; q++) {
        if (!starts_with(lx, q, "{%")) continue;
        char sign = sign_at(lx, q + 2);
        const char *e = q + 2 + (sign != 0);
        /* any other tag is part of the text */
        if (!skip_word(lx, &e, "endraw") || !(e = tag_end(lx, e, "%}", 1, 1))) continue;
        *s = p;
        *n = (size_t)(strip_text(lx, p, q, sign, 0) - p);
        advance_to(lx, e);
        lx->line_start = e[-1] == '\n';
        lx->state = TEXT;
        return SEGUE_OK;
    }
    return lex_fail(lx, "a raw block is not closed", "", 0);
}

/* ASCII only: numbers of templates have no other digits. */
static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* Value of a hexadecimal digit; 99 for any other character, which is above each base. */
static int hex_of(char c)
{
    return is_digit(c)            ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 99;
}

/* End of the digits of a base at p, with single underscores between them; p when there are none. first: an
 * underscore may come before the first digit. */
static const char *digits(const struct sg_jinja_lexer *lx, const char *p, int base, int first)
{
    const char *q = p;
    for (;;) {
        const char *d = q < lx->end && *q == '_' && (first || q > p) ? q + 1 : q;
        if (d >= lx->end || hex_of(*d) >= base) return q;
        q = d + 1;
    }
}

/* End of a float, which has a fraction or an exponent; NULL = it is an integer or no number. */
static const char *float_end(const struct sg_jinja_lexer *lx, const char *p)
{
    const char *q = digits(lx, p, 10, 0), *frac = NULL, *e;
    if (q == p) return NULL;
    if (q + 1 < lx->end && *q == '.' && (e = digits(lx, q + 1, 10, 0)) > q + 1) frac = q = e;
    if (q < lx->end && (*q == 'e' || *q == 'E')) {
        e = q + 1 < lx->end && (q[1] == '+' || q[1] == '-') ? q + 2 : q + 1;
        const char *end = digits(lx, e, 10, 0);
        if (end > e) return end;
    }
    return frac;
}

/* An integer (also 0x, 0o, 0b) or a float. */
static segue_status lex_number(struct sg_jinja_lexer *lx, struct sg_jinja_token *out)
{
    /* after '.', digits are an index: a.1.2 holds no float; p[-1] exists, since a tag precedes */
    const char *p = lx->p, *q = p[-1] == '.' ? NULL : float_end(lx, p);
    char text[64];
    int base = 10, is_float = q != NULL;
    if (!q) {
        char x = *p == '0' && p + 1 < lx->end ? (char)(p[1] | 32) : 0;
        base = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 10;
        if (base != 10 && (q = digits(lx, p + 2, base, 1)) == p + 2) base = 10;
        /* a number that begins with 0 can only be zeros */
        if (base == 10) q = *p == '0' ? digits(lx, p, 1, 0) : digits(lx, p, 10, 0);
    }
    size_t n = 0;
    /* without prefix and underscores */
    for (const char *c = base != 10 ? p + 2 : p; c < q; c++) {
        if (*c == '_') continue;
        if (n + 1 >= sizeof text) return lex_fail(lx, "a number is too long: ", p, (size_t)(q - p));
        text[n++] = *c;
    }
    int ok = is_float ? sg_float_parse(text, n, &out->f) : sg_int_parse(text, n, base, &out->i);
    if (ok != 1) return lex_fail(lx, "a number does not fit in 64 bits: ", p, (size_t)(q - p));
    out->kind = is_float ? SG_T_FLOAT : SG_T_INT;
    advance_to(lx, q);
    return SEGUE_OK;
}

/* Resolve one escape. p: after the backslash; *o: output, which moves. Returns the end of the escape, NULL =
 * invalid. The rules are those of Python string literals. */
static const char *unescape(const char *p, const char *e, char **o)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = *p ? strchr(from, *p) : NULL;
    if (known) return *(*o)++ = to[known - from], p + 1;
    /* an escaped line break is dropped */
    if (*p == '\n') return p + 1;
    uint32_t c = 0;
    if (*p >= '0' && *p <= '7') {
        for (int k = 0; k < 3 && p < e && *p >= '0' && *p <= '7'; k++) c = c * 8 + (uint32_t)(*p++ - '0');
    } else if (*p == 'x' || *p == 'u' || *p == 'U') {
        int want = *p == 'x' ? 2 : *p == 'u' ? 4 : 8;
        for (p++; want; want--, p++) {
            if (p >= e || hex_of(*p) > 15) return NULL;
            c = c << 4 | (uint32_t)hex_of(*p);
        }
        if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return NULL;
    /* \N{NAME} needs the table of character names, which is not included */
    } else if (*p == 'N') {
        return NULL;
    } else {
        /* an unknown escape keeps its backslash */
        *(*o)++ = '\\';
        if ((unsigned char)*p < 0x80) return *(*o)++ = *p, p + 1;
        /* jinja2 converts non-ASCII characters to escapes first, so the backslash escapes the backslash of that escape */
        c = sg_char_get(&p);
        static const char hex[] = "0123456789abcdef";
        int k = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
        *(*o)++ = k == 2 ? 'x' : k == 4 ? 'u' : 'U';
        while (k--) *(*o)++ = hex[c >> 4 * k & 15];
        return p;
    }
    *o += sg_utf8_put(*o, c);
    return p;
}

/* A string literal in either quote; out->s is a copy in the arena with escapes resolved. */
static segue_status lex_string(struct sg_jinja_lexer *lx, struct sg_jinja_token *out)
{
    const char *p = lx->p + 1, *e = p;
    while (e < lx->end && *e != *lx->p) e += *e == '\\' && e + 1 < lx->end ? 2 : 1;
    if (e >= lx->end) return lex_fail(lx, "a string is not closed", "", 0);
    /* an unknown escape grows at most threefold, see unescape */
    char *copy = sg_arena_alloc(lx->arena, (size_t)(e - p) * 3 + 1),
         *o = copy; /* \c of 2 bytes may become \xhh */
    if (!copy) return sg_no_memory("template string", (size_t)(e - p), lx->err);
    while (p < e) {
        if (*p != '\\') {
            *o++ = *p++;
            continue;
        }
        const char *q = unescape(p + 1, e, &o);
        if (!q)
            return lex_fail(lx, "invalid escape in a string: ", p,
                            (size_t)(e - p) > 10 ? 10 : (size_t)(e - p));
        p = q;
    }
    out->kind = SG_T_STRING;
    out->s = copy;
    out->n = (size_t)(o - copy);
    advance_to(lx, e + 1);
    return SEGUE_OK;
}

/* 1: the character at p can be part of a name; *next: the character after it. */
static int is_name_char(const char *p, const char *end, const char **next)
{
    if (p >= end) return 0;
    const char *q = p;
    uint32_t c = sg_char_get(&q);
    *next = q;
    return c == '_' || (c < 0x80 ? is_digit((char)c) || ((c | 32) >= 'a' && (c | 32) <= 'z')
                                 : sg_char_is(c, SG_IS_ALPHA) || sg_char_is(c, SG_IS_NUMERIC));
}

/* An operator or bracket. Brackets must match, because a tag cannot end inside of one. */
static segue_status lex_op(struct sg_jinja_lexer *lx, struct sg_jinja_token *out)
{
    static const char two[] = "//**==!=>=<=";
    const char *p = lx->p;
    out->kind = SG_T_OP;
    /* the longest operator wins: two characters first */
    for (size_t i = 0; p + 1 < lx->end && two[i]; i += 2)
        if (p[0] == two[i] && p[1] == two[i + 1]) {
            out->op = (uint16_t)SG_OP2(p[0], p[1]);
            lx->p += 2;
            return SEGUE_OK;
        }
    if (!*p || !strchr("+-/*%~[](){}><=.:|,;", *p))
        return lex_fail(lx, "unexpected character: ", p, (unsigned char)*p < 0x80);
    if (strchr("([{", *p)) {
        if (lx->balance_n == sizeof lx->balance) return lex_fail(lx, "brackets are nested too deep", "", 0);
        /* in ASCII, ']' and '}' are 2 above '[' and '{', but ')' is 1 above '(' */
        lx->balance[lx->balance_n++] = *p == '(' ? ')' : (char)(*p + 2);
    } else if (strchr(")]}", *p)) {
        if (!lx->balance_n || lx->balance[--lx->balance_n] != *p)
            return lex_fail(lx, "unexpected bracket: ", p, 1);
    }
    out->op = (unsigned char)*p;
    lx->p++;
    return SEGUE_OK;
}

/* The next token inside of a tag. Its end is checked before and after whitespace, as "-%}" could be a minus sign. */
static segue_status lex_tag(struct sg_jinja_lexer *lx, struct sg_jinja_token *out)
{
    for (;;) {
        int block = lx->state == IN_BLOCK;
        /* inside of brackets "}}" closes two dicts */
        const char *e = lx->balance_n ? NULL : tag_end(lx, lx->p, block ? "%}" : "}}", block, block);
        out->line = lx->line;
        if (e) {
            out->kind = block ? SG_T_BLOCK_END : SG_T_VAR_END;
            lx->state = TEXT;
            advance_to(lx, e);
            lx->line_start = e[-1] == '\n';
            return SEGUE_OK;
        }
        const char *next = skip_space(lx, lx->p);
        if (next == lx->p) break;
        advance_to(lx, next);
    }
    const char *p = lx->p, *q = p;
    if (p == lx->end) return out->kind = SG_T_EOF, SEGUE_OK;
    if (is_digit(*p)) return lex_number(lx, out);
    if (*p == '\'' || *p == '"') return lex_string(lx, out);
    /* a digit cannot come first: lex_number took it */
    for (const char *n; is_name_char(q, lx->end, &n);) q = n;
    if (q == p) return lex_op(lx, out);
    out->kind = SG_T_NAME;
    out->s = p;
    out->n = (size_t)(q - p);
    lx->p = q;
    return SEGUE_OK;
}

/* At the end of the source all further tokens are EOF. */
segue_status sg_lexer_next(struct sg_jinja_lexer *lx, struct sg_jinja_token *out)
{
    *out = (struct sg_jinja_token){.line = lx->line};
    if (lx->state == IN_VAR || lx->state == IN_BLOCK) return lex_tag(lx, out);
    while (lx->state == TEXT || lx->state == RAW_NEXT) {
        if (lx->state == TEXT && lx->p == lx->end) return out->kind = SG_T_EOF, SEGUE_OK;
        out->line = lx->line;
        SG_TRY(lx->state == TEXT ? lex_text(lx, &out->s, &out->n) : lex_raw(lx, &out->s, &out->n));
        if (out->n) return out->kind = SG_T_DATA, SEGUE_OK;
    }
    out->line = lx->line;
    out->kind = lx->state == VAR_NEXT ? SG_T_VAR_BEGIN : SG_T_BLOCK_BEGIN;
    lx->state = lx->state == VAR_NEXT ? IN_VAR : IN_BLOCK;
    return SEGUE_OK;
}
