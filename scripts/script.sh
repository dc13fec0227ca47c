#!/bin/sh
# The scripts that link here, such as kills, are Python programs: NAME.py beside this, whose head
# says what it does, in an environment that holds cnnbench.
NAME=$(basename "$0")
ME=scripts/$NAME
ROOT=$(cd "$(dirname "$0")/.." && pwd -P) || exit 2
. "$ROOT/scripts/environment.sh"
case $NAME in
  typecheck) use_environment test ;;
  *) use_environment ;;
esac
exec "$ENV_BIN/python" "$ROOT/scripts/$NAME.py" "$@"
