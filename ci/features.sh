#!/usr/bin/env bash
# The library without its features. Clippy, and not check: it shares what ci/lint.sh has built.
#
# * None, and `derive` alone; with STANDSTILL_FULL=1 also each other feature alone, and all but
#   each.
# * Without `parallel` and `tracing` the library does not depend on rayon and tracing.
# * With none: the coordinator works, and hand-written `Trace` only. With `derive` alone: the
#   traps of typed objects hold, with STANDSTILL_FULL=1 the laws and the threads, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited "$(is_full && echo 1800 || echo 600)" "$@"

features=(derive cpython parallel tracing)
sets=('' derive)
! is_full || for one in "${features[@]}"; do
    rest="$(printf '%s,' "${features[@]/$one/}")"
    sets+=("$one" "$rest")
done
for set in "${sets[@]}"; do
    echo "features: ${set:-none}"
    cargo clippy --quiet -p standstill --lib --no-default-features --features "$set" -- -D warnings
done

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

cargo test --quiet -p standstill --no-default-features --lib --test coordinator
derive=(-p standstill --no-default-features --features derive)
cargo clippy --quiet "${derive[@]}" --lib --tests -- -D warnings
programs=(--test=traps)
! is_full || programs+=(--test={laws,threads})
cargo test --quiet "${derive[@]}" "${programs[@]}"
