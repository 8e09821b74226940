#!/usr/bin/env bash
# The C ABI as a C programmer uses it: the header alone under the strictest settings of several
# compilers; the guide's smallest program and the object system with its threads, both under
# valgrind; and linking through pkg-config with the shared library and with the static one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 1500 "$@"

cargo build --release --quiet -p standstill-capi --features standstill/default
out=$target/capi
mkdir -p "$out"
include=capi/include
strict=(-Wall -Wextra -Werror -pedantic -fsyntax-only -I "$include")

header="$out/header.c"
printf '#include <standstill.h>\n#include <standstill_compat.h>\nint main(void) { return 0; }\n' >"$header"
for std in c99 c11 c17; do
    cc -std="$std" "${strict[@]}" "$header"
done
if needs 'the header under C++ compilers' 'apt-get install -y g++' command -v c++; then
    for std in c++11 c++17 c++20; do
        c++ -std="$std" "${strict[@]}" -x c++ "$header"
    done
    # Designated initialisers in CPython's order, which C++20 requires.
    cat >"$out/static.cpp" <<'CPP'
#include <standstill.h>
static int traverse(PyObject *, visitproc, void *) { return 0; }
static int clear(PyObject *) { return 0; }
static void end(PyObject *) {}
static PyTypeObject type = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "ci.Type",
    .tp_basicsize = sizeof(PyObject),
    .tp_dealloc = end,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_base = &PyBaseObject_Type,
    .tp_alloc = PyType_GenericAlloc,
    .tp_free = PyObject_GC_Del,
    .tp_finalize = end,
};
int main() { return PyType_Ready(&type); }
CPP
    c++ -std=c++20 "${strict[@]}" -Wno-missing-field-initializers "$out/static.cpp"
    echo 'the header is clean as C99, C11, C17, C++11, C++17 and C++20'
fi

static=("$target/release/libstandstill_capi.a" -lpthread -ldl -lm)
cc -std=c99 -Wall -Wextra -Werror -pedantic -O2 -I "$include" capi/examples/minimal.c "${static[@]}" -o "$out/minimal"
timeout --kill-after=5 60 "$out/minimal"
# A debugger finds this function also in a program that does not call it.
grep -q ' standstill_PyObject_Dump$' <<<"$(nm "$out/minimal")" || {
    echo 'the linker has left out standstill_PyObject_Dump' >&2
    exit 1
}

cc -std=c11 -Wall -Wextra -Werror -pedantic -O2 -I "$include" capi/examples/objects/*.c "${static[@]}" -o "$out/objects"
timeout --kill-after=5 120 "$out/objects" 4
STANDSTILL_CHECKED=1 timeout --kill-after=5 120 "$out/objects" 4

# A planted leak, which each leak checker must report.
printf '#include <stdlib.h>\nint main(void) { return malloc(40) == NULL; }\n' >"$out/leaks.c"

if needs 'the C examples under memcheck' 'apt-get install -y valgrind' command -v valgrind; then
    # valgrind runs one thread at a time: few rounds. The heap's cells are not malloc blocks, so
    # valgrind checks all other memory; the program itself checks for leaked objects.
    memcheck=(timeout --kill-after=5 300 valgrind --quiet --error-exitcode=9 --leak-check=full
        --show-leak-kinds=definite --errors-for-leak-kinds=definite)
    # With these options it must report a leak, and a word that is read before it was written.
    printf '#include <stdlib.h>\nint main(void) { volatile int *p = malloc(40); int i = *p == 7; free((void *)p); return i; }\n' \
        >"$out/reads.c"
    for planted in leaks reads; do
        cc -g "$out/$planted.c" -o "$out/$planted"
        "${memcheck[@]}" "$out/$planted" >/dev/null 2>&1 && status=0 || status=$?
        [[ "$status" == 9 ]] || {
            echo "valgrind does not see what $planted.c does wrong" >&2
            exit 1
        }
    done
    "${memcheck[@]}" "$out/minimal"
    "${memcheck[@]}" "$out/objects" 2 20
    STANDSTILL_CHECKED=1 "${memcheck[@]}" "$out/objects" 2 5
    echo 'valgrind has nothing to say about the C examples'
fi

# As an installed library: a prefix with header, both libraries and the pkg-config files.
prefix="$(realpath "$out")/prefix"
rm -rf "$prefix"
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig"
cp "$include"/*.h "$prefix/include/"
cp "$target/release/libstandstill_capi".{a,so} "$prefix/lib/"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"
for file in standstill standstill-static; do
    sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" "capi/$file.pc.in" >"$prefix/lib/pkgconfig/$file.pc"
done
if needs 'the pkg-config files' 'apt-get install -y pkg-config' command -v pkg-config; then
    flags() { PKG_CONFIG_PATH="$prefix/lib/pkgconfig" pkg-config --cflags --libs "$1"; }
else
    flags() { sed -n "s|\${libdir}|$prefix/lib|; s|\${includedir}|$prefix/include|; s/^Libs: //p; s/^Cflags: //p" "$prefix/lib/pkgconfig/$1.pc"; }
fi
# shellcheck disable=SC2046 # the flags are words
cc -std=c99 -O2 capi/examples/minimal.c $(flags standstill) -o "$out/minimal-shared"
LD_LIBRARY_PATH="$prefix/lib" timeout --kill-after=5 60 "$out/minimal-shared"
# With both libraries installed each name links its own. The shared one is not found without a path.
# shellcheck disable=SC2046 # the flags are words
cc -std=c99 -O2 capi/examples/minimal.c $(flags standstill-static) -o "$out/minimal-static"
timeout --kill-after=5 60 "$out/minimal-static"
if timeout --kill-after=5 60 "$out/minimal-shared" 2>/dev/null; then
    echo 'the program that was linked with the shared library runs without it' >&2
    exit 1
fi
echo 'the C programs build and run, with the static library and with the shared one'
