#!/bin/sh
# A verifier as a shell script: it settles the surroundings and hands the conversation to a short Python program.
# Everything it needs lies beside it; the program file names both, so that a change of either is noticed.
here=$(dirname "$0")
LC_ALL=C
export LC_ALL
exec python3 -u "$here/lamp_rules.py" "$@"
