#!/usr/bin/env bash
# Builds a free-threaded CPython, and prints the path of its interpreter:
#
#     benches/cpython.sh [--quick] [--installed] ARCHIVE [OPTION...]
#
# The archive is a release of https://www.python.org/downloads/source/. The build takes minutes, and
# lies in a cache outside of the checkout: another call with the same words only prints the path.
#
#     --quick       built at -O1, in half the time, if there is no build at -O3 yet
#     --installed   the interpreter of an installation, with headers, for extension modules
#     OPTION        further options of `configure`, for example --with-pydebug
set -euo pipefail
optimise=-O3
installed=
while [[ "${1:-}" == --* ]]; do
    case "$1" in
        --quick) optimise=-O1 ;;
        --installed) installed=yes ;;
        *) echo "$0 has no option $1" >&2 && exit 2 ;;
    esac
    shift
done
archive="${1:?the archive of a CPython release}"
options=("${@:2}")
cache="${XDG_CACHE_HOME:-$HOME/.cache}/standstill"
name="cpython-$(sha256sum "$archive" | cut -c 1-16)"
for option in "${options[@]}"; do
    name+="$(tr -c 'a-zA-Z0-9\n' _ <<<"$option")"
done
[[ "$optimise" == -O3 || -e "$cache/$name/built" ]] || name+="$optimise"
place="$cache/$name"
mkdir -p "$place"
exec 9>"$place.lock"
flock 9

# Runs a step in the folder of the build, unless the file that it makes exists.
once() {
    local made="$1" words="$2"
    [[ ! -e "$place/$made" ]] || return 0
    echo "CPython: making $place/$made, which takes minutes" >&2
    bash -euo pipefail -c "cd '$place'; $words" >>"$place.log" 2>&1 9>&- </dev/null || {
        tail -n 20 "$place.log" >&2
        exit 1
    }
}

archive="$(realpath "$archive")"
once built "tar -xf '$archive' --strip-components=1
    CFLAGS=$optimise ./configure --disable-gil ${options[*]}
    make -j $(nproc)
    ./python -I -S -c 'import array, json, sys; assert not sys._is_gil_enabled()'
    touch built"
if [[ -z "$installed" ]]; then
    echo "$place/python"
    exit
fi
# Without pip, which each virtual environment installs for itself. `-l`: most modules are compiled
# when they are imported. With ThreadSanitizer it takes a quarter of an hour to compile all of them.
once installed/bin/python3 "
    make altinstall prefix='$place/installed' ENSUREPIP=no COMPILEALL_OPTS=-l
    cd installed/bin
    ln -s python3.[0-9]*[0-9] python3"
echo "$place/installed/bin/python3"
