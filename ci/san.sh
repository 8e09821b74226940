#!/usr/bin/env bash
# ThreadSanitizer over the unit tests and the tests with threads and traps, AddressSanitizer over the unit tests
# and the hostile ones. Needs a nightly toolchain; without one it says so, loudly, and passes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=x86_64-unknown-linux-gnu
toolchain="$(rustup toolchain list 2>/dev/null | grep -oE '^nightly[^ ]*' | head -n 1 || true)"
if [[ -z "$toolchain" || "$(rustc -vV | sed -n 's/^host: //p')" != "$target" ]]; then
    echo '!!!! SKIPPED: the sanitizers need a nightly toolchain on x86-64 Linux, and here is none !!!!' >&2
    exit 0
fi

export STANDSTILL_STRESS_SECS="${STANDSTILL_STRESS_SECS:-3}"
# The std that comes with a toolchain is not instrumented: what cannot be judged for that reason is suppressed.
export TSAN_OPTIONS="${TSAN_OPTIONS:-} suppressions=$PWD/ci/tsan.supp"

# check SANITIZER WHAT...: each WHAT (--lib, --test=NAME) is a binary, with a limit of its own.
check() {
    local sanitizer="$1" what begun
    shift
    # std says in its ABI that it is not instrumented: allowed.
    local -x RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer"
    local build=(cargo "+$toolchain" test --quiet --target "$target" --target-dir "target/san-$sanitizer")
    begun=$SECONDS
    "${build[@]}" --no-run "$@"
    echo "$sanitizer: built in $((SECONDS - begun)) s"
    for what in "$@"; do
        begun=$SECONDS
        timeout --kill-after=30 300 "${build[@]}" "$what"
        echo "$sanitizer: $what in $((SECONDS - begun)) s"
    done
}

check thread --lib --test=threads --test=traps
check address --lib --test=hostile
