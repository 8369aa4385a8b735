/* sessions.h: states on disk and the reuse of what a session already holds.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_SESSIONS_H
#define SEGUE_CLI_SESSIONS_H

#include "term/args.h"
#include "term/out.h"

/* --load, or the file of --session; NULL when neither is given. Memory of the caller. */
char *sessions_path(const struct args *args);
/* The file of a named session with an ending: "state", "json". */
char *sessions_file(const char *name, const char *ending);
/* Write --save and the file of --session. */
segue_status sessions_save(const struct args *args, const segue_session *session, segue_error *err);
segue_status sessions_save_to(const segue_session *session, const char *path, segue_error *err);
/* Make the session's tokens these: keep the longest common prefix, drop the rest, append what is new. The
 * session's figures say how much it kept, and why not more. */
segue_status sessions_follow(segue_session *session, const int32_t *ids, size_t n, segue_error *err);
/* Load a state; with --repair what of it does not fit is computed anew, and a file that gives not even its
 * tokens is left (with a note) for a new session, if `may_be_new`. *reason: why nothing of it was reused, or
 * as it was. */
segue_status sessions_load(segue_session **out, segue_engine *engine, segue_session_opts *opts,
                           const struct args *args, const char *path, bool may_be_new, const char **reason,
                           segue_error *err);
/* "off" when --store off was given, else NULL: why nothing was known of a text. */
const char *sessions_reason(const struct args *args);
/* --checkpoints as the library takes it. */
uint64_t sessions_checkpoints(const struct args *args);
/* Tokens that are yet to be read. */
size_t sessions_waiting(const segue_session *session);

#endif
