/* recording.h: --record: a file that says how an answer was computed: flags, sampling, prompt, tokens, and of every run its edges
 * and the hashes of what it added to the states and of the values between layers. `segue replay` computes it again. JSON Lines: a
 * head, then one line per run (docs/CLI.md). Written here and read by record_file.c.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_RECORDING_H
#define SEGUE_CLI_RECORDING_H

#include "run/placement.h"
#include "replay/record_file.h"

/* Flags of placement_open for a recording: values between layers are kept, unless --prefill or --decode divides the layers. */
unsigned record_placement_flags(const struct args *args);
/* EARG: --record with a flag that a record cannot hold. */
segue_status record_check_flags(const struct args *args, segue_error *err);
/* Start recording a session that has computed nothing yet. SEGUE_EARG: it has. */
segue_status record_begin(segue_session *session, segue_error *err);
/* An answer. sampling: of the session. */
struct record_source {
    const struct args *args;
    const struct placement *placement;
    const segue_session *session;
    const segue_sampling *sampling;
    const struct record_constraint *constraint; /* source of sampling.grammar; NULL: there is none */
    size_t context;                             /* of the session; 0: as the flags say */
    struct record_tokens prompt, answer;
};
/* The lines of a record. The caller frees data. */
struct out_text record_text_of(const struct record_source *source);
/* Write the file of --record. */
segue_status record_write(const char *path, const struct record_source *source, segue_error *err);
/* An empty private file for record_append, instead of one that was there. */
segue_status record_create(const char *path, segue_error *err);
/* Append one record. A process that is killed meanwhile leaves the earlier ones readable. */
segue_status record_append(const char *path, const struct record_source *source, segue_error *err);
/* What the session has recorded so far, in the form of a file that was read. Freed with record_free. */
void record_of_session(struct record *out, const segue_session *session);
/* The sampling parameters of a record, and what they point to. */
struct record_sampler {
    segue_sampling sampling;
    struct segue_bias *bias;
    segue_grammar *grammar;
};
/* EFORMAT, EUNSUPPORTED, ELIMIT: the constraint (segue_grammar_open). Call record_sampler_free in any case. */
segue_status record_sampler_read(struct record_sampler *out, const struct record *r, const segue_model *model, segue_error *err);
void record_sampler_free(struct record_sampler *s);

#endif
