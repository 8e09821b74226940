# The common functions of the scripts in ci/. Each sources this file and calls `limited` first.
#
#   limited SECONDS "$@"            the script's time limit
#   needs NAME INSTALL PROBE...     tests for a tool; with CI=true a missing tool is installed first
#   skipped NAME INSTALL            records a check that did not run
#   absent NAME WHY                 the same, where something outside of this project is missing
#   nightly                         prints the name of the nightly toolchain; fails without one
#   is_full                         whether ci/full.sh runs the script
#   $target                         the folder that cargo builds into
#
# A check that did not run is a failure: the script runs its other checks and ends with status 3.
# Under .ci/run the record goes into a file, and .ci/run prints all records at the end, with the
# commands that install the missing tools. It prints what `absent` has recorded too, and does not
# fail for it.

target="${CARGO_TARGET_DIR:-$PWD/target}"

# Runs the script once more, under a limit, and ends with its status. In that second run: does
# nothing.
limited() {
    local seconds="$1" script status=0
    shift
    script="ci/$(basename "$0")"
    if [[ "${STANDSTILL_LIMITED:-}" == "$script" ]]; then
        trap 'finish $?' EXIT
        return
    fi
    STANDSTILL_LIMITED="$script" timeout --kill-after=30 "$seconds" bash "$script" "$@" || status=$?
    case "$status" in
        124 | 137) echo "$script took longer than its limit, $seconds s, and was ended" >&2 ;;
    esac
    exit "$status"
}

# The nightly toolchain that is installed.
nightly() {
    rustup toolchain list 2>/dev/null | grep -oE '^nightly[^ ]*' | head -n 1 | grep .
}

# Whether this is a full run, which checks more and takes longer.
is_full() {
    [[ "${STANDSTILL_FULL:-}" == 1 ]]
}

omitted=0

skipped() {
    printf '!!!! NOT RUN: %s. To install what it needs: %s !!!!\n' "$1" "$2" >&2
    omitted=$((omitted + 1))
    [[ -z "${STANDSTILL_SKIPPED:-}" ]] || printf '%s: %s\t%s\n' "ci/$(basename "$0")" "$1" "$2" >>"$STANDSTILL_SKIPPED"
}

absent() {
    printf '!!!! NOT RUN: %s: %s !!!!\n' "$1" "$2" >&2
    [[ -z "${STANDSTILL_ABSENT:-}" ]] || printf '%s: %s: %s\n' "ci/$(basename "$0")" "$1" "$2" >>"$STANDSTILL_ABSENT"
}

needs() {
    local name="$1" install="$2"
    shift 2
    "$@" >/dev/null 2>&1 && return
    if [[ "${CI:-}" == true ]]; then
        echo "installing: $install"
        timeout --kill-after=10 300 bash -c "$install" >/dev/null 2>&1 </dev/null || true
        "$@" >/dev/null 2>&1 && return
    fi
    skipped "$name" "$install"
    return 1
}

# The end of a script: it fails if a check did not run, unless .ci/run reports that at the end.
finish() {
    local status="$1"
    if ((status == 0 && omitted > 0)) && [[ -z "${STANDSTILL_SKIPPED:-}" ]]; then
        echo "$omitted of the checks of ci/$(basename "$0") did not run" >&2
        exit 3
    fi
}
