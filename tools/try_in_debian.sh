#!/bin/sh
# Try the wheel in a Debian of its own: sh tools/try_in_debian.sh SUITE ARCHITECTURE TEST...
# It needs root, debootstrap and, for another architecture than this machine's, qemu-user-static. The Debian is made in
# the folder DEBIAN_ROOTS, and kept for the next time; what is mounted there ends with this script.
set -eu
suite=$1 architecture=$2
shift 2
checkout=$(cd "$(dirname "$0")/.." && pwd)
root=${DEBIAN_ROOTS:-/var/tmp/spillgrad-debian}/$suite-$architecture

if [ "$architecture" = arm64 ] && [ "$(uname -m)" != aarch64 ]; then
	formats=/proc/sys/fs/binfmt_misc
	if [ ! -e $formats/register ]; then
		mount -t binfmt_misc binfmt_misc $formats
		trap 'umount $formats' EXIT
	fi
	if [ ! -e $formats/qemu-aarch64 ]; then
		# Format F opens the emulator now, so that the Debian needs no copy of it.
		cat /usr/lib/binfmt.d/qemu-aarch64.conf >$formats/register
		trap 'echo -1 >$formats/qemu-aarch64; umount $formats' EXIT
	fi
fi

if [ ! -e "$root/made" ]; then
	rm -rf "$root"
	mkdir -p "$root"
	debootstrap --variant=minbase --arch="$architecture" --include=python3,python3-venv,ca-certificates "$suite" "$root"
	touch "$root/made"
fi
cp /etc/resolv.conf "$root/etc/resolv.conf"
[ ! -e /etc/ssl/certs/ca-certificates.crt ] ||
	cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
mkdir -p "$root/checkout" "$root/scratch"

# The mounts are seen by the processes of this command alone, and end with them.
unshare --mount --pid --fork --kill-child sh -eu -c '
	root=$1
	shift
	mount -t proc proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mount --bind -o ro "$0" "$root/checkout"
	exec env -u PIP_CONFIG_FILE -u PIP_CONSTRAINT -u PIP_FIND_LINKS -u PYTHONPATH HOME=/root LANG=C.UTF-8 \
		PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		chroot "$root" sh /checkout/tools/try_wheel.sh python3 /checkout /scratch "$@"
' "$checkout" "$root" "$@"
