#!/usr/bin/env bash
# ThreadSanitizer over two programs with threads, AddressSanitizer and LeakSanitizer over two
# programs that misuse memory. With STANDSTILL_FULL=1: the unit tests, more programs and the C
# program, for longer.
#
#     ci/san.sh [thread|address]
#
# Needs a nightly toolchain and the source of std.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash

limit=600 seconds=1 sanitizers='thread address'
if is_full; then
    limit=1800 seconds=10
fi
case "${1:-}" in
    '') ;;
    thread | address) sanitizers="$1" ;;
    *) echo 'usage: ci/san.sh [thread|address]' >&2 && exit 2 ;;
esac
limited "$((6 * limit))" "$@"
triple=x86_64-unknown-linux-gnu
folder="$target"

if [[ "$(rustc -vV | sed -n 's/^host: //p')" != "$triple" ]]; then
    skipped 'the sanitizers' 'a machine with x86-64 Linux'
    exit 0
fi
needs 'the sanitizers, with a nightly toolchain' 'rustup toolchain install nightly --profile minimal' nightly || exit 0
toolchain="$(nightly)"
libraries="$(rustc "+$toolchain" --print target-libdir)"

# The std that comes with a toolchain is not instrumented. ThreadSanitizer then misses the contended
# half of its locks, and reports races on the data that they guard. So std is built from its source,
# and nothing is suppressed: std and crossbeam themselves replace the fences, which ThreadSanitizer
# does not support. Without the source only the unit tests run, with the suppressions of
# ci/tsan.supp.
source="$(rustc "+$toolchain" --print sysroot)/lib/rustlib/src/rust/library"
needs 'ThreadSanitizer over the tests with threads, with the source of std' \
    "rustup component add rust-src --toolchain $toolchain" test -d "$source" || true

export STANDSTILL_STRESS_SECS="${STANDSTILL_STRESS_SECS:-$seconds}"
# Instrumented frames are several times as large; tests that want a small stack ask for one.
export RUST_MIN_STACK="${RUST_MIN_STACK:-16777216}"
export LSAN_OPTIONS="suppressions=$PWD/ci/lsan.supp:print_suppressions=0"

# Allows a std that is not instrumented.
foreign_std=-Cunsafe-allow-abi-mismatch=sanitizer

# with SANITIZER: the following builds and runs use it.
with() {
    sanitizer="$1"
    export RUSTFLAGS="-Zsanitizer=$sanitizer"
    # ThreadSanitizer must see that memory is unmapped. Otherwise it reports a race between the last
    # check of one heap and the first access of another heap that got the same addresses: rustix
    # makes system calls without libc.
    [[ "$sanitizer" != thread ]] || RUSTFLAGS+=' --cfg rustix_use_libc'
    export CARGO_TARGET_DIR="$folder/san-$sanitizer"
    built="$CARGO_TARGET_DIR/$triple/debug"
    unset CARGO_UNSTABLE_BUILD_STD
    # A test requests more memory than the machine has. A leak is told with enough of its stack to
    # find the test that lsan.supp names.
    export ASAN_OPTIONS=allocator_may_return_null=1:malloc_context_size=60
    export TSAN_OPTIONS=allocator_may_return_null=1
    if [[ "$sanitizer" == thread && -d "$source" ]]; then
        export CARGO_UNSTABLE_BUILD_STD=std
    else
        RUSTFLAGS+=" $foreign_std"
        # Tests name their immortal objects to LeakSanitizer (`tests/common`,
        # `live_for_ever`).
        [[ "$sanitizer" != address ]] || RUSTFLAGS+=' --cfg leaks_count'
        [[ "$sanitizer" == address ]] || TSAN_OPTIONS+=":suppressions=$PWD/ci/tsan.supp"
    fi
    # A C compiler has a run-time library of its own, and a process must have only one: rustc's,
    # under that name.
    local short="${sanitizer:0:1}san"
    mkdir -p "$CARGO_TARGET_DIR/runtime"
    ln -sf "$libraries"/librustc*_rt."$short".a "$CARGO_TARGET_DIR/runtime/lib$short.a"
    instrumented=("-fsanitize=$sanitizer" "-static-lib$short" "-L$CARGO_TARGET_DIR/runtime")
}

# canary NAME EXPECTED: the planted fault on stdin must be reported. A sanitizer that misses
# everything would otherwise pass.
canary() {
    local program="$CARGO_TARGET_DIR/canary-$1" output
    cat >"$program.rs"
    rustc "+$toolchain" --edition 2024 "-Zsanitizer=$sanitizer" "$foreign_std" -g "$program.rs" -o "$program"
    output="$(timeout --kill-after=5 60 "$program" 2>&1)" && output=
    [[ "$output" == *"$2"*canary* ]] || {
        echo "$sanitizer: a planted fault ($1) was not reported; do the suppressions hide too much?" >&2
        exit 1
    }
}

# step WHAT COMMAND...: prints the time that the command took.
step() {
    local what="$1" begun=$SECONDS
    shift
    timeout --kill-after=30 "$limit" "$@" || {
        echo "$sanitizer: $what FAILED after $((SECONDS - begun)) s" >&2
        exit 1
    }
    echo "$sanitizer: $what in $((SECONDS - begun)) s"
}

# tests WHAT...: each (--lib, --test=NAME) is a binary. Its programs have the size of a commit's,
# because at full size under ThreadSanitizer the oracle takes longer than its own deadline.
tests() {
    local test=(env -u STANDSTILL_FULL cargo "+$toolchain" test) what
    test+=(--quiet -p standstill --target "$triple")
    step build "${test[@]}" --no-run "$@"
    for what in "$@"; do
        # shellcheck disable=SC2046 # each is a word
        step "$what" "${test[@]}" "$what" -- $(left_out "${what#--test=}")
    done
}

# The C program with its threads. C and Rust are both instrumented, so that a race between the two
# is reported.
c_program() {
    is_full || return 0
    if ! command -v cc >/dev/null; then
        skipped 'the C program under a sanitizer' 'apt-get install -y gcc libc6-dev'
        return
    fi
    step 'the C library' cargo "+$toolchain" build --quiet -p standstill-capi --lib \
        --features standstill/default --target "$triple"
    cc -std=c11 -g -O1 "${instrumented[@]}" -I capi/include capi/examples/objects/*.c "$built/libstandstill_capi.a" \
        -lpthread -ldl -lm -o "$built/objects"
    step 'the C program' "$built/objects" 3 2000
}

# left_out WHAT: arguments that skip tests which a sanitizer cannot judge.
left_out() {
    case "$sanitizer $1" in
        # Ten million objects one after the other, on one thread.
        'thread laws') echo --skip=law_7_ ;;
        # The amount of garbage at a time depends on the speed of each thread.
        'thread scenarios') echo --skip=garbage_of_many_threads_does_not_run_away ;;
        # LeakSanitizer cannot attach to a program with more rights than its caller.
        'address stress_modes') echo --skip=a_program_with_more_rights ;;
    esac
}

# Not `fork`: its child starts threads, which ThreadSanitizer refuses.
under_threads=(--test={thread_words,oracle_threads})
under_memory=(--test={hostile,dynamic})
if is_full; then
    under_threads+=(--lib --test={traps,threads,coordinator,services,model,helping,reclaim,slices})
    under_threads+=(--test={memory,dynamic,hostile,scenarios,regressions,events,derive,detached})
    under_threads+=(--test={laws,oracle,ambient})
    under_memory+=(--lib --test={thread_words,threads,sizes,regressions,slices,oracle,traps})
    under_memory+=(--test={oracle_threads,stress_modes,services,model,memory,scenarios,snapshot})
    under_memory+=(--test={ambient,child_search})
fi

under_thread() {
    with thread
    canary race 'data race' <<'RUST'
#[inline(never)]
fn planted(word: usize) {
    for _ in 0..10_000 {
        unsafe { *(word as *mut u64) += 1 }
    }
}
fn main() {
    let word = Box::into_raw(Box::new(0u64)) as usize;
    let threads = [(); 2].map(|()| std::thread::spawn(move || planted(word)));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
RUST
    if [[ ! -d "$source" ]]; then
        tests --lib
    else
        tests "${under_threads[@]}"
        c_program
    fi
}

under_address() {
    with address
    canary overflow heap-buffer-overflow <<'RUST'
#[inline(never)]
fn planted(bytes: &[u8]) -> u8 {
    unsafe { *bytes.as_ptr().add(bytes.len()) }
}
fn main() {
    println!("{}", planted(&std::hint::black_box(vec![1; 100])));
}
RUST
    canary leak 'detected memory leaks' <<'RUST'
#[inline(never)]
fn planted() {
    std::mem::forget(std::hint::black_box(vec![1; 100]));
}
fn main() {
    planted();
}
RUST
    tests "${under_memory[@]}"
    c_program
}

for one in $sanitizers; do
    "under_$one"
done
