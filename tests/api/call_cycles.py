#!/usr/bin/env python3
"""call_cycles.py BUILD SOURCE: no cycles of calls between source files, and none of includes between headers.

Calls are read from the symbol tables of the object files under BUILD (nm): file A calls file B when A has an undefined
symbol that B alone defines. Prints each strongly connected component that is not listed in ALLOWED with the calls that
form it, and exits with 1. The Jinja evaluator is recursive by nature: an expression may call a macro, whose body is a
block of expressions.
"""
import collections
import os
import re
import subprocess
import sys

# Components that may exist: every file of a found component must be in one of these sets.
ALLOWED = [
    {"src/text/jinja/"},
]


def object_files(build, source):
    """Object files of the library and the command, by source path. Objects of deleted sources are left out."""
    found = {}
    for folder, _, names in os.walk(build):
        if "segue_objects.dir" not in folder and "/segue.dir" not in folder:
            continue
        for name in names:
            match = re.search(r"\.dir/((?:src|cli)/.*\.c)\.o$", os.path.join(folder, name))
            if match and os.path.exists(os.path.join(source, match.group(1))):
                found[match.group(1)] = os.path.join(folder, name)
    return found


def call_edges(objects):
    """edges[a][b]: the symbols of b that a uses. Symbols that two files define are left out."""
    listing = subprocess.run(["nm", "-A", *objects.values()], capture_output=True, text=True, check=True).stdout
    source_of = {path: name for name, path in objects.items()}
    defined, used = collections.defaultdict(set), collections.defaultdict(set)
    for line in listing.splitlines():
        path, _, rest = line.partition(".o:")
        fields = rest.split()
        if fields[0] == "U":
            used[source_of[path + ".o"]].add(fields[1])
        elif len(fields) == 3 and fields[1] in "TDBRVW":
            defined[fields[2]].add(source_of[path + ".o"])
    edges = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, symbols in used.items():
        for symbol in symbols:
            if len(defined[symbol]) == 1:
                (target,) = defined[symbol]
                if target != name:
                    edges[name][target].append(symbol)
    return edges


def include_edges(source):
    """edges[a][b]: header a includes header b (paths below src/ and cli/)."""
    edges = collections.defaultdict(lambda: collections.defaultdict(list))
    for top in ("src", "cli"):
        for folder, _, names in os.walk(os.path.join(source, top)):
            for name in names:
                if not name.endswith((".h", ".cuh")):
                    continue
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as text:
                    for target in re.findall(r'^ *# *include *"([^"]+)"', text.read(), re.M):
                        for base in (os.path.join(source, top), folder):
                            if os.path.exists(os.path.join(base, target)):
                                to = os.path.relpath(os.path.join(base, target), source)
                                edges[os.path.relpath(path, source)][to].append("#include")
                                break
    return edges


def components(edges):
    """Strongly connected components of more than one file (Tarjan's algorithm, without recursion)."""
    index, low, on_stack, stack, found = {}, {}, set(), [], []
    for root in list(edges):
        if root in index:
            continue
        work = [(root, iter(list(edges[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(list(edges[target]) if target in edges else [])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part = []
                    while True:
                        part.append(stack.pop())
                        on_stack.discard(part[-1])
                        if part[-1] == node:
                            break
                    if len(part) > 1:
                        found.append(sorted(part))
    return found


def report(kind, edges):
    """Print the components that are not allowed; returns how many there are."""
    bad = 0
    for part in components(edges):
        if any(all(name.startswith(tuple(allowed)) for name in part) for allowed in ALLOWED):
            continue
        bad += 1
        print(f"cycle of {kind} between {len(part)} files:")
        for name in part:
            for target, symbols in sorted(edges[name].items()):
                if target in part:
                    print(f"  {name} -> {target}: {', '.join(sorted(symbols)[:4])}")
    return bad


def main():
    build, source = sys.argv[1:3]
    objects = object_files(build, source)
    if not objects:
        print("SKIP call_cycles: no object files; build first")
        sys.exit(77)
    bad = report("calls", call_edges(objects)) + report("includes", include_edges(source))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
