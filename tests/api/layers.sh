#!/bin/sh
# layers.sh SOURCE: folders point one way. Reads every #include "..." of include/, src/ and cli/ and holds it against the
# list below; also: units do not include each other, no unit is named outside its folder, file names are unique, headers
# that are only interfaces have no source of their stem, and no system call of printing or ending is written in src/.
# SPDX-License-Identifier: MIT
set -eu
cd "$1"
bad=$(mktemp)
trap 'rm -f "$bad"' EXIT

# folder: what it may include (itself always)
may() {
    case $1 in
    base) echo "include" ;;
    tensor) echo "base include" ;;
    text) echo "tensor base include" ;;
    graph) echo "tensor base include" ;;
    unit) echo "graph tensor base include" ;;
    model) echo "graph text tensor base include" ;;
    train) echo "unit model graph text tensor base include" ;;
    engine) echo "train unit model graph text tensor base include" ;;
    *) echo "" ;;
    esac
}

for file in $(find src -name '*.[ch]' | sort); do
    folder=$(echo "$file" | cut -d/ -f2)
    grep -oE '^ *# *include *"[^"]+"' "$file" | sed 's/.*"\(.*\)"/\1/' | while read -r path; do
        case $path in
        segue.h | segue_train.h) to=include ;;
        unit_list.h | chip_texts.h) to=engine ;; # generated
        */*) to=${path%%/*} ;;
        *) to=$folder; [ -f "$(dirname "$file")/$path" ] || [ "$folder" = unit ] ||
            echo "$file: $path: include by path from src/" ;;
        esac
        [ "$to" = "$folder" ] && case $path in
            unit/*/*)
                own=$(echo "$file" | cut -d/ -f3)
                case $(echo "$path" | cut -d/ -f2) in "$own" | group | kv) ;; *) false ;; esac || echo "$file: $path: a unit includes another unit" ;;
            esac
        [ "$to" = "$folder" ] || echo " $(may "$folder") " | grep -q " $to " ||
            echo "$file: $path: $folder may not include $to"
    done
done >> "$bad"

# The command sees the public header only. Written exceptions: inspect, models, quantize, imatrix, state, mil, ane-probe, the fault
# hooks of development builds, the process in which a unit is served, the owner check of folders.c, files of training, and cli/plan/: the planner is no
# public call.
for file in $(find cli -name '*.[ch]' | sort); do
    case $file in cli/commands/cmd_inspect.c | cli/commands/cmd_models.c | cli/commands/cmd_quantize.c | cli/commands/cmd_imatrix.c | cli/commands/cmd_state.c) continue ;;
    cli/host/faults.c | cli/host/serve_unit.c | cli/host/folders.c | cli/replay/recording.c | cli/commands/unit_limits.c | cli/train/train_files.[ch] | cli/train/train_adapter.c | cli/train/model_write.c) continue ;;
    cli/ane/* | cli/plan/*) continue ;; esac
    grep -oE '^ *# *include *"[^"]+"' "$file" | sed 's/.*"\(.*\)"/\1/' | while read -r path; do
        [ "$path" = segue.h ] || [ "$path" = segue_train.h ] || [ -f "cli/$path" ] || [ "$path" = commit.h ] ||
            echo "$file: $path: the command includes segue.h and its own headers only"
    done
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
