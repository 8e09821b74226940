#!/usr/bin/env bash
# The Python package (python/): its wheel for CPython 3.14, and some of its tests. With
# STANDSTILL_FULL=1: the wheels for both versions, all tests and CPython's own ones with both, and
# greenlet's with 3.15.
#
#     ci/python.sh [OPTION...]    options of CPython's `configure`, for example --with-pydebug
#
# The interpreters are built from ../shared/cpython once, into a cache outside of the checkout
# (benches/cpython.sh): some minutes each. A virtual environment for each lies in target/python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
# Against hangs. A full run has the machine rarely for itself.
limit=900
! is_full || limit=3000
limited "$((4 * limit))" "$@"

sources="${CPYTHON_SOURCES:-../shared/cpython}"
files=(python/tests/test_{interface,references,switch,child}.py)
archives=("$sources"/cpython-3.14*.tar.xz)
if is_full; then
    archives=("$sources"/cpython-3.1[45]*.tar.xz)
    files=(python/tests/test_*.py)
else
    # The optimisation across crates takes longer than all the rest.
    export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
fi
if [[ ! -e "${archives[0]}" ]]; then
    # The sources are no part of the project, and no other check needs them.
    absent 'the Python package' "there are no sources of CPython in $sources"
    exit 0
fi
needs 'the Python package' 'apt-get install -y gcc make' command -v make cc || exit 0

cargo fmt --manifest-path python/Cargo.toml --check
mkdir -p "$target/python"
out="$(realpath "$target/python")"
rm -rf "$out/wheels"
mkdir "$out/wheels"

# version PYTHON TESTS...: builds and tests the package for one interpreter.
version() {
    local python="$1" begun=$SECONDS place package suite modules
    shift
    place="$out/$(basename "$(dirname "$(dirname "$(dirname "$python")")")")"
    [[ -x "$place/bin/python" ]] || "$python" -m venv "$place"
    if ! "$place/bin/python" -m pip install --quiet libclang pytest hypothesis; then
        absent 'the Python package' 'pip cannot install the tools'
        exit 0
    fi
    # Packages with extensions, where wheels for this version exist.
    ! is_full || for package in numpy pydantic django sympy greenlet; do
        "$place/bin/python" -m pip install --quiet --only-binary :all: "$package" \
            || echo "-- no wheel of $package for this version: its test is skipped"
    done
    echo "-- $("$place/bin/python" -VV), in $place"
    export PYO3_PYTHON="$place/bin/python" CARGO_TARGET_DIR="$place/target"
    cargo clippy --quiet --release --manifest-path python/Cargo.toml -- -D warnings
    # As the README says: pip gets all that the build needs. The environment has no packages.
    "$python" -m venv --clear "$place/empty"
    rm -rf "$place/wheels"
    env -u PYO3_PYTHON -u LIBCLANG_PATH "$place/empty/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$place/wheels" ./python
    "$place/empty/bin/python" -m pip install --quiet --no-index --find-links "$place/wheels" standstill-gc
    (cd "$place" && empty/bin/python -c 'import standstill_gc as it; assert it.active(), it.inactive_reason()')
    "$place/bin/python" -m pip install --quiet --force-reinstall --no-index --find-links "$place/wheels" standstill-gc
    cp "$place"/wheels/* "$out/wheels/"
    echo "-- built in $((SECONDS - begun)) s"
    begun=$SECONDS
    # Without pytest's cache, a file of the checkout that both versions would write.
    timeout --kill-after=30 "$limit" "$place/bin/python" -m pytest --quiet -p no:cacheprovider --durations=5 "$@"
    echo "-- tested in $((SECONDS - begun)) s"
    is_full || return 0
    begun=$SECONDS
    # CPython's own tests. Their output is long: it is shown if one fails that should not.
    suite="$place/suite.log"
    if ! timeout --kill-after=30 600 "$place/bin/python" python/suite.py >"$suite" 2>&1; then
        cat "$suite"
        exit 1
    fi
    grep '^-- ' "$suite"
    echo "-- CPython's tests in $((SECONDS - begun)) s"
    begun=$SECONDS
    # greenlet's own tests, with the package in the processes that they start, too. On 3.14 greenlet
    # shows no stack references.
    if "$place/bin/python" -c 'import greenlet, sys; sys.exit(sys.version_info < (3, 15))' 2>/dev/null; then
        # What these tests import.
        "$place/bin/python" -m pip install --quiet psutil objgraph
        mkdir -p "$place/enabled"
        echo 'import standstill_gc; standstill_gc.enable()' >"$place/enabled/sitecustomize.py"
        modules=(gc greenlet generator generator_nested throw tracing weakref contextvars cpp)
        modules+=(leaks interpreter_shutdown)
        if ! (
            export PYTHONPATH="$place/enabled" REPRO_SECONDS=1
            "$place/bin/python" -P -c 'import sys; assert sys.modules["standstill_gc"].installed()' &&
                timeout --kill-after=30 600 "$place/bin/python" -P -m unittest "${modules[@]/#/greenlet.tests.test_}"
        ) >"$suite" 2>&1; then
            cat "$suite"
            exit 1
        fi
        echo "-- greenlet's tests in $((SECONDS - begun)) s"
    fi
}

pythons=()
for archive in "${archives[@]}"; do
    if ! python="$(benches/cpython.sh --quick --installed "$archive" "$@")"; then
        absent 'the Python package' "$archive cannot be built here"
        exit 0
    fi
    pythons+=("$python")
done
# The versions at once: most of a build, and most tests, keep one core busy. Each line of output
# begins with its version.
declare -A running=()
for python in "${pythons[@]}"; do
    name="$("$python" -c 'import platform; print(platform.python_version())')"
    version "$python" "${files[@]}" 2>&1 | sed -u "s/^/$name: /" &
    running[$name]=$!
done
status=0
for name in "${!running[@]}"; do
    wait "${running[$name]}" || {
        status=$?
        echo "the package fails with CPython $name (status $status)" >&2
    }
done
# Not `exit "$status"`: 124 would mean that this script has taken too long.
((status == 0)) || exit 1
ls "$out/wheels"
