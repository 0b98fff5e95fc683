// Included before evaluator.cc in the tests, which run it at each x86-64 level: the environment's, or the highest.
#pragma once

#include <cstdlib>

inline int X86LevelOfTest() {
  const char* level = std::getenv("ORTPLUGIN_X86_LEVEL");
  return level == nullptr ? 4 : std::atoi(level);
}
#define ORTPLUGIN_X86_LEVEL X86LevelOfTest()
