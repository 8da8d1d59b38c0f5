#!/bin/sh
# Makes sure there is a Chromium for the browser tests: found in PATH or named in DFLASH_CHROMIUM; else installed by root from
# Debian's archive; else what to do is said, and it ends with 1.
set -eu
for name in ${DFLASH_CHROMIUM:+"$DFLASH_CHROMIUM"} chromium chromium-browser google-chrome; do
    if command -v "$name" > /dev/null; then
        exit 0
    fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "no Chromium here: installing Debian's"
    apt-get update --quiet
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends chromium fonts-dejavu-core
    command -v chromium > /dev/null && exit 0
fi
echo "no Chromium here, and it can't be installed: run 'apt-get install chromium' as root, or name a browser in DFLASH_CHROMIUM" >&2
exit 1
