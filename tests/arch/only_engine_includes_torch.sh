#!/usr/bin/env bash
# Only the engine, its tests and the benchmarks see LibTorch's headers.
set -euo pipefail
cd "$1"
found=$(grep -rlE '#include [<"](torch|ATen|c10|caffe2)/' --include='*.h' --include='*.cpp' \
          registry models datasets runner tests | grep -vE '^(runner/engine|tests/engine)/' || true)
if [ -n "$found" ]; then
  printf 'these files include LibTorch outside the engine:\n%s\n' "$found" >&2
  exit 1
fi
