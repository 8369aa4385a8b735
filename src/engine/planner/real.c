/* real.c: see real.h. SPDX-License-Identifier: MIT */
#include "engine/planner/real.h"

#include <math.h>

const double sg_real_nodes[SG_REAL_N] = {8, 32, 128, 512, 2048, 256, 2048, 16384};

/* Share of a deviation by which a node moves: runs of a busy machine scatter. */
#define NODE_GAIN .25
/* Least standard deviation of the factors of models, as a logarithm: kernels differ by the shapes of their matrices. */
#define MODELS .2
/* Limits of the learned relative deviation: the noise of a timer, and a factor of 4. */
#define SPREAD_MIN .03
#define SPREAD_MAX 3.0

struct around {
    int node[2];
    double weight[2]; /* sum 1 */
};

static int first_of(int phase) { return phase == SG_PHASE_PREFILL ? 0 : SG_REAL_PREFILL; }
static int end_of(int phase) { return phase == SG_PHASE_PREFILL ? SG_REAL_PREFILL : SG_REAL_N; }

static struct around nodes_around(int phase, double x)
{
    int i = first_of(phase), end = end_of(phase);
    if (x <= sg_real_nodes[i]) return (struct around){{i, i}, {1, 0}};
    if (x >= sg_real_nodes[end - 1]) return (struct around){{end - 1, end - 1}, {1, 0}};
    while (x >= sg_real_nodes[i + 1]) i++;
    double share = log(x / sg_real_nodes[i]) / log(sg_real_nodes[i + 1] / sg_real_nodes[i]);
    return (struct around){{i, i + 1}, {1 - share, share}};
}

/* The node nearest to i that has runs; -1: none. */
static int nearest(const double *factor, int phase, int i)
{
    for (int d = 0; d < SG_REAL_N; d++)
        for (int k = i - d; k <= i + d; k += d ? 2 * d : 1)
            if (k >= first_of(phase) && k < end_of(phase) && factor[k] > 0) return k;
    return -1;
}

double sg_real_at(const double factor[SG_REAL_N], int phase, double x)
{
    struct around a = nodes_around(phase, x);
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        /* Beside a node without runs, the other one of the two is nearest to x. */
        int other = a.node[1 - i], k = factor[a.node[i]] > 0 ? a.node[i]
                                       : factor[other] > 0   ? other
                                                             : nearest(factor, phase, a.node[i]);
        if (k < 0) return 1;
        sum += a.weight[i] * log(factor[k]);
    }
    return exp(sum);
}

int sg_real_knows(const double factor[SG_REAL_N], int phase, double x)
{
    struct around a = nodes_around(phase, x);
    return factor[a.node[0]] > 0 && (a.weight[1] <= 0 || factor[a.node[1]] > 0);
}

int sg_real_any(const double factor[SG_REAL_N], int phase) { return nearest(factor, phase, first_of(phase)) >= 0; }

void sg_real_learn(double factor[SG_REAL_N], int phase, double x, double ratio, double trust)
{
    struct around a = nodes_around(phase, x);
    double now = sg_real_at(factor, phase, x), deviation = log(ratio / now);
    for (int i = 0; i < 2; i++) {
        double *f = &factor[a.node[i]];
        if (a.weight[i] <= 0) continue;
        *f = *f > 0 ? *f * exp(NODE_GAIN * a.weight[i] * deviation) : now * exp(trust * deviation);
    }
}

double sg_real_trust(double share, double runs, double deviation)
{
    double run = log1p(share) / 1.645; /* 1.645 deviations of a normal distribution: 95 % are below */
    double scatter = run * run / fmax(1, runs), models = MODELS * MODELS;
    if (runs > 1) models = fmax(models, deviation * deviation - scatter);
    return models / (models + scatter);
}

double sg_real_spread(double share, double deviation)
{
    double now = log1p(share), off = fabs(deviation);
    now = off > now ? fmax(now * 1.25, off) : now * .975;
    return fmin(SPREAD_MAX, fmax(SPREAD_MIN, expm1(now)));
}
