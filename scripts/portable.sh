#!/usr/bin/env bash
# Builds target/portable/longhaul, which runs on any Linux of this architecture that is ten years
# old: linked with the symbols of glibc 2.17 (2012; CentOS 7, Debian 8, Ubuntu 14.04), whatever this
# machine has. Fails where the result needs a newer one, or does not start here.
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=2.17
target=$(uname -m)-unknown-linux-gnu
tools=target/portable/tools

# zig is the C compiler and linker that knows the symbols of each glibc; cargo-zigbuild passes them
# on to cargo. Both are pinned, in a folder of their own.
wanted="ziglang==0.17.1 cargo-zigbuild==0.24.0"
if [ "$(cat "$tools/wanted" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$tools"
    python3 -m venv "$tools"
    # shellcheck disable=SC2086  # several words
    "$tools/bin/pip" install --quiet --disable-pip-version-check $wanted
    echo "$wanted" >"$tools/wanted"
fi
PATH="$PWD/$tools/bin:$PATH" cargo zigbuild --locked --release -p longhaul \
    --target "$target.$glibc" --target-dir target/portable
built=target/portable/$target/release/longhaul

# What it asks of the C library, by symbol.
newest=$(objdump -T "$built" | grep -o 'GLIBC_[0-9.]*' | sort -u -V | tail -n 1)
newest=${newest#GLIBC_}
if [ -z "$newest" ] || [ "$(printf '%s\n' "$newest" $glibc | sort -V | tail -n 1)" != $glibc ]; then
    echo "portable: $built needs glibc ${newest:-of an unknown version}, not $glibc" >&2
    exit 1
fi
# That of `longhaul wrap`, which it holds, asks for nothing.
for library in target/portable/"$target"/release/build/longhaul-*/out/liblonghaul_wrap.so; do
    if objdump -T "$library" | grep 'GLIBC_'; then
        echo "portable: $library needs a C library" >&2
        exit 1
    fi
done
cp "$built" target/portable/longhaul
target/portable/longhaul --version
echo "portable: target/portable/longhaul needs glibc $newest or newer"
