/* graph.c: a finished graph: finding outputs, letting it go. Building is in build.c, the rules in
 * graphcheck.c.
 * SPDX-License-Identifier: MIT */
#include "graph/graph.h"

#include <string.h>

void sg_graph_free(struct sg_graph *g)
{
    if (!g) return;
    sg_arena_free(&g->arena);
    sg_free(g);
}

int32_t sg_graph_output(const struct sg_graph *g, const char *name)
{
    for (uint32_t i = 0; i < g->outputs_n; i++)
        if (!strcmp(g->outputs[i].name, name)) return (int32_t)i;
    return -1;
}
