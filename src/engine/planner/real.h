/* real.h: what real runs of a model teach: factors on predicted times at nodes, and how wide an interval must be. Pure.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_REAL_H
#define SG_ENGINE_REAL_H

/* Nodes of prefill are prompt lengths, those of steps are depths; between them factors are interpolated in logarithms. */
enum { SG_PHASE_PREFILL, SG_PHASE_STEP };
enum { SG_REAL_PREFILL = 5, SG_REAL_N = 8 };
extern const double sg_real_nodes[SG_REAL_N];

/* The factor at x, a number of tokens. A node without a run takes the factor of the nearest one that has one. 1: none has. */
double sg_real_at(const double factor[SG_REAL_N], int phase, double x);
/* 1: both nodes around x, or the one at it, have runs. */
int sg_real_knows(const double factor[SG_REAL_N], int phase, double x);
/* 1: a node of the phase has runs. */
int sg_real_any(const double factor[SG_REAL_N], int phase);
/* A run at x took `ratio` times its cost without a factor. Nodes around x without runs move from the factor at x towards it by
 * `trust`, the others by a quarter of their weight. */
void sg_real_learn(double factor[SG_REAL_N], int phase, double x, double ratio, double trust);
/* How far to trust the first runs of a model, whose median deviates from the prediction by `deviation` (a logarithm), where 9 of
 * 10 runs deviate by less than `share` from each other. What is much farther off than runs scatter is the model's own; a lone
 * run may have been disturbed. */
double sg_real_trust(double share, double runs, double deviation);
/* The share that 9 of 10 deviations stay below, after one more deviation (a logarithm): it grows to a deviation outside of it, by
 * at least 25 %, and shrinks by 2.5 % otherwise, so that it rests where less than 1 of 10 is outside. */
double sg_real_spread(double share, double deviation);

#endif
