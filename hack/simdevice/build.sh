#!/bin/sh
# Builds libsimdevice.so into the folder given; a reader finds the old library or the new one, never half of one.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
command -v "${CC:-cc}" >/dev/null || { echo "$0: no C compiler: install gcc or clang, or set CC" >&2; exit 1; }
source=$(dirname -- "$0")/simdevice.c
mkdir -p -- "$1"
built=$(mktemp -- "$1/.libsimdevice.XXXXXX")
trap 'rm -f -- "$built"' EXIT
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -pthread -fvisibility=hidden -Wl,-z,now,-z,relro \
    -o "$built" "$source" -ldl
chmod 755 -- "$built"
mv -f -- "$built" "$1/libsimdevice.so"
