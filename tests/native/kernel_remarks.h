// What NVRTC's log says of the kernels that it compiled.
#pragma once

#include <algorithm>
#include <regex>
#include <string>

namespace test {

// Bytes of registers that are kept in local memory for want of registers.
inline int Spilled(const std::string& log) {
  int bytes = 0;
  const std::regex spills("(\\d+) bytes spill stores, (\\d+) bytes spill loads");
  for (std::sregex_iterator it(log.begin(), log.end(), spills), end; it != end; ++it)
    bytes += std::stoi((*it)[1]) + std::stoi((*it)[2]);
  return bytes;
}

// The most registers of a thread.
inline int Registers(const std::string& log) {
  int most = 0;
  const std::regex used("Used (\\d+) registers");
  for (std::sregex_iterator it(log.begin(), log.end(), used), end; it != end; ++it)
    most = std::max(most, std::stoi((*it)[1]));
  return most;
}

// Bytes of local memory: arrays that are indexed by what only a run knows, and what is spilled.
inline int Local(const std::string& log) {
  int bytes = 0;
  const std::regex frames("(\\d+) bytes stack frame");
  for (std::sregex_iterator it(log.begin(), log.end(), frames), end; it != end; ++it) bytes += std::stoi((*it)[1]);
  return bytes;
}

}  // namespace test
