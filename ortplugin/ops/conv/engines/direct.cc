// Convolutions of few channels: which variant of direct.cu a shape gets, its source and its arguments.

#include "ortplugin/ops/conv/engines/direct.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/program/epilogue.h"
#include "ortplugin/runtime/round_up.h"
#include "ortplugin/target/target.h"

namespace ortplugin {
namespace {

constexpr int64_t kMostThreads = 512;
constexpr int64_t kMostResident = 16;  // blocks of a multiprocessor, also where it holds more

int64_t InRows(const Contraction& conv, const DirectConfig& s) {
  return (s.rows - 1) * conv.rows().stride + (conv.rows().kernel - 1) * conv.rows().dilation + 1;
}
int64_t Strips(const Contraction& conv, const DirectConfig& s) { return DivideUp(conv.columns().out, s.strip); }
int64_t InWidth(const Contraction& conv, const DirectConfig& s) {
  return (Strips(conv, s) * s.strip - 1) * conv.columns().stride +
    (conv.columns().kernel - 1) * conv.columns().dilation + 1;
}
int64_t WindowWidth(const Contraction& conv, const DirectConfig& s) {
  return (s.strip - 1) * conv.columns().stride + (conv.columns().kernel - 1) * conv.columns().dilation + 1;
}
int64_t Workers(const Contraction& conv, const DirectConfig& s) {
  return s.images * s.rows * Strips(conv, s) * (s.block_maps / s.maps);
}
int64_t Taps(const Contraction& conv) { return conv.rows().kernel * conv.columns().kernel; }
int64_t WeightPitch(const DirectConfig& s) { return s.block_maps + (s.block_maps > 4 ? 4 : 0); }
int64_t SharedBytes(const Contraction& conv, const DirectConfig& s) {
  const int64_t staged = s.images * s.block_maps * s.rows * conv.columns().out;
  const int64_t weights = RoundUp(s.chunk * Taps(conv) * WeightPitch(s), 4);  // what follows begins at 16 bytes
  return 4 * (weights + RoundUp(std::max<int64_t>(s.chunk * s.images * s.image_pitch, staged), 4));
}
int64_t Registers(const Contraction& conv, const DirectConfig& s) {
  const int64_t held = s.maps * s.strip + WindowWidth(conv, s) + s.maps + 36;
  // Loads that are under way together, in front of the sums or between them.
  return std::max<int64_t>(held + (s.chunk < conv.group_channels() ? 12 : 0), 80);
}
int64_t Resident(const Contraction& conv, const DirectConfig& s, const DeviceFacts& gpu) {
  return std::min(kMostResident, gpu.ResidentBlocks(s.threads, Registers(conv, s), SharedBytes(conv, s)));
}
bool IsWhole(const Contraction& conv, const DirectConfig& s) { return s.rows >= conv.rows().out; }

// Cycles, about, that the whole problem takes on this GPU. What is not counted in instructions was fitted to an H200.
double Cost(const Contraction& conv, const DirectConfig& s, const DeviceFacts& gpu) {
  const auto number = [](int64_t n) { return double(n); };
  int64_t resident = Resident(conv, s, gpu);
  if (resident == 0) return 1e30;
  const int64_t of_one = DivideUp(s.tiles * s.map_blocks, gpu.multiprocessors);  // tiles of a multiprocessor
  resident = std::min(resident, of_one);
  const int64_t rounds = DivideUp(of_one, resident);  // tiles of a block
  // Instructions of a warp for a tile.
  const int64_t warps = s.threads / 32, chunks = DivideUp(conv.group_channels(), s.chunk);
  const double multiply_adds = number(conv.group_channels() * Taps(conv) * s.maps * s.strip);
  const double reads = number(conv.group_channels() * conv.rows().kernel *
    (WindowWidth(conv, s) + conv.columns().kernel * std::max<int64_t>(1, s.maps / 4)));
  const double image = 14.0 * number(conv.group_channels() * s.images * InRows(conv, s) * InWidth(conv, s)) / s.threads;
  const double weights = 14.0 * number(conv.group_channels() * Taps(conv) * s.block_maps) / s.threads;
  const double results = 8.0 * s.maps * s.strip;
  const double issued = multiply_adds + reads + image + (chunks > 1 ? weights : weights / number(rounds)) + results;
  const double of_tile = std::max(number(DivideUp(warps, 4)) * issued, number(warps) * (reads + results / 4));
  // Few warps leave gaps.
  const double gaps = 1.2 + 2.0 / std::max(1.0, number(warps * resident) / 4);
  const double latency = 1500.0 + 900.0 * number(chunks);
  return number(rounds) * std::max(latency + of_tile, gaps * of_tile * number(resident) + latency / 2);
}

// Rows and images are put so far apart in shared memory that the threads of a warp read different banks.
void SpreadOverBanks(const Contraction& conv, DirectConfig* s) {
  const int64_t narrowest = InWidth(conv, *s), strips = Strips(conv, *s);
  const int64_t all = s->images * s->rows * strips;
  int64_t best = INT64_MAX;
  DirectConfig found = *s;
  for (int64_t row_pitch = narrowest; row_pitch < narrowest + 6; ++row_pitch) {
    const int64_t least = InRows(conv, *s) * row_pitch;
    for (int64_t image_pitch = least; image_pitch < least + (s->images > 1 ? 32 : 1); ++image_pitch) {
      DirectConfig option = *s;
      option.row_pitch = int(row_pitch);
      option.image_pitch = int(image_pitch);
      if (SharedBytes(conv, option) > cuda::kStaticSharedBytes) continue;
      int64_t wavefronts = 0;
      for (int64_t first = 0; first < all; first += 32) {
        int64_t met[32] = {}, most = 0;
        for (int64_t strip = first; strip < std::min(first + 32, all); ++strip) {
          const int64_t row = strip / strips % s->rows, image = strip / (strips * s->rows);
          const int64_t at = image * image_pitch + row * conv.rows().stride * row_pitch +
            strip % strips * s->strip * conv.columns().stride;
          most = std::max(most, ++met[at % 32]);
        }
        wavefronts += most;
      }
      if (wavefronts < best) {
        best = wavefronts;
        found = option;
      }
    }
  }
  *s = found;
}

// What follows from the choice of a tile.
void Finish(const Contraction& conv, const DeviceFacts& gpu, int most_vector, DirectConfig* s) {
  SpreadOverBanks(conv, s);
  s->min_blocks = int(std::max<int64_t>(1, Resident(conv, *s, gpu)));
  const int64_t pixels = conv.rows().out * conv.columns().out;
  int64_t vector = std::min(4, most_vector);
  // Runs of elements that lie side by side begin and end with vectors.
  vector = IsWhole(conv, *s) ? std::gcd(vector, std::gcd(s->block_maps * pixels, conv.group_filters() * pixels))
                             : std::gcd(vector, std::gcd(s->rows * conv.columns().out, pixels));
  s->vector = int(vector);
  s->wide = conv.batch * conv.groups * conv.group_filters() * pixels >= (int64_t{1} << 30);
}

bool IsLinear(const Axes& axes, size_t i) { return axes.is_linear(i); }
bool IsScalar(const Axes& axes, size_t i) { return axes.is_scalar(i); }
// One number for each channel, as a bias.
bool IsOfChannel(const Contraction& conv, const Axes& axes, size_t i) {
  if (IsLinear(axes, i) || IsScalar(axes, i)) return false;
  const int64_t pixels = conv.rows().out * conv.columns().out;
  int64_t behind = 1;  // elements of y that follow with the same index of the axis
  bool found = false;
  for (size_t axis = axes.count(); axis-- > 0; behind *= axes.sizes[axis]) {
    if (axes.strides[i][axis] == 0) continue;
    if (found || behind != pixels || axes.sizes[axis] != conv.groups * conv.group_filters()) return false;
    found = true;
  }
  return found;
}
std::vector<size_t> Repeated(const Contraction& conv, const Axes& axes) {
  std::vector<size_t> parameters;
  for (size_t i = 1; i < axes.strides.size(); ++i)
    if (!IsLinear(axes, i) && !IsScalar(axes, i) && !IsOfChannel(conv, axes, i)) parameters.push_back(i);
  return parameters;
}
bool IsAcross(const Axes& axes, const DirectConfig& s) { return axes.count() > 1 && axes.sizes.back() % s.vector != 0; }
IndexMap MapOf(const Contraction& conv, const Axes& axes, const DirectConfig& s) {
  const bool across = IsAcross(axes, s);
  return IndexMap(across ? "element" : "index", axes, across ? 1 : s.vector, Repeated(conv, axes), s.wide);
}

}  // namespace

bool FitsDirect(const Contraction& conv) {
  // The kernel counts the elements of a group's weights in 31 bits.
  constexpr int64_t kMost = int64_t{1} << 30;
  return conv.dtype() == DType::kFloat && Taps(conv) <= 81 &&
    conv.group_channels() * conv.group_filters() < kMost / Taps(conv) &&
    conv.columns().kernel * conv.columns().dilation <= 32 && conv.columns().out <= 512 &&
    conv.rows().size * conv.columns().size * conv.group_channels() * conv.groups < (int64_t{1} << 26) &&
    conv.rows().out >= 1 && conv.group_filters() * conv.groups < (int64_t{1} << 20);
}

bool IsDirectFast(const Contraction& conv, const DeviceFacts& gpu) {
  const MeasuredGpu* const target = FindTarget(gpu);
  if (target == nullptr || Taps(conv) == 1) return false;
  const TargetLimits& limits = target->limits;
  if (conv.group_channels() <= limits.direct_few_channels)
    return conv.group_filters() <= limits.direct_most_outputs_few;
  const int64_t multiply_adds = conv.batch * conv.groups * conv.group_filters() * conv.rows().out * conv.columns().out *
    conv.group_channels() * Taps(conv);
  return conv.group_channels() <= limits.direct_most_channels && conv.group_filters() <= limits.direct_most_outputs &&
    multiply_adds > limits.direct_least_work * gpu.multiprocessors;
}

std::optional<DirectConfig> ConfigureDirect(const Contraction& conv, const DeviceFacts& gpu, int most_vector) {
  DirectConfig best{};
  double least = 1e31;
  std::vector<int64_t> chunks;
  for (int64_t parts = 1; parts <= conv.group_channels(); parts *= 2)
    chunks.push_back(DivideUp(conv.group_channels(), parts));
  for (const int64_t chunk : chunks)
    for (const int maps : {1, 2, 4, 8, 16})
      for (int strip = 1; strip <= 9; ++strip) {
        if (maps > conv.group_filters() && maps > 1) continue;
        if (strip > conv.columns().out || maps * strip > 112) continue;
        if (RoundUp(conv.columns().out, strip) * 4 > conv.columns().out * 5) continue;  // too much is thrown away
        for (int64_t block_maps = maps; block_maps < conv.group_filters() + maps && block_maps <= 64; block_maps *= 2)
          for (int64_t parts = 1; parts <= std::min<int64_t>(conv.rows().out, 64); ++parts) {
            const int64_t rows = DivideUp(conv.rows().out, parts);
            if (parts > 1 && rows == DivideUp(conv.rows().out, parts - 1)) continue;
            for (const int images : {1, 2, 3, 4, 6, 8, 16}) {
              if (images > 1 && (parts > 1 || images > conv.batch)) break;
              DirectConfig s{};
              s.images = images;
              s.rows = int(rows);
              s.maps = maps;
              s.strip = strip;
              s.block_maps = int(block_maps);
              s.chunk = int(chunk);
              s.row_pitch = int(InWidth(conv, s));
              s.image_pitch = int(InRows(conv, s) * s.row_pitch);
              const int64_t threads = RoundUp(Workers(conv, s), 32);
              if (threads > kMostThreads || SharedBytes(conv, s) > cuda::kStaticSharedBytes || Registers(conv, s) > 200)
                continue;
              s.threads = int(threads);
              s.tiles = DivideUp(conv.batch, images) * DivideUp(conv.rows().out, rows);
              s.map_blocks = conv.groups * DivideUp(conv.group_filters(), block_maps);
              const double cost = Cost(conv, s, gpu);
              if (cost < least) {
                least = cost;
                best = s;
              }
            }
          }
      }
  if (least >= 1e30) return std::nullopt;
  constexpr double kShort = 16000;  // cycles
  best.is_short = least < kShort;
  Finish(conv, gpu, most_vector, &best);
  return best;
}

namespace {

// How the operands of an epilogue are read.
class EpilogueOperands {
 protected:
  EpilogueOperands(const Contraction& conv, const Program& program, const Axes& axes, const DirectConfig& config)
    : conv_(conv),
      program_(program),
      axes_(axes),
      config_(config),
      map_(MapOf(conv, axes, config)),
      repeated_(Repeated(conv, axes)),
      across_(IsAcross(axes, config)),
      inputs_(program.parameters().size()),
      outputs_(program.results().size()),
      is_shared_(inputs_) {
    // Operands of a channel stand in shared memory, as far as there is room: there they are read early.
    int64_t room = cuda::kStaticSharedBytes - SharedBytes(conv, config);
    for (size_t i = 1; i < inputs_; ++i) {
      const int64_t bytes = RoundUp(int64_t(SizeOf(TypeOf(i))) * config.block_maps, 8);
      is_shared_[i] = IsOfChannel(conv, axes, i) && bytes <= room;
      if (is_shared_[i]) room -= bytes;
    }
    // With no other operands the thread that makes a sum finishes it: fewer loads than for the rows that are written.
    is_finished_ = outputs_ == 1 && program_.result(0).dtype == DType::kFloat;
    for (size_t i = 1; i < inputs_; ++i) is_finished_ = is_finished_ && (IsScalar(axes, i) || is_shared_[i]);
    for (size_t i = 1; i < inputs_; ++i)
      are_constant_ =
        are_constant_ && (!is_shared_[i] || (i <= conv.constant_operands.size() && conv.constant_operands[i - 1]));
  }

  DType TypeOf(size_t i) const { return program_.parameter(i).dtype; }
  std::string Storage(size_t i) const { return StorageType(TypeOf(i)); }
  std::string Pointer(size_t i) const { return "(const " + Storage(i) + "*)a.in[" + std::to_string(i + 1) + "]"; }
  bool IsRowValue(size_t i) const {
    const bool is_repeated = std::count(repeated_.begin(), repeated_.end(), i) > 0;
    return (is_repeated || IsOfChannel(conv_, axes_, i)) && !across_ && axes_.strides[i].back() == 0;
  }

  const Contraction& conv_;
  const Program& program_;
  const Axes& axes_;
  const DirectConfig& config_;
  const IndexMap map_;
  const std::vector<size_t> repeated_;
  const bool across_;
  const size_t inputs_, outputs_;
  std::vector<bool> is_shared_;  // by parameter
  bool is_finished_ = false, are_constant_ = true;
};

// Writes the text in front of direct.cu: sizes as macros, operands and results, and the program.
class SourceWriter : EpilogueOperands {
 public:
  SourceWriter(const Contraction& conv, const Program& program, const Axes& axes, const DirectConfig& config)
    : EpilogueOperands(conv, program, axes, config) {}

  std::string Write() {
    text_ << kCommonSource << "\n" << kPointwiseSource << "\n";
    WriteSizes();
    WriteArguments();
    WriteScalars();
    WriteSharedOperands();
    WriteOperands();
    WriteResults();
    WriteProgram();
    text_ << kConvDirectSource;
    return text_.str();
  }

 private:
  void WriteSizes() {
    // Vectors of operands that a thread loads before it needs the first, as far as registers are left.
    int64_t held = 1;
    for (size_t i = 1; i < inputs_; ++i)
      if (!IsScalar(axes_, i) && !is_shared_[i])
        held += int64_t(SizeOf(TypeOf(i))) * (IsRowValue(i) ? 1 : config_.vector);
    text_ << Defines(
               {{"CHANNELS", conv_.group_channels()}, {"OUTPUTS", conv_.group_filters()}, {"GROUPS", conv_.groups}})
          << WindowMacros(conv_)
          << Defines({{"IMAGES", config_.images}, {"ROWS", config_.rows}, {"MAPS", config_.maps},
               {"STRIP", config_.strip}, {"BLOCK_MAPS", config_.block_maps}, {"CHUNK", config_.chunk},
               {"ROW_PITCH", config_.row_pitch}, {"IMAGE_PITCH", config_.image_pitch}, {"VECTOR", config_.vector},
               {"THREADS", config_.threads}, {"MIN_BLOCKS", config_.min_blocks},
               {"CONSTANT_WEIGHTS", conv_.constant_weights}, {"ROTATED_FILTERS", conv_.rotated_weights},
               {"CONSTANT_OPERANDS", are_constant_}, {"AHEAD", std::clamp<int64_t>(64 / held, 1, 4)}});
  }

  void WriteArguments() {
    text_ << "typedef " << Storage(0) << " storage_t;\n"
          << "typedef unsigned " << (config_.wide ? "long long" : "int") << " index_t;\n\n"
          << "struct Arguments {\n  const void* in[" << inputs_ + 1 << "];\n  void* out[" << outputs_
          << "];\n  unsigned long long images;\n"
          << map_.EmitMembers() << "};\n\n";
  }

  // Ordered: the read-only path could be moved in front of the wait for the kernel that writes them.
  void WriteScalars() {
    std::vector<ScalarOperand> scalars;
    for (size_t i = 1; i < inputs_; ++i)
      if (IsScalar(axes_, i)) scalars.push_back({i, Storage(i), Pointer(i)});
    text_ << EmitScalars(scalars, "load_ordered");
  }

  // Of all channels of a block, and of one of them on its way there.
  void WriteSharedOperands() {
    text_ << "struct SharedOperands {\n";
    for (size_t i = 1; i < inputs_; ++i)
      if (is_shared_[i]) text_ << "  " << Storage(i) << " p" << i << "[BLOCK_MAPS];\n";
    text_ << "};\nstruct ChannelOperands {\n";
    for (size_t i = 1; i < inputs_; ++i)
      if (is_shared_[i]) text_ << "  Vector<" << Storage(i) << ", 1> p" << i << ";\n";
    text_ << "  DEVICE void load(const Arguments& a, int channel) {\n";
    for (size_t i = 1; i < inputs_; ++i)
      if (is_shared_[i])
        text_ << "    p" << i << (are_constant_ ? ".load(" : ".load_ordered(") << Pointer(i) << " + channel);\n";
    text_ << "  }\n  DEVICE void store(SharedOperands& shared, int map) const {\n";
    for (size_t i = 1; i < inputs_; ++i)
      if (is_shared_[i]) text_ << "    shared.p" << i << "[map] = p" << i << ".elements[0];\n";
    text_ << "  }\n};\n\n";
  }

  void WriteOperands() {
    text_ << "template <int N>\nstruct Operands {\n";
    for (size_t i = 1; i < inputs_; ++i)
      if (!IsScalar(axes_, i) && !is_finished_)
        text_ << "  Vector<" << Storage(i) << ", " << (IsRowValue(i) ? "1" : "N") << "> p" << i << ";\n";
    text_ << "  // map(j): the channel of element j, counted from the block's first, which is number `channel` of y\n"
             "  template <typename Map>\n  DEVICE void load(const Arguments& a, const "
             "SharedOperands& shared, index_t index, int channel, const Map& map) {\n";
    for (size_t i = 1; i < inputs_; ++i)
      if (IsOfChannel(conv_, axes_, i) && !is_finished_) WriteLoadOfChannel(i);
    for (size_t i = 1; i < inputs_; ++i)
      if (IsLinear(axes_, i))
        text_ << "    p" << i << ".load_ordered(" << Pointer(i) << " + (unsigned long long)index * N);\n";
    WriteLoadsOfRepeated();
    text_ << "  }\n};\n\n";
  }

  void WriteLoadOfChannel(size_t i) {
    text_ << "#pragma unroll\n    for (int j = 0; j < " << (IsRowValue(i) ? "1" : "N") << "; ++j) {\n";
    if (is_shared_[i]) {
      text_ << "      p" << i << ".set(j, shared.p" << i << "[map(j)]);\n    }\n";
    } else {
      text_ << "      Vector<" << Storage(i) << ", 1> x;\n      x.load(" << Pointer(i)
            << " + channel + map(j));\n      p" << i << ".set(j, x.elements[0]);\n    }\n";
    }
  }

  void WriteLoadsOfRepeated() {
    if (repeated_.empty()) return;
    if (!across_) {
      text_ << map_.EmitOffsets("    ");
      for (const size_t i : repeated_)
        text_ << "    p" << i << ".load(" << Pointer(i) << " + " << map_.OffsetOf(i) << ");\n";
      return;
    }
    text_ << "#pragma unroll\n    for (int j = 0; j < N; ++j) {\n      const index_t element = index * N + j;\n"
          << map_.EmitOffsets("      ");
    for (const size_t i : repeated_)
      text_ << "      Vector<" << Storage(i) << ", 1> x" << i << ";\n      x" << i << ".load(" << Pointer(i) << " + "
            << map_.OffsetOf(i) << ");\n      p" << i << ".set(j, x" << i << "[0]);\n";
    text_ << "    }\n";
  }

  void WriteResults() {
    text_ << "template <int N>\nstruct Results {\n";
    for (size_t r = 0; r < outputs_; ++r) {
      const std::string stored = StorageType(program_.result(r).dtype);
      text_ << "  Vector<" << stored << ", N> r" << r << ";\n  DEVICE void set" << r << "(int j, "
            << ComputeType(program_.result(r).dtype) << " x) {\n    " << stored << " y;\n    from_compute(x, y);\n    r"
            << r << ".set(j, y);\n  }\n";
    }
    text_ << "  DEVICE void store(const Arguments& a, index_t index) const {\n";
    for (size_t r = 0; r < outputs_; ++r)
      text_ << "    r" << r << ".store((" << StorageType(program_.result(r).dtype) << "*)a.out[" << r
            << "] + (unsigned long long)index * N);\n";
    text_ << "  }\n};\n\n";
  }

  void WriteStatements(const char* operands, const char* element) {
    text_ << "  const float v" << program_.parameters()[0] << " = sum;\n";
    for (size_t i = 1; i < inputs_; ++i)
      text_ << "  const " << ComputeType(TypeOf(i)) << " v" << program_.parameters()[i] << " = to_compute("
            << (IsScalar(axes_, i) ? "scalars.p" : operands) << i
            << (IsScalar(axes_, i) || (IsRowValue(i) && !is_finished_) ? "[0]" : element) << ");\n";
    std::vector<uint32_t> statements(program_.statements().size());
    std::iota(statements.begin(), statements.end(), 0);
    text_ << EmitCuda(program_, statements, "  ");
  }

  void WriteProgram() {
    text_ << "// A sum of channel `map` of the block, as far as the thread that made it can finish it.\n"
             "DEVICE float finish(float sum, const SharedOperands& shared, int map, const Scalars& "
             "scalars) {\n";
    if (is_finished_) {
      WriteStatements("shared.p", "[map]");
      text_ << "  return v" << program_.results()[0] << ";\n}\n";
    } else {
      text_ << "  return sum;\n}\n";
    }
    text_ << "// The rest.\ntemplate <int N>\nDEVICE void apply(float sum, const Operands<N>& "
             "operands, const Scalars& scalars, int j, Results<N>& results) {\n";
    if (is_finished_) {
      text_ << "  results.set0(j, sum);\n";
    } else {
      WriteStatements("operands.p", "[j]");
      for (size_t r = 0; r < outputs_; ++r) text_ << "  results.set" << r << "(j, v" << program_.results()[r] << ");\n";
    }
    text_ << "}\n\n";
  }

  std::ostringstream text_;
};

}  // namespace

std::string DirectSource(
  const Contraction& conv, const Program& program, const Axes& axes, const DirectConfig& config) {
  return SourceWriter(conv, program, axes, config).Write();
}

std::vector<uint64_t> DirectArguments(
  const Contraction& conv, const Program& program, const Axes& axes, const DirectConfig& config) {
  std::vector<uint64_t> block(program.parameters().size() + 1 + program.results().size());
  block.push_back(uint64_t(conv.batch));
  const std::vector<uint64_t> numbers = MapOf(conv, axes, config).Numbers();
  block.insert(block.end(), numbers.begin(), numbers.end());
  return block;
}

cuda::LaunchShape DirectLaunch(const DirectConfig& config, const DeviceFacts& gpu) {
  // As many blocks as run at once, each of which makes about as many tiles.
  const int64_t at_once = std::max<int64_t>(1, int64_t{config.min_blocks} * gpu.multiprocessors / config.map_blocks);
  const int64_t rounds = DivideUp(config.tiles, at_once);
  return {DivideUp(config.tiles, rounds) * config.map_blocks, config.threads, 0,
    config.is_short ? cuda::NextStarts::kAtLaunch : cuda::NextStarts::kAtEnd};
}

bool FitsDirect(const Program&, const Contraction& problem, const DeviceFacts&) {
  return !problem.channels_last && !problem.transposed && FitsDirect(problem);
}

bool IsDirectFast(const Program&, const Contraction& problem, const DeviceFacts& device) {
  return IsDirectFast(problem, device);
}

std::optional<EngineKernel> MakeDirect(const Program& program, const Contraction& problem, const DeviceFacts& device) {
  constexpr size_t kOwnInputs = 2;  // X and W
  Shapes shapes(kOwnInputs);
  shapes.insert(shapes.end(), problem.operands.begin(), problem.operands.end());
  const Axes axes = EpilogueAxes(program, kOwnInputs, problem.result(), shapes);
  const std::optional<DirectConfig> config = ConfigureDirect(problem, device, kMostVector);
  if (!config) return std::nullopt;
  return EngineKernel{DirectSource(problem, program, axes, *config), "conv_direct", DirectLaunch(*config, device),
    DirectArguments(problem, program, axes, *config)};
}

}  // namespace ortplugin
