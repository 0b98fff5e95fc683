// The main of a test that compiles kernels for the GPU architecture that its command line names, such as sm_90.
#pragma once

#include <string>

#include "tests/native/kernel_remarks.h"

void TestKernels(const std::string& architecture, const ortplugin::DeviceFacts& device);

int main(int argc, char** argv) {
  if (argc != 2) return test::AskForArchitecture(argv[0]);
  const std::string architecture = argv[1];
  TestKernels(architecture, test::DeviceOf(architecture));
  return test::Summary();
}
