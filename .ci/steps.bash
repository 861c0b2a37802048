# Shared by .ci/environments and .ci/interpreters, which source it at the root of the project, with $python and $mode set.
# shellcheck shell=bash disable=SC2154

[ "$mode" = short ] || [ "$mode" = long ] || { echo "usage: $0 PYTHON [short|long]"; exit 1; }
python=$(realpath -s "$(command -v "$python")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$work/byte-code" HYPOTHESIS_STORAGE_DIRECTORY="$work/hypothesis"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=2 PIP_ROOT_USER_ACTION=ignore
# The folder with the pytest plugins for environments.
plugins=$PWD/tests/environments
unset PYTHONPATH

passed=0 failed=0 missing=""

# attempt COMMAND...: run a command and set `status`. Never use it as a condition: bash ignores `set -e` there.
attempt() {
  began=$SECONDS log=$work/log
  set +e
  (set -euo pipefail; "$@") >"$log" 2>&1
  status=$?
  set -e
}

# step NAME COMMAND...: print the last line of a command that passes, and everything but the dots of one that fails.
# The steps after it run in either case; `closing` fails if a step did.
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

# fetch NAME COMMAND...: download or build something, and set `status`. If that fails, it is reported here and at the end,
# but it is not a failure: the package index may be down, or may have dropped a version.
fetch() {
  printf '\n=== %s: download\n' "$1"
  attempt "${@:2}"
  grep -v ^WARNING "$log" | tail -n "$((status == 0 ? 3 : 20))" || true
  printf '%s s\n' "$((SECONDS - began))"
  if [ "$status" -ne 0 ]; then
    printf 'NOT AVAILABLE: %s\n' "$1"
    missing="$missing${missing:+, }$1"
  fi
}

closing() {
  [ -z "$missing" ] || printf '\nnot available: %s\n' "$missing"
  printf '\n%s: %s passed, %s failed\n' "$1" "$passed" "$failed"
  [ "$failed" -eq 0 ]
}

# suite ENVIRONMENT ARGUMENT...: run the tests, without those that tests/environments/left_out_tables.py names for this
# environment. The array `options` has switches of the interpreter, and `runner` starts pytest.
options=() runner=(-m pytest)
suite() {
  REDOUBLE_ENVIRONMENT=$1 PYTHONPATH=$plugins${PYTHONPATH:+:$PYTHONPATH} \
    "$python" "${options[@]}" "${runner[@]}" -q -rfE -p no:cacheprovider -p left_out --ignore tests/interop "${@:2}"
}
