#!/bin/sh
# layers.sh SOURCE: folders point one way. Reads every #include "..." of include/, src/ and cli/ and holds it against the
# list below; also: units do not include each other, no unit is named outside its folder, file names are unique, headers
# that are only interfaces have no source of their stem, and no system call of printing or ending is written in src/.
# SPDX-License-Identifier: MIT
set -eu
cd "$1"
bad=$(mktemp)
trap 'rm -f "$bad"' EXIT

# Lines FILE:PATH of all #include "PATH" below a folder.
includes() { grep -rHoE '^ *# *include *"[^"]+"' "$1" --include='*.[ch]' | sed 's/: *# *include *"\(.*\)"$/:\1/' | sort; }

# folder: what it may include (itself always)
includes src | awk -F: '
BEGIN {
    may["base"] = "include"
    may["tensor"] = "base include"
    may["text"] = may["graph"] = "tensor base include"
    may["unit"] = "graph tensor base include"
    may["model"] = "graph text tensor base include"
    may["train"] = "unit model graph text tensor base include"
    may["engine"] = "train unit model graph text tensor base include"
}
function exists(path,   line, there) {
    there = (getline line < path) >= 0
    close(path)
    return there
}
{
    file = $1; path = $2
    split(file, at, "/"); split(path, to, "/")
    folder = at[2]; target = to[1]
    if (path == "segue.h" || path == "segue_train.h") target = "include"
    else if (path == "unit_list.h" || path == "chip_texts.h") target = "engine" # generated
    else if (path !~ /\//) {
        target = folder
        beside = file
        sub(/[^\/]*$/, path, beside)
        if (folder != "unit" && !exists(beside)) print file ": " path ": include by path from src/"
    }
    if (target == folder && path ~ /^unit\/.*\// && to[2] != at[3] && to[2] != "group" && to[2] != "kv")
        print file ": " path ": a unit includes another unit"
    if (target != folder && index(" " may[folder] " ", " " target " ") == 0)
        print file ": " path ": " folder " may not include " target
}' >> "$bad"

# The command sees the public header only. Written exceptions: inspect, models, quantize, imatrix, state, mil, ane-probe, the fault
# hooks of development builds, the process in which a unit is served, the owner check of folders.c, files of training,
# and cli/plan/: the planner is no public call.
includes cli | while IFS=: read -r file path; do
    case $file in cli/commands/cmd_inspect.c | cli/commands/cmd_models.c | cli/commands/cmd_quantize.c | cli/commands/cmd_imatrix.c | cli/commands/cmd_state.c) continue ;;
    cli/host/faults.c | cli/host/serve_unit.c | cli/host/folders.c | cli/replay/recording.c | cli/commands/unit_limits.c | cli/train/train_files.[ch] | cli/train/train_adapter.c | cli/train/model_write.c) continue ;;
    cli/ane/* | cli/plan/*) continue ;; esac
    [ "$path" = segue.h ] || [ "$path" = segue_train.h ] || [ -f "cli/$path" ] || [ "$path" = commit.h ] ||
        echo "$file: $path: the command includes segue.h and its own headers only"
done >> "$bad"

# No unit's name outside its folder: neither as a path nor as a word in quotes.
for unit in src/unit/*/; do
    unit=$(basename "$unit")
    case $unit in group | kv) continue ;; esac # ranks of one kind of unit; K and V of all units
    grep -rnE "unit/$unit/|sg_unit_$unit\b|\"$unit[:\"]" src --include='*.[ch]' | grep -v "^src/unit/$unit/" |
        sed "s/^/names the unit $unit: /" || true
done >> "$bad"

find src cli -name '*.[ch]' | sed 's|.*/||' | sort | uniq -d | sed 's/^/two files are named /' >> "$bad"
for header in src/unit/unit src/unit/serve src/unit/cpu/kernels/kernels src/model/family; do
    [ ! -f "$header.c" ] || echo "$header.c: an interface header has a source of its stem"
done >> "$bad"
grep -rnE '\b(printf|puts|putchar|perror|exit|abort|assert)\(' src --include='*.[ch]' |
    grep -vE '(sn|vsn|sg_[a-z_]*)printf\(|static_assert\(|^[^:]*:[0-9]+: *(/?\*|//)' | sed 's/^/prints or ends: /' >> "$bad" || true

if [ -s "$bad" ]; then
    cat "$bad"
    exit 1
fi
