// Compiles the kernel that pads tensors for weight gradients, for a GPU architecture. Needs NVRTC but no GPU.
//
//   test_conv_grad_kernels sm_90

#include <iostream>

#include "ortplugin/ops/conv_grad/conv_grad.h"
#include "ortplugin/runtime/cuda.h"
#include "tests/native/check.h"
#include "tests/native/kernel_remarks.h"

using namespace ortplugin;

int main(int argc, char** argv) {
  const std::string architecture = argc == 2 ? argv[1] : "sm_90";
  std::cout << cuda::CompilerVersion() << "\n";  // without NVRTC the test ends here and says so
  for (const size_t bytes : {2, 4, 8}) {
    const std::string source = PadSource(bytes);
    std::string log;
    const std::string code = cuda::Compile(source, architecture, &log);
    CHECK_WITH(code.size() > 1000 && test::Registers(log) > 0, log);
    CHECK_WITH(test::Spilled(log) == 0 && test::Local(log) == 0, log);
    CHECK_WITH(test::BeforeWait(source).empty(), test::BeforeWait(source));
  }
  return test::Summary();
}
