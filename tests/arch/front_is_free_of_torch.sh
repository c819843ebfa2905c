#!/usr/bin/env bash
# `runner` must start in milliseconds on a machine without LibTorch: no library and no symbol of it.
set -euo pipefail
program=$1
if ldd "$program" | grep -Ei 'torch|c10|cuda|nccl'; then
  echo "runner links a library of the engine" >&2
  exit 1
fi
if nm -C "$program" | grep -E '\b(at|c10|torch|caffe2)::' | head -5 | grep .; then
  echo "runner holds symbols of LibTorch" >&2
  exit 1
fi
