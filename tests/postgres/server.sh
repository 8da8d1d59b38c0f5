#!/usr/bin/env bash
# A real PostgreSQL server on loopback, from Debian's packages or any in PATH or /usr/lib/postgresql.
#
#   tests/postgres/server.sh start DIR    start it (data in DIR, about 60 MB), write DIR/env with its address
#   tests/postgres/server.sh stop DIR     stop it; DIR may be removed then
#
# Versions known to work: 15 (Debian 12). The server doesn't run as root: started by root, it runs as `postgres`. Its port is the first
# free one from 17432 on, so that two of them can run side by side.
set -euo pipefail
ACTION=${1:?start or stop}
DIR=$(mkdir -p "${2:?data directory}" && cd "$2" && pwd)

say() {
  echo "tests/postgres: $*" >&2
}

fail() {
  say "$*"
  exit 1
}

# The folder with initdb and pg_ctl, nothing when there is none.
programs() {
  local found
  for found in "$(dirname "$(command -v initdb || echo /none/initdb)")" $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -rV); do
    if [ -x "$found/initdb" ] && [ -x "$found/pg_ctl" ]; then
      echo "$found"
      return
    fi
  done
}

BIN=$(programs)
if [ -z "$BIN" ] && [ "$ACTION" = start ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    say "no PostgreSQL here: installing Debian's"
    apt-get update --quiet >&2
    # Debian would start a server of its own on the default port.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends postgresql >&2
    BIN=$(programs)
  fi
  [ -n "$BIN" ] || fail "no PostgreSQL server (initdb, pg_ctl) here, and it can't be installed: run 'apt-get install postgresql' as root"
fi

as_server() {
  if [ "$(id -u)" = 0 ]; then
    (cd / && setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/tmp "$@")
  else
    "$@"
  fi
}

stop() {
  [ -n "$BIN" ] && [ -f "$DIR/data/postmaster.pid" ] || return 0
  as_server "$BIN/pg_ctl" --pgdata "$DIR/data" --mode fast --silent --timeout 30 stop || true
}

busy() {
  (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

case $ACTION in
  stop) stop ;;
  start)
    stop
    rm -rf "$DIR/data" "$DIR/env"
    PASSWORD=$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')
    PORT=${POSTGRES_PORT:-17432}
    while busy "$PORT"; do PORT=$((PORT + 1)); done
    (umask 077 && echo "$PASSWORD" > "$DIR/password")
    if [ "$(id -u)" = 0 ]; then
      # Nothing above DIR is changed: where postgres can't reach it, another folder must be named.
      chown postgres: "$DIR" "$DIR/password"
      as_server test -w "$DIR" || fail "the user postgres can't reach $DIR: name another folder, POSTGRES_DATA=/tmp/... make test-postgres"
    fi
    as_server "$BIN/initdb" --pgdata "$DIR/data" --username dflash --pwfile "$DIR/password" --auth scram-sha-256 --encoding UTF8 \
      --locale C > "$DIR/initdb.log" 2>&1 || { tail -5 "$DIR/initdb.log" >&2; fail "initdb failed"; }
    # The server outlives this script: a lock or pipe it was started with must not live on in it.
    for fd in /proc/self/fd/*; do
      fd=${fd##*/}
      [ "$fd" -gt 2 ] && [ "$fd" != 255 ] && eval "exec $fd>&-"
    done
    as_server "$BIN/pg_ctl" --pgdata "$DIR/data" --silent --wait --timeout 60 --log "$DIR/data/server.log" \
      --options "-p $PORT -c listen_addresses=127.0.0.1 -c unix_socket_directories=''" start > /dev/null 2>&1 < /dev/null ||
      { tail -5 "$DIR/data/server.log" >&2; fail "the server didn't start"; }
    (umask 077 && echo "DFLASH_TEST_POSTGRES_URL=postgresql://dflash:$PASSWORD@127.0.0.1:$PORT/postgres" > "$DIR/env")
    say "$("$BIN/postgres" --version) on 127.0.0.1:$PORT"
    ;;
  *) fail "start or stop, not $ACTION" ;;
esac
