#!/usr/bin/env bash
# Checks of the checks: each script runs under a time limit, and a script that skips a check fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 120 "$@"

status=0
for script in ci/*.sh; do
    if ! grep -q '^source ci/common.bash$' "$script" || ! grep -qE '^limited .* "\$@"$' "$script"; then
        echo "$script has no time limit: see ci/common.bash" >&2
        status=1
    fi
done
((status == 0))

# A suppression of leaks names one existing function, and the line before it has the reason.
before=
while IFS= read -r line; do
    if [[ "$line" == leak:* ]]; then
        name="${line##*:}"
        if [[ "$before" != '# '* ]]; then
            echo "ci/lsan.supp: $line has no reason of its own" >&2
            status=1
        fi
        if [[ ! "$name" =~ ^[a-z0-9_]+$ ]] || ! grep -rqE "(fn |TEST[A-Z_]*\()$name\>" tests capi/tests src; then
            echo "ci/lsan.supp: $line names no function of the tests" >&2
            status=1
        fi
    fi
    before="$line"
done <ci/lsan.supp
((status == 0))

# Scripts with these contents, in a separate repository, must end with these statuses.
place="$target/ci-checks"
rm -rf "$place"
mkdir -p "$place/ci"
cp ci/common.bash "$place/ci/"
expect() {
    local wanted="$1" limit="$2" words="$3" status=0
    printf 'set -euo pipefail\nsource ci/common.bash\nlimited %s "$@"\n%s\n' "$limit" "$words" >"$place/ci/planted.sh"
    (cd "$place" && env -u STANDSTILL_LIMITED -u CI "${@:4}" bash ci/planted.sh) >"$place/log" 2>&1 || status=$?
    ((status == wanted)) || {
        cat "$place/log" >&2
        echo "a script of '$words' ended with $status, not $wanted" >&2
        exit 1
    }
}
# This script may be part of a full run, which the scripts below are not.
export -n STANDSTILL_SKIPPED STANDSTILL_FULL
recorded="$place/recorded"
expect 0 60 'true'
expect 1 60 'false'
expect 124 1 'sleep 60'
expect 3 60 'skipped "a check" "an installer"' -u STANDSTILL_SKIPPED
grep -q 'a check.*an installer' "$place/log"
expect 3 60 'needs "a check" "an installer" false || exit 0' -u STANDSTILL_SKIPPED
expect 0 60 'needs "a check" "an installer" true' -u STANDSTILL_SKIPPED
expect 0 60 'needs "a check" "touch made" test -e made' -u STANDSTILL_SKIPPED CI=true
expect 0 60 'skipped "a check" "an installer"' "STANDSTILL_SKIPPED=$recorded"
grep -qxF "$(printf 'ci/planted.sh: a check\tan installer')" "$recorded"

# The scripts of a full run exist. In the separate repository each prints its name.
eval "$(grep '^long=(' .ci/run)"
for name in "${long[@]}"; do
    [[ -e "ci/$name.sh" ]] || {
        echo ".ci/run: there is no ci/$name.sh" >&2
        exit 1
    }
    printf 'echo "long: %s"\n' "$name" >"$place/ci/$name.sh"
done

# .ci/run reads that record: it fails, and names the check and the installer at the end.
printf 'set -euo pipefail\nsource ci/common.bash\nlimited 60 "$@"\nskipped "a check" "an installer"\n' >"$place/ci/planted.sh"
mkdir -p "$place/.ci" "$place/bin"
cp .ci/run "$place/.ci/run"
printf '#!/bin/sh\nexit 0\n' >"$place/bin/cargo"
chmod +x "$place/bin/cargo"
ended=0
(cd "$place" && env -u STANDSTILL_LIMITED -u CARGO_TARGET_DIR PATH="$place/bin:$PATH" bash .ci/run) >"$place/log" 2>&1 || ended=$?
if ((ended != 3)) || ! tail -n 6 "$place/log" | grep -q 'install: an installer' || grep -q 'all is well' "$place/log"; then
    cat "$place/log" >&2
    echo '.ci/run does not fail when a check did not run' >&2
    exit 1
fi
# A commit runs none of the long scripts, and names them; a full run has them all.
if grep -q '^long: ' "$place/log" || ! grep -qxF "only ci/full.sh runs: ${long[*]}" "$place/log"; then
    cat "$place/log" >&2
    echo '.ci/run runs a script of a full run, or does not name them' >&2
    exit 1
fi
(cd "$place" && env -u STANDSTILL_LIMITED -u CARGO_TARGET_DIR STANDSTILL_FULL=1 PATH="$place/bin:$PATH" bash .ci/run) >"$place/log" 2>&1 || true
diff <(printf '%s\n' "${long[@]}") <(sed -n 's/^long: //p' "$place/log")
# A check that something outside of the project is missing for does not fail, and is named.
printf 'set -euo pipefail\nsource ci/common.bash\nlimited 60 "$@"\nabsent "a check" "a reason"\n' >"$place/ci/planted.sh"
ended=0
(cd "$place" && env -u STANDSTILL_LIMITED -u CARGO_TARGET_DIR PATH="$place/bin:$PATH" bash .ci/run) >"$place/log" 2>&1 || ended=$?
if ((ended != 0)) || ! tail -n 3 "$place/log" | grep -qxF '    ci/planted.sh: a check: a reason'; then
    cat "$place/log" >&2
    echo '.ci/run does not name a check that something outside of the project is missing for' >&2
    exit 1
fi
echo 'each script has a limit, and a check that does not run fails'
