/* mask_thread.c: see mask_thread.h. SPDX-License-Identifier: MIT */
#include "engine/mask_thread.h"

#include <string.h>

#include "base/mem.h"

struct sg_mask_thread {
    struct sg_mask_job *jobs; /* [cap] jobs_n valid: the caller's until start, then the thread's until the gate opens */
    size_t jobs_n, cap;
    struct sg_mask_gate gate; /* open: nothing is being made */
    pthread_mutex_t lock;     /* guards what follows */
    pthread_cond_t wake;
    int asked, closing;
    pthread_t thread;
    int running;
};

segue_status sg_mask_thread_new(struct sg_mask_thread **out, size_t cap, segue_error *err)
{
    struct sg_mask_thread *m = sg_alloc(sizeof *m);
    if (!m || !(m->jobs = sg_alloc(cap * sizeof *m->jobs))) {
        sg_free(m);
        return sg_no_memory("masks", cap * sizeof *m->jobs, err);
    }
    m->cap = cap;
    sg_mask_gate_init(&m->gate);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    *out = m;
    return SEGUE_OK;
}

void sg_mask_thread_free(struct sg_mask_thread *m)
{
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->closing = 1;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    if (m->running) pthread_join(m->thread, NULL);
    sg_mask_gate_destroy(&m->gate);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    sg_free(m->jobs);
    sg_free(m);
}

static void make_all(struct sg_mask_thread *m)
{
    for (size_t i = 0; i < m->jobs_n; i++) {
        const struct sg_mask_job *j = &m->jobs[i];
        struct sg_constraint *c = j->constraint;
        segue_error err = {0};
        err.status = sg_constraint_update(c, j->tokens, j->tokens_n, j->input_n, &err);
        c->error = err;
        if (err.status != SEGUE_OK) memset(c->allowed, 0xFF, sg_grammar_mask_words(c->grammar->grammar) * sizeof *c->allowed);
    }
    m->jobs_n = 0;
    sg_mask_gate_set(&m->gate, 1);
}

static void *thread_main(void *arg)
{
    struct sg_mask_thread *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (!m->asked && !m->closing) pthread_cond_wait(&m->wake, &m->lock);
        if (!m->asked) break;
        m->asked = 0;
        pthread_mutex_unlock(&m->lock);
        make_all(m);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

int sg_mask_thread_add(struct sg_mask_thread *m, const struct sg_mask_job *job)
{
    if (m->jobs_n == m->cap) return 0;
    m->jobs[m->jobs_n++] = *job;
    return 1;
}

struct sg_mask_gate *sg_mask_thread_gate(struct sg_mask_thread *m) { return &m->gate; }

void sg_mask_thread_start(struct sg_mask_thread *m)
{
    if (!m->jobs_n) return;
    if (!m->running) m->running = !pthread_create(&m->thread, NULL, thread_main, m);
    if (!m->running) {
        make_all(m);
        return;
    }
    sg_mask_gate_set(&m->gate, 0);
    pthread_mutex_lock(&m->lock);
    m->asked = 1;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

void sg_mask_thread_wait(struct sg_mask_thread *m) { sg_mask_gate_pass(&m->gate); }
