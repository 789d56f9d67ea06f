#!/usr/bin/env bash
# system_packages.sh PACKAGE...: installs those Debian or Ubuntu packages that are missing; does nothing when none is.
set -eu
missing=()
for package in "$@"; do
  # A Python that is not the system's brings its own headers and venv.
  case $package in python3-*)
    if command -v python3 >/dev/null && [ "$(python3 -c 'import sys; print(sys.base_prefix)')" != /usr ]; then continue; fi
    ;;
  esac
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "these packages are needed, and there is no apt-get to install them: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "these packages are needed, please install them as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
here=$(dirname "$0")
# The package lists may be missing or old: refresh them first, and go on with what there is when that fails.
"$here/step.sh" apt-update "package lists" "${as_root[@]}" apt-get update -q || true
"$here/step.sh" apt-install "system packages: ${missing[*]}" "${install[@]}"
