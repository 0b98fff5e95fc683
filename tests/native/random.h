// Numbers that are the same in every run (xorshift).
#pragma once

#include <cstddef>
#include <cstdint>

namespace test {

class Random {
 public:
  uint64_t operator()() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  size_t operator()(size_t below) { return size_t((*this)() >> 11) % below; }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15;
};

}  // namespace test
