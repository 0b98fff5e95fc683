#!/usr/bin/env bash
# Runs tests with the library that was built under AddressSanitizer and UndefinedBehaviorSanitizer:
#   tests/sanitize.sh PYTHON BUILD PYTEST_ARGUMENT...
# Python and ONNX Runtime are not built so: their memory is checked only where the library, or malloc and memcpy, touch
# it. What is switched off:
#   detect_leaks=0               CPython and ONNX Runtime keep much until the process ends, which is no leak of ours
#   allocator_may_return_null=1  a malloc that fails is what tests of sizes ask for; operator new still ends the process
#   detect_odr_violation=0       the package may be loaded from two paths in one process, as tests of registration do
# The tests of growing memory are left out: freed memory waits in AddressSanitizer's quarantine. So are those of deaths
# by a signal, which it makes an exit of, and of times.
# The first finding ends the process. libubsan comes second in LD_PRELOAD: it brings libstdc++, whose __cxa_throw
# AddressSanitizer wants to find when the process starts.
set -euo pipefail
python=$1 build=$2
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
package=$(cd "$build" && pwd)/package
rm -rf "$package"
mkdir -p "$package"
cp -r "$root/ortplugin" "$package/ortplugin"
cp "$build/libortplugin.so" "$package/ortplugin/"
export PYTHONPATH=$package ORTPLUGIN_TEST_SLOWNESS=4
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
compiler=${CXX:-g++}
export LD_PRELOAD="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libubsan.so)"
cd "$root"
endurance=tests/ort/test_endurance.py
exec "$(dirname "$python")/pytest" --deselect "$endurance::test_memory" --deselect "$endurance::test_a" \
  --deselect tests/ort/test_judge_process.py --deselect tests/ort/test_scatter_chain.py::test_a_chain_stays_in_place \
  --deselect tests/ort/test_minilm.py::test_optimizing_bert_base_takes_seconds "$@"
