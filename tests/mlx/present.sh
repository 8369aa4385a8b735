#!/bin/sh
# Runs a command where the build has the unit mlx. present.sh COMMAND...
# SPDX-License-Identifier: MIT
if [ -n "${SEGUE_NO_MLX:-}" ]; then
    echo "SKIP mlx: this build has no MLX; \`make mlx\` installs it"
    exit 77
fi
exec "$@"
