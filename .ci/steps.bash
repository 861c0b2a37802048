# What .ci/environments and .ci/interpreters share. Sourced at the root of the project, with $python and $mode set.
# shellcheck shell=bash disable=SC2154

[ "$mode" = short ] || [ "$mode" = long ] || { echo "usage: $0 PYTHON [short|long]"; exit 1; }
python=$(realpath -s "$(command -v "$python")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$work/byte-code" HYPOTHESIS_STORAGE_DIRECTORY="$work/hypothesis"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 PIP_ROOT_USER_ACTION=ignore
# The plugins of the environments; whoever adds to this puts a colon in front.
plugins=$PWD/tests/environments
unset PYTHONPATH

passed=0 failed=0 missing=""

# Runs a command to its end and sets `status`. Never as a condition, in which errors would not end it.
attempt() {
  began=$SECONDS log=$work/log
  set +e
  (set -euo pipefail; "$@") >"$log" 2>&1
  status=$?
  set -e
}

# `step NAME COMMAND...`. Of a command that passes the last line is shown, of one that fails everything but the dots.
# The others run all the same; `closing` tells how it went.
step() {
  printf '\n=== %s\n' "$1"
  attempt "${@:2}"
  if [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
    grep -v '^$' "$log" | tail -n 1 || true
  else
    failed=$((failed + 1))
    grep -vE '^[.sxXFE]* *(\[ *[0-9]+%\])?$' "$log" || true
    printf 'FAILED: %s\n' "$1"
  fi
  printf '%s s\n' "$((SECONDS - began))"
}

# `fetch NAME COMMAND...` gets or builds something, and sets `status`. What the registries do not have any more, or not
# now, is told here and at the end, and is no failure.
fetch() {
  printf '\n=== %s: fetched\n' "$1"
  attempt "${@:2}"
  grep -v ^WARNING "$log" | tail -n "$((status == 0 ? 3 : 20))" || true
  printf '%s s\n' "$((SECONDS - began))"
  if [ "$status" -ne 0 ]; then
    printf 'NOT TO BE HAD: %s\n' "$1"
    missing="$missing${missing:+, }$1"
  fi
}

closing() {
  [ -z "$missing" ] || printf '\nnot to be had: %s\n' "$missing"
  printf '\n%s: %s passed, %s failed\n' "$1" "$passed" "$failed"
  [ "$failed" -eq 0 ]
}

# The suite: `suite ENVIRONMENT ARGUMENT...`. Which tests make no sense there stands in tests/environments. The array
# `options` holds switches of the interpreter, and `runner` what starts pytest.
options=() runner=(-m pytest)
suite() {
  REDOUBLE_ENVIRONMENT=$1 PYTHONPATH=$plugins${PYTHONPATH:+:$PYTHONPATH} \
    "$python" "${options[@]}" "${runner[@]}" -q -rfE -p no:cacheprovider -p left_out --ignore tests/interop "${@:2}"
}
