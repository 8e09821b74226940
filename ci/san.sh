#!/usr/bin/env bash
# ThreadSanitizer over the unit tests and (with rust-src) the tests with threads and traps, AddressSanitizer over the unit tests
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

# The std that comes with a toolchain is not instrumented. Of its locks ThreadSanitizer then does not see the contended
# half, so it reports whatever they guard, in the tests with threads a thousand times, and true races cannot be told from
# that. With std's source at hand std is built anew, instrumented; else the unit tests alone are judged, less a
# few lines of suppressions.
build_std=()
threaded=()
if [[ -d "$(rustc "+$toolchain" --print sysroot)/lib/rustlib/src/rust/library" ]]; then
    build_std=(-Zbuild-std)
    threaded=(--test=threads --test=traps)
else
    export TSAN_OPTIONS="${TSAN_OPTIONS:-} suppressions=$PWD/ci/tsan.supp"
    echo '!!!! SKIPPED: ThreadSanitizer over threads and traps needs std'\''s source:' \
        "rustup component add rust-src --toolchain $toolchain !!!!" >&2
fi

# Suppressions that hide everything would pass for ever: a planted race must be reported.
canary() {
    local dir=target/san-canary
    mkdir -p "$dir"
    cat >"$dir/canary.rs" <<'RUST'
#[test]
fn two_threads_write_one_word() {
    struct Word(*mut u64);
    unsafe impl Send for Word {}
    impl Word {
        #[inline(never)]
        fn bump(&self) {
            for _ in 0..10_000 {
                unsafe { self.0.write(self.0.read() + 1) }
            }
        }
    }
    let word = Box::into_raw(Box::new(0));
    let (a, b) = (Word(word), Word(word));
    let a = std::thread::spawn(move || { let a = a; a.bump() });
    let b = std::thread::spawn(move || { let b = b; b.bump() });
    a.join().unwrap();
    b.join().unwrap();
}
RUST
    rustc "+$toolchain" --edition 2024 --test -Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer \
        -g "$dir/canary.rs" -o "$dir/canary"
    local output
    output="$(timeout --kill-after=5 60 "$dir/canary" 2>&1 || true)"
    [[ "$output" == *'data race'*'::bump'* ]] || {
        echo 'thread: a planted race was not reported; do the suppressions in ci/tsan.supp hide too much?' >&2
        exit 1
    }
}

# check SANITIZER WHAT...: each WHAT (--lib, --test=NAME) is a binary, with a limit of its own.
check() {
    local sanitizer="$1" what begun
    shift
    # std says in its ABI that it is not instrumented: allowed.
    local -x RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer"
    local build=(cargo "+$toolchain" test --quiet "${extra[@]}" --target "$target" --target-dir "target/san-$sanitizer")
    begun=$SECONDS
    "${build[@]}" --no-run "$@"
    echo "$sanitizer: built in $((SECONDS - begun)) s"
    for what in "$@"; do
        begun=$SECONDS
        timeout --kill-after=30 300 "${build[@]}" "$what"
        echo "$sanitizer: $what in $((SECONDS - begun)) s"
    done
}

canary
extra=("${build_std[@]}")
check thread --lib "${threaded[@]}"
extra=()
check address --lib
# Hostile tests leak handles, guards and whole heaps (a cycle that cannot be broken keeps its own), so what leaks there has
# not been sorted out by hand; the unit tests are checked for leaks.
export ASAN_OPTIONS="${ASAN_OPTIONS:-} detect_leaks=0"
check address --test=hostile --test=dynamic
