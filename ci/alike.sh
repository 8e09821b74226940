#!/usr/bin/env bash
# One C program, built with this library and with the installed CPython, must print the same with
# both. It needs CPython's header and library.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 900 "$@"

config="${PYTHON_CONFIG:-python3-config}"
install='apt-get install -y python3-dev'
needs 'the comparison with CPython, by python3-config' "$install" "$config" --embed --ldflags || exit 0
flags="$("$config" --includes)"
libs="$("$config" --embed --ldflags)"

cargo build --release --quiet -p standstill-capi --features standstill/default
out=$target/capi
mkdir -p "$out"
source=capi/tests/alike/alike.c
cc -std=c11 -O1 -I capi/include "$source" "$target/release/libstandstill_capi.a" -lpthread -ldl -lm -o "$out/alike-ours"
# shellcheck disable=SC2086 # the flags are words
if ! cc -std=c11 -O1 -w -DWITH_CPYTHON $flags "$source" $libs -o "$out/alike-cpython" 2>"$out/alike.log"; then
    skipped 'the comparison with CPython, whose header or library is not complete' "$install"
    exit 0
fi
timeout --kill-after=5 60 "$out/alike-ours" >"$out/alike-ours.txt"
timeout --kill-after=5 60 "$out/alike-cpython" >"$out/alike-cpython.txt"
diff "$out/alike-ours.txt" "$out/alike-cpython.txt"
echo "$(wc -l <"$out/alike-ours.txt") lines, the same with CPython $("$config" --embed --ldflags | grep -oE 'python3\.[0-9]+' | head -n 1)"
