/* sessions.h: saved states and named sessions, and reuse of the tokens a session already holds.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_SESSIONS_H
#define SEGUE_CLI_SESSIONS_H

#include "term/args.h"
#include "term/out.h"

/* Path of the state to load: --load, or the file of --session, allocated; NULL: neither is given. */
char *sessions_path(const struct args *args);
/* Path of a file of a named session; ending is "state" or "json". Allocated. */
char *sessions_file(const char *name, const char *ending);
/* Save the state as --save and --session request. */
segue_status sessions_save(const struct args *args, const segue_session *session, segue_error *err);
/* Save the state to path, with mode 0600. */
segue_status sessions_save_to(const segue_session *session, const char *path, segue_error *err);
/* Make ids[n] the tokens of the session: keep the longest common prefix, drop the rest, append what is new. The
 * statistics of the session report how many tokens were reused, and why not more. */
segue_status sessions_sync(segue_session *session, const int32_t *ids, size_t n, segue_error *err);
/* Load a state. With --repair, invalid slots are recomputed from the tokens; a file whose tokens cannot be read is
 * replaced by a new session, after a note, if may_be_new. *reason: why nothing was reused, or unchanged. */
segue_status sessions_load(segue_session **out, segue_engine *engine, segue_session_opts *opts,
                           const struct args *args, const char *path, bool may_be_new, const char **reason,
                           segue_error *err);
/* Reuse reason of a new prompt: "off" with --store off, otherwise NULL. */
const char *sessions_reuse_reason(const struct args *args);
/* --checkpoints as segue_session_opts expects it: bytes, 0 for the default, or SEGUE_NO_CHECKPOINTS. */
uint64_t sessions_checkpoint_bytes(const struct args *args);
/* Number of tokens that the session has not computed yet. */
size_t sessions_pending(const segue_session *session);

#endif
