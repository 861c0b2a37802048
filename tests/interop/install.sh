#!/bin/sh
# Installs the servers that the interoperability tests talk to, from Debian's own packages.
#
#     sudo sh tests/interop/install.sh
#
# The client libraries come from PyPI: pip install -e '.[test,interop]'.
# The tests start the servers themselves, in temporary directories, so no service is left running. May be run twice.
set -eu

if [ "$(id -u)" -ne 0 ]; then
    echo "install.sh: must be run as root" >&2
    exit 1
fi

# A package's own service would take ports and memory for nothing. While this file says 101, Debian starts none.
policy=/usr/sbin/policy-rc.d
log=$(mktemp)
remove=$log
if [ ! -e "$policy" ]; then
    remove="$log $policy"
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
trap 'rm -f $remove' EXIT
trap 'exit 1' HUP INT TERM

export DEBIAN_FRONTEND=noninteractive
if ! {
    apt-get update &&
        apt-get install -y --no-install-recommends -o Dpkg::Options::=--force-confold \
            mariadb-server openssl postgresql rabbitmq-server redis-server
} >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
