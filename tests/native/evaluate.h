// Programs without a core, run by the evaluator on tensors.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ortplugin/runtime/half.h"
#include "ortplugin/runtime/program/evaluator.h"

namespace test {

// One element of a tensor of a floating dtype or bool, of the nearest value that it has; false of an integer dtype.
template <typename Number>
bool PutFloating(ortplugin::DType dtype, Number number, unsigned char* element) {
  using ortplugin::DType;
  const auto put = [element](auto value) {
    std::memcpy(element, &value, sizeof(value));
    return true;
  };
  const auto rounded = [&] { return float(ortplugin::RoundTo(dtype, double(number))); };
  switch (dtype) {
    case DType::kFloat16: return put(ortplugin::FloatToHalf(rounded()));
    case DType::kBFloat16: return put(ortplugin::FloatToBFloat16(rounded()));
    case DType::kFloat: return put(float(number));
    case DType::kDouble: return put(double(number));
    case DType::kBool: return put(uint8_t(number != 0));
    default: return false;
  }
}

// And back.
template <typename Number>
bool GetFloating(ortplugin::DType dtype, const unsigned char* element, Number* number) {
  using ortplugin::DType;
  const auto get = [element](auto as) {
    std::memcpy(&as, element, sizeof(as));
    return as;
  };
  switch (dtype) {
    case DType::kFloat16: *number = static_cast<Number>(ortplugin::HalfToFloat(get(uint16_t()))); return true;
    case DType::kBFloat16: *number = static_cast<Number>(ortplugin::BFloat16ToFloat(get(uint16_t()))); return true;
    case DType::kFloat: *number = static_cast<Number>(get(float())); return true;
    case DType::kDouble: *number = static_cast<Number>(get(double())); return true;
    case DType::kBool: *number = static_cast<Number>(get(uint8_t())); return true;
    default: return false;
  }
}

// The results of a program for `inputs`, one for each parameter and all of one size. Works in blocks of `block`
// elements, each in memory of its very size, so that the address sanitizer sees every access beyond it.
template <typename Number, typename Put, typename Get>
std::vector<std::vector<Number>> Evaluate(const std::string& text, const std::vector<std::vector<Number>>& inputs,
  size_t block, const Put& put, const Get& get) {
  using namespace ortplugin;
  const Program program = Program::Parse(text);
  std::vector<uint32_t> all(program.statements().size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  const Evaluator evaluator(program, all);
  Evaluator::Workspace workspace(evaluator);
  const size_t size = inputs.at(0).size();
  std::vector<std::vector<Number>> outputs(program.results().size());
  for (size_t begin = 0; begin < size; begin += block) {
    const size_t count = std::min(block, size - begin);
    std::vector<std::unique_ptr<unsigned char[]>> lanes;
    const auto bind = [&](ValueId id) {
      lanes.emplace_back(new unsigned char[count * LaneSize(program.value(id).dtype)]);
      workspace.Bind(id, lanes.back().get());
      return lanes.back().get();
    };
    for (size_t i = 0; i < inputs.size(); ++i) {
      const DType dtype = program.parameter(i).dtype;
      std::vector<unsigned char> elements(count * SizeOf(dtype));
      for (size_t j = 0; j < count; ++j) put(dtype, inputs[i][begin + j], elements.data() + j * SizeOf(dtype));
      LoadLanes(dtype, elements.data(), count, bind(program.parameters()[i]));
    }
    for (const Statement& statement : program.statements()) bind(statement.result);
    evaluator.Run(workspace, count);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const DType dtype = program.result(i).dtype;
      std::vector<unsigned char> elements(count * SizeOf(dtype));
      StoreLanes(dtype, workspace.lanes(program.results()[i]), count, elements.data());
      for (size_t j = 0; j < count; ++j) outputs[i].push_back(get(dtype, elements.data() + j * SizeOf(dtype)));
    }
  }
  return outputs;
}

}  // namespace test
