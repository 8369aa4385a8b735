#!/bin/sh
# The trial of a newcomer: an empty Debian 12 root with nothing but git, make and root, the committed tree cloned into
# it, then `make run` and `make test`. Needs root, debootstrap and the network. ROOT=DIR keeps the root for a look;
# STEPS="run" leaves the tests out.
# SPDX-License-Identifier: MIT
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
steps=${STEPS:-run test}
[ "$(id -u)" = 0 ] || { echo "fresh: needs root" >&2; exit 3; }
command -v debootstrap >/dev/null 2>&1 || { echo "fresh: needs debootstrap; install it" >&2; exit 3; }
if [ -n "${ROOT:-}" ]; then root=$ROOT; mkdir -p "$root"; keep=1
else root=$(mktemp -d); keep=0; fi
mounted=''
leave() {
    for m in $mounted; do umount -l "$m" 2>/dev/null || true; done
    [ $keep = 1 ] || rm -rf --one-file-system "$root"
}
trap leave EXIT
trap 'exit 130' INT TERM

[ -x "$root/usr/bin/make" ] || debootstrap --variant=minbase --include=git,make bookworm "$root" ${MIRROR:-} >"$root.log" 2>&1 ||
    { tail -n 5 "$root.log" >&2; echo "fresh: debootstrap failed" >&2; exit 1; }
rm -f "$root.log"
for m in proc sys dev; do mount --rbind "/$m" "$root/$m" && mount --make-rslave "$root/$m" && mounted="$root/$m $mounted"; done
# What this machine needs to reach its package sources, the new root needs too.
for f in etc/resolv.conf etc/hosts etc/pip.conf; do [ ! -e "/$f" ] || cp -L "/$f" "$root/$f"; done
mkdir -p "$root/etc/apt/apt.conf.d" "$root/usr/local/share/ca-certificates"
for f in $(grep -l '^Acquire' /etc/apt/apt.conf.d/* 2>/dev/null || true); do cp "$f" "$root/etc/apt/apt.conf.d/"; done
cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
rm -rf "$root/root/segue"
git clone -q "$here" "$root/root/segue"
for step in $steps; do
    echo "fresh: make $step"
    # shellcheck disable=SC2046
    chroot "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        $(env | grep -iE '^(https?_proxy|no_proxy)=' || true) make -C /root/segue "$step"
done
echo "fresh: passed: $steps"
