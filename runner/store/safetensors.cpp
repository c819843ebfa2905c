#include "runner/store/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "runner/diag/error.h"
#include "runner/host/text.h"
#include "runner/host/unique_fd.h"

namespace runner::store {

namespace {

constexpr std::uint64_t kPrefixBytes = 8;
constexpr std::uint64_t kLargestHeader = 100'000'000;
constexpr const char* kUncountable = " is not a whole, countable number of bytes";
constexpr std::string_view kMetadataKey = "__metadata__";
// Where the reference's JSON reader stops, so that both accept the same files.
constexpr int kDeepest = 127;

struct DTypeRow {
  std::string_view name;
  int bits;
};

constexpr std::array<DTypeRow, 22> kDTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};
static_assert(kDTypes.size() == static_cast<std::size_t>(DType::u64) + 1);

/// The bytes that an array takes; nullopt if the number overflows or isn't whole.
std::optional<std::uint64_t> byte_size(DType dtype, std::span<const std::int64_t> shape) {
  std::uint64_t count = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(dimension), &count)) {
      return std::nullopt;
    }
  }
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(dtype_bits(dtype)), &bits)) {
    return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

/// "F32 [10, 84]"
std::string kind_text(const TensorView& tensor) {
  std::string out(dtype_name(tensor.dtype));
  out += " [";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(tensor.shape[i]);
  }
  return out + "]";
}

// ---- writing

[[noreturn]] void refuse_to_write(const std::string& why) {
  throw diag::Error(diag::Exit::failed, "cannot write safetensors: " + why);
}

std::string json_string(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    refuse_to_write("the text " + host::quote(text) + " is not UTF-8");
  }
}

std::vector<const TensorView*> in_file_order(std::span<const TensorView> tensors) {
  std::vector<const TensorView*> order;
  order.reserve(tensors.size());
  for (const TensorView& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, [](const TensorView* a, const TensorView* b) {
    return std::tie(b->dtype, a->name) < std::tie(a->dtype, b->name);
  });
  return order;
}

void check_size(const TensorView& tensor) {
  const std::optional<std::uint64_t> expected = byte_size(tensor.dtype, tensor.shape);
  const std::string what = "tensor " + host::quote(tensor.name) + ": " + kind_text(tensor);
  if (!expected) refuse_to_write(what + kUncountable);
  if (*expected == tensor.data.size()) return;
  refuse_to_write(what + " needs " + std::to_string(*expected) + " bytes, its data has " +
                  std::to_string(tensor.data.size()));
}

void check_writable(std::span<const TensorView> tensors) {
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    if (tensor.name == kMetadataKey) {
      refuse_to_write("a tensor can't be named " + host::quote(tensor.name));
    }
    if (!names.insert(tensor.name).second) {
      refuse_to_write("two tensors are named " + host::quote(tensor.name));
    }
    check_size(tensor);
  }
}

std::string metadata_json(const Metadata& metadata) {
  std::string out = "{";
  for (const auto& [key, value] : metadata) {
    out += (out.size() > 1 ? "," : "") + json_string(key) + ":" + json_string(value);
  }
  return out + "}";
}

/// The length prefix and the JSON. Built by hand: members must keep our order.
std::string make_header(std::span<const TensorView* const> order, const Metadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) json += json_string(kMetadataKey) + ":" + metadata_json(metadata);
  std::uint64_t begin = 0;
  for (const TensorView* tensor : order) {
    const std::uint64_t end = begin + tensor->data.size();
    if (json.size() > 1) json += ',';
    json += json_string(tensor->name) + ":{\"dtype\":\"" + std::string(dtype_name(tensor->dtype)) +
            "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor->shape.size(); ++i) {
      json += (i == 0 ? "" : ",") + std::to_string(tensor->shape[i]);
    }
    json += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
    begin = end;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kLargestHeader) {
    refuse_to_write("the header would have " + std::to_string(json.size()) + " bytes, at most " +
                    std::to_string(kLargestHeader) + " are allowed");
  }
  std::string prefix(kPrefixBytes, '\0');
  for (std::size_t i = 0; i < kPrefixBytes; ++i) {
    prefix[i] = static_cast<char>((json.size() >> (8 * i)) & 0xFF);
  }
  return prefix + json;
}

// ---- reading

// The reference's JSON reader also takes, by accident of its making, a null for the metadata, a
// tensor's fields as an array, a dtype as an object and a metadata key twice. No writer makes such
// files and the format's text has none of them; they are refused here.

/// One tensor as the header gives it, before its offsets are held against the others'.
struct Entry {
  TensorView view;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Takes the header's JSON event by event: no document is built, and a name that comes twice is
/// still seen. Any handler that returns false ends the parse, with `problem()` said.
class HeaderReader {
 public:
  using Json = nlohmann::json;

  bool null() { return scalar("null"); }
  bool boolean(bool value) { return scalar(value ? "true" : "false"); }
  bool number_integer(Json::number_integer_t value) { return scalar(std::to_string(value)); }
  bool number_float(Json::number_float_t, const std::string& text) { return scalar(text); }
  bool binary(Json::binary_t&) { return fail("binary data"); }

  bool number_unsigned(Json::number_unsigned_t value) {
    if (place_ == Place::shape) return add_dimension(value);
    if (place_ == Place::offsets) {
      offsets_.push_back(value);
      return true;
    }
    return scalar(std::to_string(value));
  }

  bool string(std::string& value) {
    switch (place_) {
      case Place::metadata:
        metadata.emplace(key_, value);
        return true;
      case Place::tensor:
        if (key_ == "dtype") return set_dtype(value);
        break;
      default:
        break;
    }
    return scalar(host::quote(value));
  }

  bool start_object(std::size_t) {
    switch (place_) {
      case Place::start:
        place_ = Place::root;
        return true;
      case Place::root:
        if (key_ == kMetadataKey) {
          place_ = Place::metadata;
        } else {
          begin_tensor();
        }
        return true;
      case Place::tensor:
        if (is_field(key_)) return scalar("an object");
        return enter_ignored();
      case Place::ignored:
        return enter_ignored();
      default:
        return scalar("an object");
    }
  }

  bool end_object() {
    switch (place_) {
      case Place::metadata:
        place_ = Place::root;
        return true;
      case Place::tensor:
        return end_tensor();
      case Place::ignored:
        return leave_ignored();
      default:
        place_ = Place::end;
        return true;
    }
  }

  bool start_array(std::size_t) {
    if (place_ == Place::ignored) return enter_ignored();
    if (place_ != Place::tensor) return scalar("an array");
    if (key_ == "shape") {
      place_ = Place::shape;
      return true;
    }
    if (key_ == "data_offsets") {
      place_ = Place::offsets;
      return true;
    }
    if (is_field(key_)) return scalar("an array");
    return enter_ignored();
  }

  bool end_array() {
    if (place_ == Place::ignored) return leave_ignored();
    if (place_ == Place::offsets && !set_offsets()) return false;
    place_ = Place::tensor;
    return true;
  }

  bool key(std::string& value) {
    switch (place_) {
      case Place::root:
        if (!names_.insert(value).second) return fail("the name " + host::quote(value) + " twice");
        break;
      case Place::metadata:
        if (metadata.contains(value)) {
          return fail("the metadata key " + host::quote(value) + " twice");
        }
        break;
      case Place::tensor:
        if (is_field(value) && !fields_.insert(value).second) {
          return fail("tensor " + host::quote(name()) + ": the field " + host::quote(value) +
                      " twice");
        }
        break;
      default:
        break;
    }
    if (place_ != Place::ignored) key_ = value;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    return fail("not JSON at byte " + std::to_string(position));
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }

  std::vector<Entry> entries;
  Metadata metadata;

 private:
  enum class Place { start, root, metadata, tensor, shape, offsets, ignored, end };

  static bool is_field(std::string_view key) {
    return key == "dtype" || key == "shape" || key == "data_offsets";
  }

  bool fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  [[nodiscard]] const std::string& name() const { return entries.back().view.name; }

  /// A value of no use where it stands: skipped in a field that the format doesn't know.
  bool scalar(const std::string& what) {
    switch (place_) {
      case Place::start:
        return fail(what + " where the header's object belongs");
      case Place::root:
        return fail(host::quote(key_) + ": " + what + " where an object belongs");
      case Place::metadata:
        return fail("metadata " + host::quote(key_) + ": " + what + " where a string belongs");
      case Place::tensor:
        if (!is_field(key_)) return true;
        return fail("tensor " + host::quote(name()) + ": " + key_ + " is " + what);
      case Place::shape:
        return fail("tensor " + host::quote(name()) + ": " + what + " in its shape");
      case Place::offsets:
        return fail("tensor " + host::quote(name()) + ": " + what + " in its data_offsets");
      default:
        return true;
    }
  }

  void begin_tensor() {
    place_ = Place::tensor;
    fields_.clear();
    offsets_.clear();
    entries.emplace_back().view.name = key_;
  }

  bool end_tensor() {
    place_ = Place::root;
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) {
        return fail("tensor " + host::quote(name()) + ": no " + field);
      }
    }
    return true;
  }

  bool set_dtype(const std::string& text) {
    const std::optional<DType> dtype = dtype_from_name(text);
    if (!dtype) {
      return fail("tensor " + host::quote(name()) + ": unknown dtype " + host::quote(text));
    }
    entries.back().view.dtype = *dtype;
    return true;
  }

  bool add_dimension(std::uint64_t dimension) {
    if (dimension > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return scalar(std::to_string(dimension));
    }
    entries.back().view.shape.push_back(static_cast<std::int64_t>(dimension));
    return true;
  }

  bool set_offsets() {
    if (offsets_.size() != 2) {
      return fail("tensor " + host::quote(name()) + ": " + std::to_string(offsets_.size()) +
                  " data_offsets, expected 2");
    }
    entries.back().begin = offsets_[0];
    entries.back().end = offsets_[1];
    return true;
  }

  bool enter_ignored() {
    // Two levels lie around a tensor's field: the root and the tensor.
    if (++ignored_depth_ + 2 > kDeepest) return fail("values nested too deeply");
    place_ = Place::ignored;
    return true;
  }

  bool leave_ignored() {
    if (--ignored_depth_ == 0) place_ = Place::tensor;
    return true;
  }

  Place place_ = Place::start;
  int ignored_depth_ = 0;
  std::string key_;
  std::string problem_;
  std::set<std::string> names_;
  std::set<std::string, std::less<>> fields_;
  std::vector<std::uint64_t> offsets_;
};

class Refusal {
 public:
  explicit Refusal(const std::filesystem::path& path) : path_(path) {}

  [[noreturn]] void operator()(const std::string& why, std::string help = {}) const {
    throw diag::Error(diag::Exit::failed,
                      host::quote(path_.native()) + " is not a valid safetensors file: " + why,
                      std::move(help));
  }

 private:
  const std::filesystem::path& path_;
};

struct Magic {
  std::string_view bytes;
  std::string_view kind;
};

/// Other formats that people keep weights in, by their first bytes. A pickle begins with 0x80 and
/// its protocol, which is also a possible header length, so this is asked only once the length has
/// turned out to be impossible.
std::string_view other_format(std::string_view start) {
  static constexpr std::string_view kPickle = "a Python pickle, which can execute code";
  static constexpr std::array<Magic, 9> kMagics = {{
      {"PK\x03\x04", "a zip archive (a PyTorch or TorchScript file)"},
      {"\x80\x02", kPickle},
      {"\x80\x03", kPickle},
      {"\x80\x04", kPickle},
      {"\x80\x05", kPickle},
      {"\x93NUMPY", "a NumPy file"},
      {"\x89HDF", "an HDF5 file"},
      {"\x1f\x8b", "a gzip file"},
      {"GGUF", "a GGUF file"},
  }};
  for (const Magic& magic : kMagics) {
    if (start.starts_with(magic.bytes)) return magic.kind;
  }
  return {};
}

[[noreturn]] void refuse_length(const Refusal& refuse, std::string_view file,
                                const std::string& why) {
  const std::string_view kind = other_format(file);
  if (kind.empty()) refuse(why);
  refuse("it is " + std::string(kind), "convert it with Python's safetensors package");
}

std::uint64_t header_length(const Refusal& refuse, std::string_view file) {
  if (file.size() < kPrefixBytes) {
    refuse_length(refuse, file,
                  "it has " + std::to_string(file.size()) + " bytes, at least 8 are needed");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kPrefixBytes; ++i) {
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>(file[i])) << (8 * i);
  }
  const std::string says = "its header's length is given as " + std::to_string(length) + " bytes";
  if (length > kLargestHeader) {
    refuse_length(refuse, file,
                  says + ", at most " + std::to_string(kLargestHeader) + " are allowed");
  }
  if (length > file.size() - kPrefixBytes) {
    refuse_length(refuse, file,
                  says + ", but only " + std::to_string(file.size() - kPrefixBytes) + " follow");
  }
  return length;
}

/// Reads the JSON. nlohmann's reader skips a byte order mark and ends quietly at a NUL, where JSON
/// allows neither; both are refused here first.
HeaderReader read_header(const Refusal& refuse, std::string_view header) {
  const std::size_t first = header.find_first_not_of(" \t\n\r");
  if (first == std::string_view::npos || header[first] != '{') {
    refuse_length(refuse, header, "its header is not a JSON object");
  }
  const std::size_t nul = header.find('\0');
  if (nul != std::string_view::npos) {
    refuse("its header has a NUL at byte " + std::to_string(nul));
  }
  HeaderReader reader;
  const bool read = nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  if (!read) refuse("its header: " + reader.problem());
  return reader;
}

void check_place(const Refusal& refuse, const Entry& entry, std::uint64_t expected_begin) {
  const std::string tensor = "tensor " + host::quote(entry.view.name);
  const std::string offsets =
      "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  if (entry.begin != expected_begin || entry.end < entry.begin) {
    refuse(tensor + " has data_offsets " + offsets + ", expected to begin at " +
           std::to_string(expected_begin));
  }
  const std::optional<std::uint64_t> size = byte_size(entry.view.dtype, entry.view.shape);
  const std::string what = tensor + ": " + kind_text(entry.view);
  if (!size) refuse(what + kUncountable);
  if (*size == entry.end - entry.begin) return;
  refuse(what + " needs " + std::to_string(*size) + " bytes, its data_offsets " + offsets +
         " hold " + std::to_string(entry.end - entry.begin));
}

/// Sorts by place in the file and checks that the tensors fill the data without hole or overlap.
void place_entries(const Refusal& refuse, std::vector<Entry>& entries, std::uint64_t data_size) {
  std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  std::uint64_t expected_begin = 0;
  for (const Entry& entry : entries) {
    check_place(refuse, entry, expected_begin);
    expected_begin = entry.end;
  }
  if (expected_begin == data_size) return;
  refuse("its tensors take " + std::to_string(expected_begin) + " bytes, its data has " +
         std::to_string(data_size));
}

}  // namespace

std::string_view dtype_name(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto row = std::ranges::find(kDTypes, name, &DTypeRow::name);
  if (row == kDTypes.end()) return std::nullopt;
  return static_cast<DType>(row - kDTypes.begin());
}

int dtype_bits(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].bits; }

std::uint64_t safetensors_size(std::span<const TensorView> tensors, const Metadata& metadata) {
  check_writable(tensors);
  const std::uint64_t header = make_header(in_file_order(tensors), metadata).size();
  return std::accumulate(
      tensors.begin(), tensors.end(), header,
      [](std::uint64_t sum, const TensorView& tensor) { return sum + tensor.data.size(); });
}

void write_safetensors(FileWriter& out, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  check_writable(tensors);
  const std::vector<const TensorView*> order = in_file_order(tensors);
  out.write(make_header(order, metadata));
  for (const TensorView* tensor : order) out.write(tensor->data);
}

void SafetensorsFile::Unmap::operator()(const std::byte* address) const {
  ::munmap(const_cast<std::byte*>(address), size);
}

SafetensorsFile::Mapping SafetensorsFile::map(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const host::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) must(-errno, "open", path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) must(-errno, "look at", path);
  if (!S_ISREG(info.st_mode)) Refusal{path}("it is not a regular file");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return Mapping(nullptr, Unmap{0});
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) must(-errno, "map", path);
  return Mapping(static_cast<const std::byte*>(address), Unmap{size});
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : mapping_(map(path)) {
  const Refusal refuse(path);
  const std::span<const std::byte> bytes(mapping_.get(), mapping_.get_deleter().size);
  const std::string_view file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::uint64_t length = header_length(refuse, file);
  HeaderReader header = read_header(refuse, file.substr(kPrefixBytes, length));
  const std::span<const std::byte> data = bytes.subspan(kPrefixBytes + length);
  place_entries(refuse, header.entries, data.size());

  tensors_.reserve(header.entries.size());
  for (Entry& entry : header.entries) {
    entry.view.data = data.subspan(entry.begin, entry.end - entry.begin);
    tensors_.push_back(std::move(entry.view));
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  metadata_ = std::move(header.metadata);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace runner::store
