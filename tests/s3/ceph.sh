#!/usr/bin/env bash
# A real S3 server on loopback: Ceph's object gateway from Debian's packages, without systemd, with one monitor and one OSD.
#
#   tests/s3/ceph.sh start DIR    start it (data in DIR, about 50 MB), write DIR/env with what clients need
#   tests/s3/ceph.sh stop DIR     stop it; DIR may be removed then
#
# Versions known to work: 16.2 (Debian 12). First start takes about 15 s, 700 MB of memory while it runs.
set -euo pipefail
ACTION=${1:?start or stop}
DIR=$(mkdir -p "${2:?data directory}" && cd "$2" && pwd)
PORT=${S3_PORT:-17480}
PROGRAMS=(ceph ceph-mon ceph-osd monmaptool radosgw radosgw-admin)
export CEPH_CONF=$DIR/ceph.conf
# The daemons outlive this script: a lock or pipe it was started with must not live on in them.
for fd in /proc/self/fd/*; do
  fd=${fd##*/}
  [ "$fd" -gt 2 ] && [ "$fd" != 255 ] && eval "exec $fd>&-"
done

stop() {
  # This order, each waited for: else the next start meets a locked pid file.
  for part in rgw osd mon; do
    if [ -f "$DIR/run/$part.pid" ] && pid=$(cat "$DIR/run/$part.pid") && [ -n "$pid" ] && kill "$pid" 2>/dev/null; then
      for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
      kill -9 "$pid" 2>/dev/null || true
    fi
    rm -f "$DIR/run/$part.pid"
  done
}

install() {
  missing=()
  for program in "${PROGRAMS[@]}"; do command -v "$program" >/dev/null || missing+=("$program"); done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]}; install them as root: apt-get install radosgw ceph-mon ceph-osd ceph-common" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  packages=(radosgw ceph-mon ceph-osd ceph-common)
  apt-get install -y -qq --no-install-recommends "${packages[@]}" >"$DIR/apt.log" 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >"$DIR/apt.log" 2>&1 ||
    { tail -5 "$DIR/apt.log" >&2; echo "apt-get could not install ${packages[*]}: $DIR/apt.log" >&2; exit 1; }
}

configure() {
  mkdir -p "$DIR/run" "$DIR/mon" "$DIR/osd" "$DIR/log"
  cat >"$CEPH_CONF" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = [v2:127.0.0.1:13300,v1:127.0.0.1:16789]
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
osd_crush_chooseleaf_type = 0
osd_objectstore = bluestore
bluestore_block_size = 21474836480
osd_memory_target = 939524096
osd_crush_update_on_start = false
mon_data = $DIR/mon
osd_data = $DIR/osd
run_dir = $DIR/run
log_file = $DIR/log/\$name.log
admin_socket =
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
[client]
auth_client_required = none
ms_mon_client_mode = crc
CONF
}

create() {
  configure
  local fsid osd
  fsid=$(sed -n 's/^fsid = //p' "$CEPH_CONF")
  monmaptool --create --clobber --fsid "$fsid" --addv a '[v2:127.0.0.1:13300,v1:127.0.0.1:16789]' "$DIR/monmap"
  ceph-mon --mkfs -i a --monmap "$DIR/monmap" --keyring /dev/null
  ceph-mon -i a --pid-file "$DIR/run/mon.pid"
  osd=$(cat /proc/sys/kernel/random/uuid)
  timeout 60 ceph osd new "$osd" 0
  ceph-osd -i 0 --mkfs --osd-uuid "$osd"
  timeout 60 ceph osd crush add osd.0 1.0 root=default host=localhost
  ceph-osd -i 0 --pid-file "$DIR/run/osd.pid"
  # Without the two options of radosgw below it hangs silently.
  timeout 120 radosgw-admin -n client.admin user create --uid writer --display-name writer --access-key writer --secret-key writer-secret
  timeout 60 radosgw-admin -n client.admin user create --uid reader --display-name reader --access-key reader --secret-key reader-secret
  touch "$DIR/created"
}

start() {
  install
  mkdir -p "$DIR/run"
  stop
  if [ -f "$DIR/created" ]; then
    ceph-mon -i a --pid-file "$DIR/run/mon.pid"
    ceph-osd -i 0 --pid-file "$DIR/run/osd.pid"
  else
    create
  fi >"$DIR/create.log" 2>&1 || { tail -5 "$DIR/create.log" >&2; stop; exit 1; }
  radosgw -n client.admin --rgw_frontends="beast endpoint=127.0.0.1:$PORT" --auth_client_required=none --ms_mon_client_mode=crc \
    --pid-file "$DIR/run/rgw.pid" >>"$DIR/create.log" 2>&1
  for _ in $(seq 300); do
    if curl -s -o /dev/null "http://127.0.0.1:$PORT/" 2>/dev/null || (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then
      cat >"$DIR/env" <<ENV
DFLASH_S3_ENDPOINT=http://127.0.0.1:$PORT
DFLASH_S3_ACCESS_KEY=writer
DFLASH_S3_SECRET_KEY=writer-secret
DFLASH_S3_READER_KEY=reader
DFLASH_S3_READER_SECRET=reader-secret
ENV
      echo "S3 at http://127.0.0.1:$PORT"
      return
    fi
    sleep 0.2
  done
  echo "the gateway doesn't answer on port $PORT; logs in $DIR/log" >&2
  stop
  exit 1
}

"$ACTION"
