#!/usr/bin/env bash
# The conformance tests of the C ABI once more, with their C side under AddressSanitizer and
# UndefinedBehaviorSanitizer: handlers that break their contract, with collections on other threads,
# access no invalid memory, and nothing leaks except the entries of ci/lsan.supp.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 900 "$@"

out=$target/capi
mkdir -p "$out"
if ! printf 'int main(void) { return 0; }\n' | cc -fsanitize=address,undefined -x c - -o "$out/asan" 2>/dev/null; then
    skipped 'the C tests under AddressSanitizer' 'apt-get install -y gcc libc6-dev'
    exit 0
fi

# A planted leak, which LeakSanitizer must report.
printf '#include <stdlib.h>\nint main(void) { return malloc(40) == NULL; }\n' >"$out/leaks.c"
cc -g -fsanitize=address "$out/leaks.c" -o "$out/leaks-asan"
LSAN_OPTIONS="suppressions=$PWD/ci/lsan.supp" "$out/leaks-asan" >"$out/leaks.log" 2>&1 && status=0 || status=$?
if ((status == 0)) || ! grep -q 'detected memory leaks' "$out/leaks.log"; then
    echo 'LeakSanitizer does not see what leaks.c does wrong' >&2
    exit 1
fi

# At a fork the AddressSanitizer of GCC 12 does not hold the locks of its allocator. In the test
# that is left out, other threads allocate at that time, so its child sometimes waits for ever.
STANDSTILL_CFLAGS='-fsanitize=address,undefined -fno-sanitize-recover=undefined' \
    ASAN_OPTIONS=detect_leaks=1 LSAN_OPTIONS="suppressions=$PWD/ci/lsan.supp:print_suppressions=0" \
    timeout --kill-after=30 600 cargo test --quiet -p standstill-capi --test conformance -- \
    --skip the_child_attaches_although_other_threads_did_so_at_the_fork
