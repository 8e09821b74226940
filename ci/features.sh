#!/usr/bin/env bash
# The library without its features. Clippy, and not check: it shares what ci/lint.sh has built.
#
# * The library compiles with none, and with `derive` alone, as its tests do. Without `parallel` and
#   `tracing` the library does not depend on rayon and tracing. With none the coordinator works.
# * With `metrics` the library compiles, and examples/prometheus shows what a server gets.
# * With STANDSTILL_FULL=1 also each other feature alone, and all but each. With none the unit tests
#   pass; with `derive` alone the traps of typed objects, the laws and the threads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited "$(is_full && echo 1800 || echo 600)" "$@"

features=(derive cpython parallel tracing)
sets=('' derive metrics)
! is_full || for one in "${features[@]}"; do
    rest="$(printf '%s,' "${features[@]/$one/}")"
    sets+=("$one" "$rest")
done
for set in "${sets[@]}"; do
    echo "features: ${set:-none}"
    cargo clippy --quiet -p standstill --lib --no-default-features --features "$set" -- -D warnings
done
cargo clippy --quiet -p standstill --tests --no-default-features --features derive -- -D warnings

# depends FEATURES PACKAGE
depends() {
    cargo tree --quiet -p standstill --edges normal --target all --no-default-features --features "$1" --prefix none |
        grep -qE "^$2(-core)? v"
}
for row in ',rayon' ',tracing' 'parallel,tracing' 'tracing,rayon'; do
    if depends "${row%,*}" "${row#*,}"; then
        echo "with the features '${row%,*}' the library depends on ${row#*,}" >&2
        exit 1
    fi
done
if ! depends parallel rayon || ! depends tracing tracing; then
    echo 'cargo tree no longer shows what this script looks for' >&2
    exit 1
fi

without=(cargo test --quiet -p standstill --no-default-features)
"${without[@]}" --test coordinator
! is_full || "${without[@]}" --lib
cargo fmt --check --manifest-path examples/prometheus/Cargo.toml
cargo test --quiet --manifest-path examples/prometheus/Cargo.toml --target-dir "$target"
! is_full || "${without[@]}" --features derive --test={traps,laws,threads}
