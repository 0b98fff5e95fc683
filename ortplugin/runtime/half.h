// Conversions of the 16-bit floating types: to nearest, ties to even; NaN stays NaN; infinities, signed zeros and
// denormals as IEEE 754 says. Without branches, so that loops over them vectorise, and right even where the thread
// flushes denormal floats to zero, for no float here is ever denormal unless the bfloat16 is.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__GNUC__)
#define ORTPLUGIN_INLINE inline __attribute__((always_inline))
#else
#define ORTPLUGIN_INLINE inline
#endif

namespace ortplugin {

template <typename To, typename From>
ORTPLUGIN_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

ORTPLUGIN_INLINE float HalfToFloat(uint16_t half) {
  const int32_t magnitude = (half & 0x7fff) << 13;  // exponent and mantissa in a float's places
  const int32_t normal = magnitude + (112 << 23);  // the exponent's bias is 127, no more 15
  const int32_t quiet = magnitude > (31 << 23) ? 1 << 22 : 0;
  const int32_t special = (magnitude + (224 << 23)) | quiet;  // infinity and NaN
  // Denormal: as the mantissa of 2^-14 * 1.m, less that 2^-14.
  const int32_t denormal = BitCast<int32_t>(BitCast<float>(magnitude + (113 << 23)) - BitCast<float>(113 << 23));
  const int32_t finite = magnitude < (1 << 23) ? denormal : normal;
  const int32_t bits = magnitude >= (31 << 23) ? special : finite;
  return BitCast<float>(uint32_t(bits) | uint32_t(half & 0x8000) << 16);
}

ORTPLUGIN_INLINE uint16_t FloatToHalf(float number) {
  const uint32_t bits = BitCast<uint32_t>(number);
  const int32_t magnitude = int32_t(bits & 0x7fffffffu);
  // Normal: the bias from 127 to 15, half a unit in the last place, the tie's bit. 65520 and more become infinity.
  const int32_t scaled = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const int32_t normal = scaled > 0x7c00 ? 0x7c00 : scaled;
  // Less than 2^-14: 0.5's last place is the smallest half, so the addition rounds.
  const int32_t small = magnitude < (113 << 23) ? magnitude : 0;
  const int32_t denormal = BitCast<int32_t>(BitCast<float>(small) + 0.5f) - BitCast<int32_t>(0.5f);
  const int32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const int32_t finite = magnitude < (113 << 23) ? denormal : normal;
  const int32_t half = magnitude > 0x7f800000 ? nan : finite;
  return uint16_t(uint32_t(half) | (bits >> 16 & 0x8000u));
}

ORTPLUGIN_INLINE float BFloat16ToFloat(uint16_t number) { return BitCast<float>(uint32_t(number) << 16); }

ORTPLUGIN_INLINE uint16_t FloatToBFloat16(float number) {
  const uint32_t bits = BitCast<uint32_t>(number);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40u;
  return uint16_t(int32_t(bits & 0x7fffffffu) > 0x7f800000 ? nan : rounded);
}

// The float next to `number` towards zero, with its last bit set if that is inexact ("round to odd"): rounding it
// further to a 16-bit type gives what rounding `number` at once would.
ORTPLUGIN_INLINE float RoundToOdd(double number) {
  const float nearest = float(number);
  const double back = double(nearest);
  const uint32_t bits = BitCast<uint32_t>(nearest);
  const bool beyond = (back < 0 ? -back : back) > (number < 0 ? -number : number);
  const uint32_t odd = (beyond ? bits - 1 : bits) | 1u;
  return BitCast<float>(back == number || number != number ? bits : odd);
}

}  // namespace ortplugin
