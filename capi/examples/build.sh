#!/bin/sh
# Builds the C examples with cc: ./build.sh [directory of libstandstill_capi.a [output directory]].
# CC and CFLAGS are respected. Before it: cargo build --release -p standstill-capi
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lib=${1:-$here/../../target/release}
out=${2:-$here/../../target/examples-c}
mkdir -p "$out"
for program in minimal coordinator objects; do
    if [ -d "$here/$program" ]; then sources="$here/$program"/*.c; else sources=$here/$program.c; fi
    # shellcheck disable=SC2086 # the sources and the flags are lists
    ${CC:-cc} ${CFLAGS:--O2 -g -Wall -Wextra} -I"$here/../include" $sources \
        "$lib/libstandstill_capi.a" -lpthread -ldl -lm -o "$out/$program"
    echo "$out/$program"
done
