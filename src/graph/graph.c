/* graph.c: lookup and release of a finished graph. build.c builds graphs, graphcheck.c validates
 * them.
 * SPDX-License-Identifier: MIT */
#include "graph/graph.h"

#include <string.h>

/* The arena owns all lists of the graph. */
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
