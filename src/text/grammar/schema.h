/* schema.h: the reader of JSON schemas, in parts. Sub-schemas are rules that wait in a list until they are compiled, so nothing
 * recurses, and a schema that refers to itself is a rule that calls itself.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_GRAMMAR_SCHEMA_H
#define SG_TEXT_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "text/grammar/parts.h"

/* A schema that waits. */
struct sg_schema_task {
    json_t *schema; /* a reference */
    uint32_t rule;
};

struct sg_schema {
    struct sg_grammar_builder *b;
    json_t *root;
    json_t *refs;                 /* {pointer: rule} of the targets of $ref */
    struct sg_schema_task *tasks; /* [tasks_n] */
    uint32_t tasks_n, tasks_cap, tasks_total;
    uint32_t merges; /* merged schemas so far */
    /* Rules that many schemas share, SG_NO_RULE until they are needed. */
    uint32_t space, any, string, chars;
};

/* --- schema_shared.c --- */
/* The rule of a sub-schema, compiled later. schema NULL or true: any value. */
uint32_t sg_schema_rule(struct sg_schema *s, json_t *schema);
/* The shared rules: white space between tokens, any string, one character of a string. */
uint32_t sg_schema_space(struct sg_schema *s);
uint32_t sg_schema_string(struct sg_schema *s);
uint32_t sg_schema_char(struct sg_schema *s);
/* A keyword that is a count: *out stays where it is absent. */
void sg_schema_count(struct sg_schema *s, json_t *schema, const char *key, uint32_t *out);

/* --- schema_values.c: alternatives for values of one type --- */
void sg_schema_object(struct sg_schema *s, json_t *schema, uint32_t rule);
void sg_schema_array(struct sg_schema *s, json_t *schema, uint32_t rule);
void sg_schema_text(struct sg_schema *s, json_t *schema, uint32_t rule);
/* Exactly this value, in all its spellings. */
void sg_schema_value(struct sg_schema *s, json_t *value, uint32_t rule);

/* --- schema_number.c --- */
void sg_schema_number(struct sg_schema *s, json_t *schema, uint32_t rule, int integer);

/* --- schema_merge.c --- */
/* A new schema that demands both; NULL: the builder has failed. */
json_t *sg_schema_merge(struct sg_schema *s, json_t *a, json_t *b);
/* 1: no value satisfies both, as far as types, constants and required constants tell. */
int sg_schema_disjoint(struct sg_schema *s, json_t *a, json_t *b);
/* 1: a keyword that demands nothing. */
int sg_schema_annotation(const char *key);
/* The schema that a $ref names, borrowed; NULL: the builder has failed. */
json_t *sg_schema_target(struct sg_schema *s, const char *pointer);

#endif
