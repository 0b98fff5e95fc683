// A library that says it is cuDNN 8.9.7, for test_cudnn.cc.
#include <cstddef>

extern "C" __attribute__((visibility("default"))) size_t cudnnGetVersion() { return 8907; }
