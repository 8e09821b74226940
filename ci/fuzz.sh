#!/usr/bin/env bash
# Coverage-guided fuzzing (fuzz/): each target for a number of seconds, 30 by default, from the
# corpus in the repository. Needs a nightly toolchain and a C++ compiler (libFuzzer is built from
# source). Findings lie in fuzz/artifacts, and new useful inputs in target/fuzz-corpus: `ci/fuzz.sh
# --minimise` copies a minimal set of them into the corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash

seconds=30
minimise=
case "${1:-}" in
    '') ;;
    --minimise) minimise=yes ;;
    *[!0-9]*) echo "usage: ci/fuzz.sh [SECONDS | --minimise]" >&2 && exit 2 ;;
    *) seconds="$1" ;;
esac
limited "$((1500 + 3 * seconds))" "$@"

triple=x86_64-unknown-linux-gnu
if [[ "$(rustc -vV | sed -n 's/^host: //p')" != "$triple" ]]; then
    skipped 'fuzzing' "a machine with x86-64 Linux"
    exit 0
fi
needs 'fuzzing, with a nightly toolchain' 'rustup toolchain install nightly --profile minimal' nightly || exit 0
needs 'fuzzing, with libFuzzer, which is C++' 'apt-get install -y g++' command -v c++ || exit 0
toolchain="$(nightly)"

# The flags of `cargo fuzz`.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer -Ccodegen-units=1"
out="$target/fuzz"
cargo "+$toolchain" build --quiet --release --manifest-path fuzz/Cargo.toml --target "$triple" --target-dir "$out"

# A heap reserves more than it uses, and a process that ends with a heap leaks it.
export ASAN_OPTIONS="${ASAN_OPTIONS:-} detect_leaks=0"
kept="$target/fuzz-corpus"

fuzz() {
    local name="$1"
    shift
    mkdir -p "$kept/$name" "fuzz/artifacts/$name"
    local binary="$out/$triple/release/$name" corpus="fuzz/corpus/$name" log="$kept/$name.log"
    if [[ -n "$minimise" ]]; then
        rm -rf "$corpus.new"
        mkdir -p "$corpus.new"
        "$binary" -merge=1 "$@" "$corpus.new" "$corpus" "$kept/$name" >"$log" 2>&1
        rm -rf "$corpus"
        mv "$corpus.new" "$corpus"
        echo "$name: $(find "$corpus" -type f | wc -l) files of $(du -sb "$corpus" | cut -f 1) bytes"
        return
    fi
    timeout --kill-after=60 "$((seconds + 300))" "$binary" "-max_total_time=$seconds" -timeout=20 -rss_limit_mb=2048 \
        -print_final_stats=1 "-artifact_prefix=fuzz/artifacts/$name/" "$@" "$kept/$name" "$corpus" >"$log" 2>&1 || {
        local status=$?
        tail -n 60 "$log" >&2
        echo "$name has failed; the input is in fuzz/artifacts/$name" >&2
        exit "$status"
    }
    echo "$name: $(grep -oE 'number_of_executed_units: [0-9]+' "$log" | grep -oE '[0-9]+') executions in $seconds s," \
        "$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1 | grep -oE '[0-9]+') edges covered"
}

# Each runs on one thread: both at once.
fuzz program -max_len=1025 -len_control=0 &
program=$!
fuzz snapshot -max_len=4096 -dict=fuzz/snapshot.dict &
snapshot=$!
status=0
wait "$program" || status=$?
wait "$snapshot" || status=$?
exit "$status"
