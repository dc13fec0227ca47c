#!/bin/sh
# Runs the Python program scripts/NAME.py, where NAME is the name of a link to this file, such as
# kills, in an environment with cnnbench. The docstring of NAME.py describes the program.
NAME=$(basename "$0")
ME=scripts/$NAME
ROOT=$(cd "$(dirname "$0")/.." && pwd -P) || exit 2
. "$ROOT/scripts/environment.sh"
case $NAME in
  planted_faults | typecheck) use_environment test ;;
  *) use_environment ;;
esac
exec "$ENV_BIN/python" "$ROOT/scripts/$NAME.py" "$@"
