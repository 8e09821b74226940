#!/usr/bin/env bash
# ThreadSanitizer and AddressSanitizer over the unit tests and the tests with threads. Needs a nightly
# toolchain; without one it says so, loudly, and passes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=x86_64-unknown-linux-gnu
toolchain="$(rustup toolchain list 2>/dev/null | grep -oE '^nightly[^ ]*' | head -n 1 || true)"
if [[ -z "$toolchain" || "$(rustc -vV | sed -n 's/^host: //p')" != "$target" ]]; then
    echo '!!!! SKIPPED: the sanitizers need a nightly toolchain on x86-64 Linux, and here is none !!!!' >&2
    exit 0
fi

tests=(--lib)
for name in threads scenarios traps coordinator; do
    if [[ -e "tests/$name.rs" || -e "tests/$name/main.rs" ]]; then
        tests+=("--test=$name")
    fi
done
export STANDSTILL_STRESS_SECS="${STANDSTILL_STRESS_SECS:-1}"
user_flags="${RUSTFLAGS:-}"


# ThreadSanitizer does not see into the std that comes with a toolchain. With std's source at hand it is
# built anew, instrumented; else what it cannot judge is suppressed (ci/tsan.supp), nothing of ours.
build_std=()
if [[ -d "$(rustc "+$toolchain" --print sysroot)/lib/rustlib/src/rust/library" ]]; then
    build_std=(-Zbuild-std)
else
    export TSAN_OPTIONS="${TSAN_OPTIONS:-} suppressions=$PWD/ci/tsan.supp"
    echo 'thread: std is not instrumented; rust-src would make this check sharper'
fi

check() {
    local sanitizer="$1"
    shift
    echo "$sanitizer: ${tests[*]}"
    # std comes without instrumentation, and says so in its ABI: allowed.
    RUSTFLAGS="$user_flags -Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer" \
        cargo "+$toolchain" test --quiet "$@" \
        --target "$target" --target-dir "target/san-$sanitizer" "${tests[@]}"
}

check thread "${build_std[@]}"
check address
