// Prints what the C++ parser makes of programs, for tests/unit/test_program_parity.py, which compares it with Python's.
// Reads programs from standard input, each ended by a NUL; writes for each, ended likewise, "=" and the canonical text,
// or "!" and the error.

#include <iostream>
#include <string>

#include "ortplugin/runtime/program/program.h"

int main() {
  for (std::string text; std::getline(std::cin, text, '\0');) {
    std::string answer;
    try {
      answer = "=" + ortplugin::Program::Parse(text).ToString();
    } catch (const ortplugin::Error& error) {
      answer = std::string("!") + error.what();
    }
    std::cout << answer << '\0';
  }
}
