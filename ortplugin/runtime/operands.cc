#include "ortplugin/runtime/operands.h"

#include <algorithm>
#include <sstream>

namespace ortplugin {
namespace {

// The terms of some adjacent axes, with neighbours joined where the tensor lets one index serve both.
std::vector<Term> MakeTerms(const Shape& sizes, const Shape& strides) {
  struct Axis {
    int64_t size, stride;
  };
  std::vector<Axis> axes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    if (!axes.empty() && axes.back().stride == strides[i] * sizes[i]) {
      axes.back() = {axes.back().size * sizes[i], strides[i]};
    } else {
      axes.push_back({sizes[i], strides[i]});
    }
  }
  std::vector<Term> terms;
  int64_t divisor = 1;
  for (size_t i = axes.size(); i-- > 0;) {
    if (axes[i].stride != 0) terms.insert(terms.begin(), {divisor, i == 0 ? 0 : axes[i].size, axes[i].stride});
    divisor *= axes[i].size;
  }
  return terms;
}

std::string Number(size_t n) { return std::to_string(n); }

// "(long long)(index / (T)a.terms[3].divisor % ...) * a.terms[3].stride + ..." for terms numbered from `first`.
std::string EmitOffset(const std::vector<Term>& terms, size_t first, const std::string& index,
                       const std::string& type) {
  std::string text;
  for (size_t i = 0; i < terms.size(); ++i) {
    const std::string term = "a.terms[" + Number(first + i) + "]";
    text += (i ? " + " : "") + std::string("(long long)(") + index;
    if (terms[i].divisor != 1) text += " / (" + type + ")" + term + ".divisor";
    if (terms[i].modulus != 0) text += " % (" + type + ")" + term + ".modulus";
    text += ") * " + term + ".stride";
  }
  return text.empty() ? "0" : text;
}

}  // namespace

Access MakeAccess(DType dtype, const Shape& shape, const Shape& full, size_t axis) {
  if (shape.size() > full.size()) Fail("the shape ", ToString(shape), " does not broadcast to ", ToString(full));
  Shape strides(full.size(), 0);
  int64_t stride = 1;
  for (size_t i = full.size(); i-- > 0;) {
    const size_t lead = full.size() - shape.size();
    const int64_t size = i < lead ? 1 : shape[i - lead];
    if (size != full[i] && size != 1) Fail("the shape ", ToString(shape), " does not broadcast to ", ToString(full));
    strides[i] = size == 1 ? 0 : stride;
    stride *= size;
  }
  const auto split = static_cast<std::ptrdiff_t>(axis);
  Access access{dtype, 1, {}, {}};
  for (size_t i = axis; i < full.size(); ++i) access.width *= full[i];
  access.outer = MakeTerms(Shape(full.begin(), full.begin() + split), Shape(strides.begin(), strides.begin() + split));
  access.inner = MakeTerms(Shape(full.begin() + split, full.end()), Shape(strides.begin() + split, strides.end()));
  return access;
}

Shape Broadcast(const std::vector<Shape>& shapes) {
  Shape full;
  for (const Shape& shape : shapes) {
    if (shape.size() > full.size()) full.insert(full.begin(), shape.size() - full.size(), 1);
    for (size_t i = 0; i < shape.size(); ++i) {
      int64_t& size = full[full.size() - shape.size() + i];
      if (size == shape[i] || shape[i] == 1) continue;
      if (size == 1 || size == -1) {
        size = shape[i];
      } else if (shape[i] != -1) {
        Fail("the shapes ", ToString(shape), " and ", ToString(full), " do not broadcast together");
      }
    }
  }
  return full;
}

std::string StorageType(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "half_t";
    case DType::kBFloat16:
      return "bfloat_t";
    case DType::kFloat:
      return "float";
    case DType::kDouble:
      return "double";
    case DType::kBool:
      return "bool_t";
    default:
      return ComputeTypeOf(dtype);
  }
}

std::string ComputeType(DType dtype) { return ComputeTypeOf(dtype); }

std::string EmitOperands(const Program& program, const std::vector<Access>& accesses, const std::vector<Phase>& phases,
                         bool stream_results) {
  std::vector<size_t> outer_terms, inner_terms;  // the number of each parameter's first term
  size_t terms = 0;
  for (const Access& access : accesses) {
    outer_terms.push_back(terms);
    terms += access.outer.size();
    inner_terms.push_back(terms);
    terms += access.inner.size();
  }
  const auto storage = [&](size_t i) { return StorageType(accesses[i].dtype); };
  const auto is_vector = [&](size_t i) { return accesses[i].is_shared() && accesses[i].is_contiguous(); };
  std::ostringstream text;

  text << "struct Term {\n  long long divisor, modulus, stride;\n};\n"
       << "struct Arguments {\n  const void* in[" << accesses.size() << "];\n  void* out[" << program.results().size()
       << "];\n  long long rows, chunks;\n";
  if (terms > 0) text << "  Term terms[" << terms << "];\n";
  text << "};\n\n";

  text << "struct Offsets {\n  long long linear;\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (!accesses[i].is_shared() && !accesses[i].is_linear()) text << "  long long p" << i << ";\n";
  text << "  __device__ __forceinline__ Offsets(const Arguments& a, row_t row) {\n    linear = (long long)row * "
          "WIDTH;\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (!accesses[i].is_shared() && !accesses[i].is_linear())
      text << "    p" << i << " = " << EmitOffset(accesses[i].outer, outer_terms[i], "row", "row_t") << ";\n";
  text << "  }\n};\n\n";

  text << "struct SharedOperands {\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (is_vector(i)) text << "  const " << storage(i) << "* p" << i << ";\n";
  text << "  __device__ __forceinline__ SharedOperands(const Arguments& a) {\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (is_vector(i)) text << "    p" << i << " = (const " << storage(i) << "*)a.in[" << i << "];\n";
  text << "  }\n";
  text << "  // The same operands, at addresses that the compiler can't know to be the same.\n"
       << "  __device__ __forceinline__ SharedOperands moved(long long by) const {\n    SharedOperands x = *this;\n";
  for (size_t i = 0; i < accesses.size(); ++i)
    if (is_vector(i)) text << "    x.p" << i << " += by;\n";
  text << "    return x;\n  }\n};\n\n";

  for (const Phase& phase : phases) {
    for (const bool shared : {false, true}) {
      text << "struct " << phase.name << (shared ? "Shared" : "Row") << " {\n";
      for (const size_t i : phase.parameters) {
        if (accesses[i].is_shared() != shared) continue;
        if (accesses[i].is_scalar()) {
          text << "  " << storage(i) << " p" << i << ";\n";
        } else {
          text << "  Vector<" << storage(i) << ", VECTOR> p" << i << ";\n";
        }
      }
      text << "  __device__ __forceinline__ void load(const Arguments& a, "
           << (shared ? "const SharedOperands& operands" : "const Offsets& offsets") << ", int column) {\n";
      for (const size_t i : phase.parameters) {
        const Access& access = accesses[i];
        if (access.is_shared() != shared) continue;
        const std::string base = "(const " + storage(i) + "*)a.in[" + Number(i) + "]";
        const std::string row = shared ? "" : access.is_linear() ? " + offsets.linear" : " + offsets.p" + Number(i);
        if (access.is_scalar()) {
          text << "    p" << i << " = (" << base << ")[0" << row << "];\n";
        } else if (shared && is_vector(i)) {
          text << "    p" << i << ".load(operands.p" << i << " + column);\n";
        } else if (access.is_contiguous()) {
          text << "    p" << i << (access.is_linear() ? ".load_once" : ".load") << "(" << base << row
               << " + column);\n";
        } else {
          text << "#pragma unroll\n    for (int j = 0; j < VECTOR; ++j)\n      p" << i << ".set(j, (" << base << row
               << ")[" << EmitOffset(access.inner, inner_terms[i], "(unsigned)(column + j)", "unsigned") << "]);\n";
        }
      }
      text << "  }\n};\n";
    }
    text << "struct " << phase.name << "Results {\n";
    const auto result_type = [&](size_t r) { return program.value(program.results()[r]).dtype; };
    for (const size_t r : phase.results) {
      text << "  Vector<" << StorageType(result_type(r)) << ", VECTOR> r" << r << ";\n";
      text << "  __device__ __forceinline__ void set" << r << "(int j, " << ComputeType(result_type(r)) << " x) {\n    "
           << StorageType(result_type(r)) << " stored;\n    from_compute(x, stored);\n    r" << r
           << ".set(j, stored);\n  }\n";
    }
    text << "  __device__ __forceinline__ void store(const Arguments& a, const Offsets& offsets, int column) const {\n";
    for (const size_t r : phase.results)
      text << "    r" << r << (stream_results ? ".store_once" : ".store") << "((" << StorageType(result_type(r))
           << "*)a.out[" << r << "] + offsets.linear + column);\n";
    text << "  }\n};\n\n";
  }
  return text.str();
}

std::string EmitParameterValues(const Program& program, const std::vector<Access>& accesses, const Phase& phase) {
  std::ostringstream text;
  for (const size_t i : phase.parameters) {
    const ValueId value = program.parameters()[i];
    text << "  const " << ComputeType(accesses[i].dtype) << " v" << value << " = to_compute("
         << (accesses[i].is_shared() ? "shared.p" : "row.p") << i << (accesses[i].is_scalar() ? "" : "[j]") << ");\n";
  }
  return text.str();
}

std::string EmitResultValues(const Program& program, const Phase& phase) {
  std::ostringstream text;
  for (const size_t r : phase.results) text << "  results.set" << r << "(j, v" << program.results()[r] << ");\n";
  return text.str();
}

std::vector<uint64_t> ArgumentBlock(const std::vector<Access>& accesses, size_t results, int64_t rows, int64_t chunks) {
  std::vector<uint64_t> block(accesses.size() + results, 0);
  block.push_back(static_cast<uint64_t>(rows));
  block.push_back(static_cast<uint64_t>(chunks));
  for (const Access& access : accesses)
    for (const auto* terms : {&access.outer, &access.inner})
      for (const Term& term : *terms)
        for (const int64_t number : {term.divisor, term.modulus, term.stride})
          block.push_back(static_cast<uint64_t>(number));
  return block;
}

}  // namespace ortplugin
