# Functions in POSIX sh for the other scripts, which source this file.
#
# use_environment EXTRAS...   sets ENV_BIN to the bin/ folder of an environment that contains cnnbench
#                             with at least these extras; creates or repairs .venv if necessary.
#
# Environment variables:
#   PYTHON=python3.12      interpreter for creating .venv
#   CNNBENCH_EXTRAS="..."  additional extras for .venv, such as and-cuda on a machine with NVIDIA GPUs
#   CNNBENCH_VENV=DIR      use the environment in DIR without changing it
#
# The caller sets ROOT (the checkout) and ME (the name of the script, for messages).

OLDEST=10 # requires-python of pyproject.toml: 3.10 ...
NEWEST=13 # ... to 3.13; tests/scripts/test_environment.py compares them

die() {
  printf '%s: %s\n' "$ME" "$1" >&2
  exit 2
}

# Prints the version of an interpreter, such as "3.11", or nothing if the interpreter does not run.
python_version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

in_range() {
  case $1 in
    3.*) [ "${1#3.}" -ge "$OLDEST" ] && [ "${1#3.}" -le "$NEWEST" ] ;;
    *) return 1 ;;
  esac
}

# Sets CHOSEN to an interpreter that can create the environment, or exits with a one-line reason.
choose_python() {
  if [ -n "${PYTHON:-}" ]; then
    version=$(python_version "$PYTHON")
    [ -n "$version" ] || die "PYTHON=$PYTHON does not run; give a Python from 3.$OLDEST to 3.$NEWEST"
    in_range "$version" || die "PYTHON=$PYTHON is Python $version; cnnbench needs 3.$OLDEST to 3.$NEWEST"
    "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
      die "PYTHON=$PYTHON has no venv module (on Debian and Ubuntu: apt install python$version-venv)"
    CHOSEN=$PYTHON
    return
  fi
  found=''
  candidates='python3 python'
  minor=$NEWEST
  while [ "$minor" -ge "$OLDEST" ]; do
    candidates="$candidates python3.$minor"
    minor=$((minor - 1))
  done
  for candidate in $candidates; do
    version=$(python_version "$candidate")
    [ -n "$version" ] || continue
    if ! in_range "$version"; then
      found="$found, $candidate is $version"
    elif ! "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      found="$found, $candidate ($version) has no venv module: apt install python$version-venv"
    else
      CHOSEN=$candidate
      return
    fi
  done
  [ -n "$found" ] || found=', no Python'
  die "needs Python 3.$OLDEST to 3.$NEWEST; found ${found#, }; name another with PYTHON=/path/to/python"
}

# Succeeds if .venv is complete for this checkout, these requirements and these extras.
environment_is_current() {
  [ -x "$ROOT/.venv/bin/python" ] && [ -f "$ROOT/.venv/cnnbench-state" ] || return 1
  {
    read -r state_status && read -r state_key && read -r state_version &&
      IFS= read -r state_root && read -r state_extras
  } <"$ROOT/.venv/cnnbench-state" || return 1
  [ "$state_status" = ready ] && [ "$state_key" = "$key" ] && [ "$state_root" = "$ROOT" ] || return 1
  if [ -n "${PYTHON:-}" ]; then
    [ "$(python_version "$PYTHON")" = "$state_version" ] || return 1
  fi
  for extra in $wanted; do
    case " $state_extras " in *" $extra "*) ;; *) return 1 ;; esac
  done
}

use_environment() {
  wanted="$* ${CNNBENCH_EXTRAS:-}"
  if [ -n "${CNNBENCH_VENV:-}" ]; then
    [ -x "$CNNBENCH_VENV/bin/python" ] || die "CNNBENCH_VENV=$CNNBENCH_VENV has no bin/python"
    ENV_BIN=$(cd "$CNNBENCH_VENV/bin" && pwd)
    return
  fi
  ENV_BIN=$ROOT/.venv/bin
  key=$(cat "$ROOT/setup.py" "$ROOT/pyproject.toml" "$ROOT/cnnbench/version.py" | cksum)
  environment_is_current && return
  choose_python
  # shellcheck disable=SC2086 # wanted is a list of words
  "$CHOSEN" "$ROOT/scripts/make_environment.py" --root "$ROOT" --key "$key" --caller "$ME" \
    ${PYTHON:+--this-python} $wanted >&2 ||
    exit $?
}
