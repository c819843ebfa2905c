// The safetensors format: named arrays in one file that can't execute anything and that Python's
// safetensors package opens as it is.
//
//   u64 little-endian N | N bytes of JSON | data
//   {"__metadata__": {"k": "v"}, "fc.weight": {"dtype": "F32", "shape": [10, 84],
//                                              "data_offsets": [0, 3360]}, ...}
//
// Everything here is bytes; whoever has tensors turns them into spans. The format has no checksum:
// a checkpoint's manifest carries it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runner/store/file.h"

namespace runner::store {

/// The format's element types, in the format's order, which also orders the tensors in a file.
enum class DType {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

/// "F32" and so on, as in a file.
[[nodiscard]] std::string_view dtype_name(DType dtype);
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name);
/// Bits of one element.
[[nodiscard]] int dtype_bits(DType dtype);

/// One array: row-major, little-endian bytes that somebody else owns.
struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< empty for a scalar; a dimension may be 0
  std::span<const std::byte> data;
};

using Metadata = std::map<std::string, std::string>;

/// The size of the file that write_safetensors would write, without writing it. Throws as that
/// does.
[[nodiscard]] std::uint64_t safetensors_size(std::span<const TensorView> tensors,
                                             const Metadata& metadata);

/// Writes a whole file: the header, padded with spaces so that the data begins at a multiple of 8,
/// then the tensors by descending DType, then by name. The same input gives the same bytes. Throws
/// diag::Error(Exit::failed) for two tensors of one name, the name "__metadata__", data whose size
/// doesn't fit dtype and shape, text that isn't UTF-8 and a header above the format's 100 MB;
/// nothing is written then. FileError when writing fails.
void write_safetensors(FileWriter& out, std::span<const TensorView> tensors,
                       const Metadata& metadata);

/// A file mapped read-only: opening reads only its header, and the data is paged in as it is used.
/// Opening checks everything the format demands (but not the data itself; see CheckpointFolder) and
/// throws diag::Error(Exit::failed) that names the file and what is wrong. Never write over a file
/// that is mapped: a shortened one raises SIGBUS.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In the order of their data in the file. A foreign file may hold data that isn't aligned to its
  /// elements; files of write_safetensors are. Views live as long as the object they came from, or
  /// the one it was moved to.
  [[nodiscard]] std::span<const TensorView> tensors() const { return tensors_; }
  /// nullptr if there is none of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const;
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }

 private:
  struct Unmap {
    std::size_t size;  // bytes
    void operator()(const std::byte* address) const;
  };
  using Mapping = std::unique_ptr<const std::byte, Unmap>;

  /// The whole of a regular file; null for an empty one.
  static Mapping map(const std::filesystem::path& path);

  Mapping mapping_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;  // keys are the names in tensors_
  Metadata metadata_;
};

}  // namespace runner::store
