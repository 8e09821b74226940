#!/usr/bin/env bash
# The library without its features. Clippy, and not check: it shares what ci/lint.sh has built.
#
# * The library compiles with none, which leaves the coordinator, with `heap` alone, and with
#   `derive` alone, as its tests do. Without `parallel` and `tracing` the library does not depend on
#   rayon and tracing. The examples of the coordinator's package pass with none.
# * With `handle-places` a planted leak is found, and clones count as they do without.
# * With `metrics`, `usdt` and `stacks` the library compiles. examples/prometheus shows what a
#   server gets, and a program has the notes by which tracers find the probes. With `stacks` the
#   tests of sites, forks and late threads pass.
# * With STANDSTILL_FULL=1 also each other feature alone, and all but each. With none the unit tests
#   pass; with `derive` alone the traps of typed objects, the laws and the threads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited "$(is_full && echo 1800 || echo 600)" "$@"

features=(derive cpython parallel tracing)
sets=('' heap derive metrics,usdt,stacks derive,handle-places)
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

cargo test --quiet -p standstill --features handle-places --test=handle_places --test=handles
cargo test --quiet -p standstill --features handle-places --lib -- handle_places
cargo clippy --quiet -p standstill --features stacks --tests -- -D warnings
cargo test --quiet -p standstill --features stacks --test sites --test fork --test late_stacks
cargo test --quiet -p standstill --features stacks --lib -- interrupt samples stack
cargo test --quiet -p standstill-safepoint
# ci/shuttle.sh runs it.
RUSTFLAGS="${RUSTFLAGS:-} --cfg standstill_shuttle" \
    cargo check --quiet -p standstill-model-check --features shuttle --test schedules --target-dir "$target/shuttle"
without=(cargo test --quiet -p standstill --no-default-features)
! is_full || "${without[@]}" --lib
cargo fmt --check --manifest-path examples/prometheus/Cargo.toml
cargo test --quiet --manifest-path examples/prometheus/Cargo.toml --target-dir "$target"

cargo build --quiet -p standstill-examples --example list --features standstill/usdt
if needs 'the probes' 'apt-get install -y binutils' command -v readelf; then
    notes="$(readelf --notes "$target/debug/examples/list")"
    for probe in stopped resumed phase collection__begin collection__end slow; do
        grep -A1 'Provider: standstill' <<<"$notes" | grep -q "Name: $probe$" || {
            echo "a program with the feature \`usdt\` has no probe $probe" >&2
            exit 1
        }
    done
fi
! is_full || "${without[@]}" --features derive --test={traps,laws,threads}
