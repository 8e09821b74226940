#!/usr/bin/env bash
# CPython's own tests, and threads beside the collector, under a sanitizer. It takes an hour or so.
#
#     python/sanitized.sh address|thread [FILE...]    FILEs of the suite, or else all of suite.py's
#
# The interpreter, the C library of atomic operations and the Rust code of the package are all built
# with the sanitizer, Rust's std included. It needs a nightly toolchain with the component rust-src.
#
# AddressSanitizer here does not look for leaks: the interpreter leaks at its exit.
# `python/tests/test_memory.py` looks for those of the package. Of ThreadSanitizer's reports, those
# that CPython's own list names are suppressed, and those of numbers that CPython writes without
# atomic instructions, and that the package reads by atomic ones while threads run: the thresholds
# (`automatic.rs`), and the numbers of each thread (`pressure.rs`). `gc.get_stats` reads the
# statistics without a lock, while a collection writes them, by either collector.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
sanitizer="${1:?address or thread}"
shift
archive="$(echo "${CPYTHON_SOURCES:-../shared/cpython}"/cpython-3.15*.tar.xz)"
seconds="${STANDSTILL_GC_STRESS:-10}"

case "$sanitizer" in
    address) export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 ;;
    thread) export TSAN_OPTIONS=allocator_may_return_null=1:handle_segv=0:die_after_fork=0 ;;
    *) echo "there is no sanitizer $sanitizer here" >&2 && exit 2 ;;
esac
python="$(benches/cpython.sh --quick --installed "$archive" "--with-$sanitizer-sanitizer")"
root="$(dirname "$(dirname "$(dirname "$python")")")"
# The tools run in an ordinary interpreter.
out="$(realpath "${CARGO_TARGET_DIR:-target}")/python-$sanitizer"
mkdir -p "$out"
if [[ "$sanitizer" == thread ]]; then
    # The report of a race names the functions of both threads, or only the reader's.
    cat "$root/Tools/tsan/suppressions_free_threading.txt" - >"$out/suppressions" <<'END'
race:gc_set_threshold_impl
race:standstill_gc9automatic3due
race:5Watch4look
race:_Py_brc_init_thread
race:gc_get_stats_impl
END
    TSAN_OPTIONS+=":suppressions=$out/suppressions"
fi
[[ -x "$out/tools/bin/python" ]] || python3 -m venv "$out/tools"
"$out/tools/bin/python" -m pip install --quiet maturin libclang pytest
folder_of() { "$out/tools/bin/python" -c "import $1, os; print(os.path.dirname($1.__file__))"; }
nightly="$(rustup toolchain list | grep -oE '^nightly[^ ]*' | head -n 1)"
# Functions that newer libraries of ThreadSanitizer have. The library watches those that they call.
cat >"$out/missing.c" <<'END'
#include <string.h>
#define WEAK __attribute__((weak, visibility("hidden")))
WEAK void *__tsan_memcpy(void *to, const void *from, size_t n) { return memcpy(to, from, n); }
WEAK void *__tsan_memmove(void *to, const void *from, size_t n) { return memmove(to, from, n); }
WEAK void *__tsan_memset(void *to, int byte, size_t n) { return memset(to, byte, n); }
END
cc -fPIC -fno-builtin -c "$out/missing.c" -o "$out/missing.o"
rm -rf "$out/wheels" "$out/package"
flags="-Zsanitizer=$sanitizer -Clink-arg=$out/missing.o"
LIBCLANG_PATH="$(folder_of clang)/native" PYO3_PYTHON="$python" \
    RUSTUP_TOOLCHAIN="$nightly" CARGO_UNSTABLE_BUILD_STD=std RUSTFLAGS="$flags" \
    "$out/tools/bin/maturin" build --quiet --release --locked --interpreter "$python" \
    --target "$(uname -m)-unknown-linux-gnu" --out "$out/wheels" \
    --manifest-path python/Cargo.toml --target-dir "$out/target"
"$out/tools/bin/python" -m zipfile -e "$out"/wheels/*.whl "$out/package"

export PYTHONPATH="$out/package"
"$python" -c 'import standstill_gc; assert standstill_gc.active()'
status=0
"$python" python/suite.py --jobs "$(nproc)" --timeout 3600 "${@:---all}" || status=1
echo "-- each kind of thread beside a collector without pause, $seconds s"
PYTHONPATH+=":$(dirname "$(folder_of pytest)")" STANDSTILL_GC_STRESS="$seconds" \
    "$python" -m pytest --quiet -p no:cacheprovider python/tests/test_stress.py || status=1
exit "$status"
