#!/bin/sh
# Install into an empty folder, build docs/examples/answer.c against it through pkg-config (shared and static) and
# through CMake's find_package, start the installed command, uninstall, and find nothing left.
# SPDX-License-Identifier: MIT
set -eu
source=$1 build=$2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT INT TERM
fail() { echo "install: $*" >&2; exit 1; }
DESTDIR=$root cmake --install "$build" --prefix /opt/segue >/dev/null
prefix=$root/opt/segue
for file in bin/segue include/segue.h share/man/man1/segue.1 share/man/man1/segue-run.1 \
    share/bash-completion/completions/segue share/zsh/site-functions/_segue share/fish/vendor_completions.d/segue.fish; do
    [ -s "$prefix/$file" ] || fail "$file is missing"
done
pc=$(find "$prefix" -name segue.pc)
PKG_CONFIG_PATH=$(dirname "$pc"); export PKG_CONFIG_PATH
example=$source/docs/examples/answer.c
libdir=$(dirname "$(find "$prefix" -name libsegue.a)")
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Werror "$example" $(pkg-config --cflags --libs segue) -o "$root/shared"
LD_LIBRARY_PATH=$libdir "$root/shared" || [ $? = 2 ] || fail "the shared example does not start"
# shellcheck disable=SC2046
cc -std=c11 "$example" $(pkg-config --cflags segue) "$libdir/libsegue.a" $(pkg-config --libs --static segue | sed 's/-lsegue//') -o "$root/static"
"$root/static" || [ $? = 2 ] || fail "the static example does not start"
mkdir "$root/user"
cat >"$root/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.16)
project(user C)
find_package(segue 0.1 REQUIRED)
add_executable(user $example)
target_link_libraries(user PRIVATE segue::segue)
END
cmake -S "$root/user" -B "$root/user/build" -DCMAKE_PREFIX_PATH="$prefix" >"$root/log" 2>&1 &&
    cmake --build "$root/user/build" >>"$root/log" 2>&1 || { cat "$root/log"; fail "find_package(segue) does not serve"; }
"$prefix/bin/segue" version --json | grep -q '"version"' || fail "the installed command does not answer"
sh "$source/cmake/uninstall.sh" "$build" "$root" /opt/segue >/dev/null
left=$(find "$prefix" ! -type d | head)
[ -z "$left" ] || fail "uninstall left $left"
echo "install: pkg-config, CMake, man pages, completions; uninstall left nothing"
