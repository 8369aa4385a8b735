/* grammars.h: the compiled constraints of a model. A grammar keeps the masks that it has made, so requests with the same schema
 * share one. A kept grammar has at most 64 MiB of states and masks. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_GRAMMARS_H
#define SEGUE_CLI_GRAMMARS_H

#include <pthread.h>
#include <segue.h>
#include <stdbool.h>

enum { GRAMMARS_MAX = 8 };

struct grammars {
    pthread_mutex_t lock;
    uint64_t clock; /* takes so far */
    struct kept_grammar {
        segue_grammar *grammar; /* NULL: the place is free */
        segue_grammar_kind kind;
        char *text; /* [len] */
        size_t len;
        size_t users;    /* takes without a release; not replaced while there are any */
        uint64_t last;   /* the clock when it was taken last */
    } kept[GRAMMARS_MAX];
};

void grammars_open(struct grammars *g);
/* No grammar may be taken. The object can be used further. */
void grammars_empty(struct grammars *g);
void grammars_close(struct grammars *g);
/* A grammar, as segue_grammar_open, until grammars_release. */
segue_status grammars_take(struct grammars *g, const segue_model *model, segue_grammar_kind kind, const char *text, size_t len,
                           segue_grammar **out, segue_error *err);
void grammars_release(struct grammars *g, segue_grammar *grammar);

#endif
