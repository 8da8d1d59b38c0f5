#!/usr/bin/env bash
# A real S3 server on loopback: Ceph's object gateway from Debian's packages, without systemd, with one monitor and one OSD.
#
#   tests/s3/ceph.sh start DIR    start it (data in DIR, about 50 MB), write DIR/env with what clients need
#   tests/s3/ceph.sh stop DIR     stop it; DIR may be removed then
#
# Versions known to work: 16.2 (Debian 12). First start takes about 15 s, 700 MB of memory while it runs. Ports are the first free ones
# from 17480 (gateway; S3_PORT sets it), 13300 and 16789 (monitor, for the life of DIR) on, so that two of them can run side by side.
set -euo pipefail
ACTION=${1:?start or stop}
DIR=$(mkdir -p "${2:?data directory}" && cd "$2" && pwd)
PROGRAMS=(ceph ceph-mon ceph-osd monmaptool radosgw radosgw-admin)
export CEPH_CONF=$DIR/ceph.conf
# The daemons outlive this script: a lock or pipe it was started with must not live on in them.
for fd in /proc/self/fd/*; do
  fd=${fd##*/}
  [ "$fd" -gt 2 ] && [ "$fd" != 255 ] && eval "exec $fd>&-"
done

say() {
  echo "tests/s3: $*" >&2
}

fail() {
  say "$*"
  exit 1
}

busy() {
  (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

free_port() {
  local port=$1
  while busy "$port"; do port=$((port + 1)); done
  echo "$port"
}

# One step of `create`, within its time, and named if it fails. Its output goes to the log.
step() {
  local seconds=$1
  shift
  timeout "$seconds" "$@" >>"$DIR/create.log" 2>&1 && return
  local code=$?
  tail -5 "$DIR/create.log" >&2
  [ "$code" = 124 ] && say "took longer than $seconds s (a slow disk, or less than 1 GB of memory free?)"
  stop
  fail "this step failed: $*; log: $DIR/create.log, $DIR/log"
}

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
    fail "missing: ${missing[*]}; install them as root: apt-get install radosgw ceph-mon ceph-osd ceph-common"
  fi
  say "installing Ceph's gateway by apt-get (missing: ${missing[*]}), about a minute"
  export DEBIAN_FRONTEND=noninteractive
  packages=(radosgw ceph-mon ceph-osd ceph-common)
  apt-get install -y -qq --no-install-recommends "${packages[@]}" >"$DIR/apt.log" 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >"$DIR/apt.log" 2>&1 ||
    { tail -5 "$DIR/apt.log" >&2; fail "apt-get could not install ${packages[*]}: $DIR/apt.log"; }
  for program in "${PROGRAMS[@]}"; do command -v "$program" >/dev/null || fail "apt-get installed ${packages[*]}, and $program is still missing"; done
}

configure() {
  mkdir -p "$DIR/run" "$DIR/mon" "$DIR/osd" "$DIR/log"
  MON="[v2:127.0.0.1:$(free_port 13300),v1:127.0.0.1:$(free_port 16789)]"
  cat >"$CEPH_CONF" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = $MON
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
  say "making a cluster of one monitor and one OSD in $DIR"
  # What an interrupted start left is no cluster.
  rm -rf "$DIR/mon" "$DIR/osd" "$DIR/monmap"
  configure
  local fsid osd
  fsid=$(sed -n 's/^fsid = //p' "$CEPH_CONF")
  osd=$(cat /proc/sys/kernel/random/uuid)
  : >"$DIR/create.log"
  step 60 monmaptool --create --clobber --fsid "$fsid" --addv a "$MON" "$DIR/monmap"
  step 60 ceph-mon --mkfs -i a --monmap "$DIR/monmap" --keyring /dev/null
  step 60 ceph-mon -i a --pid-file "$DIR/run/mon.pid"
  step 60 ceph osd new "$osd" 0
  step 120 ceph-osd -i 0 --mkfs --osd-uuid "$osd"
  step 60 ceph osd crush add osd.0 1.0 root=default host=localhost
  step 60 ceph-osd -i 0 --pid-file "$DIR/run/osd.pid"
  say "making its users"
  # Without the two options of radosgw below it hangs silently.
  step 180 radosgw-admin -n client.admin user create --uid writer --display-name writer --access-key writer --secret-key writer-secret
  step 60 radosgw-admin -n client.admin user create --uid reader --display-name reader --access-key reader --secret-key reader-secret
  touch "$DIR/created"
}

start() {
  install
  mkdir -p "$DIR/run"
  stop
  if [ -f "$DIR/created" ]; then
    say "starting the cluster in $DIR"
    for port in $(sed -n 's/^mon_host = //p' "$CEPH_CONF" | grep -o ':[0-9]*[],]' | tr -d ':,]'); do
      busy "$port" && fail "port $port, which the monitor in $DIR needs, is in use; free it, or remove $DIR"
    done
    step 60 ceph-mon -i a --pid-file "$DIR/run/mon.pid"
    step 60 ceph-osd -i 0 --pid-file "$DIR/run/osd.pid"
  else
    create
  fi
  PORT=${S3_PORT:-$(free_port 17480)}
  busy "$PORT" && { stop; fail "port $PORT is in use; set S3_PORT to a free one"; }
  say "starting the gateway on port $PORT"
  step 60 radosgw -n client.admin --rgw_frontends="beast endpoint=127.0.0.1:$PORT" --auth_client_required=none --ms_mon_client_mode=crc \
    --pid-file "$DIR/run/rgw.pid"
  for _ in $(seq 300); do
    if busy "$PORT"; then
      cat >"$DIR/env" <<ENV
DFLASH_S3_ENDPOINT=http://127.0.0.1:$PORT
DFLASH_S3_ACCESS_KEY=writer
DFLASH_S3_SECRET_KEY=writer-secret
DFLASH_S3_READER_KEY=reader
DFLASH_S3_READER_SECRET=reader-secret
ENV
      say "S3 at http://127.0.0.1:$PORT"
      return
    fi
    sleep 0.2
  done
  stop
  fail "the gateway doesn't answer on port $PORT; logs in $DIR/log"
}

"$ACTION"
