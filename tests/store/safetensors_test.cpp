#include "runner/store/safetensors.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "tests/fakes/temp_folder.h"
#include "tests/store/store_testing.h"

using namespace runner;
using namespace runner::store;
namespace fs = std::filesystem;

namespace {

std::string length_prefix(std::uint64_t length) {
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>((length >> (8 * i)) & 0xFF);
  return out;
}

/// A file of this header and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data = 0) {
  return length_prefix(header.size()) + header + std::string(data, '\7');
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

std::string nested_arrays(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::string write_to(const fs::path& path, std::span<const TensorView> tensors,
                     const Metadata& metadata) {
  FileWriter out(system_file_ops(), path);
  write_safetensors(out, tensors, metadata);
  out.finish();
  return read_file(path);
}

}  // namespace

TEST_CASE("safetensors: the bytes are those of the reference implementation") {
  TempFolder temp;
  const std::vector<std::uint8_t> b = {0, 1, 2};
  const std::vector<float> a = {0.0F, 1.0F};
  const std::vector<std::int64_t> c = {1};
  const std::vector<TensorView> tensors = {
      {.name = "b", .dtype = DType::u8, .shape = {3}, .data = bytes_of(b)},
      {.name = "a", .dtype = DType::f32, .shape = {2}, .data = bytes_of(a)},
      {.name = "c", .dtype = DType::i64, .shape = {1}, .data = bytes_of(c)},
  };
  const Metadata metadata = {{"step", "10"}, {"format", "pt"}};
  const std::string expected = std::string("\xd0\0\0\0\0\0\0\0", 8) +
                               R"({"__metadata__":{"format":"pt","step":"10"},)"
                               R"("c":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                               R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                               R"("b":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}}   )" +
                               std::string(
                                   "\1\0\0\0\0\0\0\0"
                                   "\0\0\0\0\0\0\x80\x3f"
                                   "\0\1\2",
                                   19);
  REQUIRE(expected.size() == 235);
  CHECK(write_to(temp / "sample", tensors, metadata) == expected);
  CHECK(safetensors_size(tensors, metadata) == 235);
  CHECK(write_to(temp / "empty", {}, {}) == file_of("{}      "));

  const SafetensorsFile file(temp / "sample");
  CHECK(file.metadata() == metadata);
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "c");
  CHECK(file.find("d") == nullptr);
  const TensorView* found = file.find("a");
  REQUIRE(found != nullptr);
  CHECK(found->dtype == DType::f32);
  CHECK(found->shape == std::vector<std::int64_t>{2});
  REQUIRE(found->data.size() == 8);
  CHECK(std::memcmp(found->data.data(), a.data(), 8) == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(found->data.data()) % alignof(float) == 0);
}

TEST_CASE("safetensors: views stay valid when the file object moves") {
  TempFolder temp;
  const std::vector<float> values = {1, 2, 3};
  const std::vector<TensorView> tensors = {
      {.name = "w", .dtype = DType::f32, .shape = {3}, .data = bytes_of(values)}};
  write_to(temp / "a", tensors, {});
  SafetensorsFile first(temp / "a");
  const std::byte* data = first.find("w")->data.data();
  SafetensorsFile second = std::move(first);
  REQUIRE(second.find("w") != nullptr);
  CHECK(second.find("w")->data.data() == data);
  CHECK(std::memcmp(data, values.data(), 12) == 0);
}

TEST_CASE("safetensors: every dtype, scalars, empty shapes and odd names come back") {
  TempFolder temp;
  std::vector<TensorView> tensors;
  const std::string data(64, '\x5a');
  const auto first = [&](std::size_t count) { return std::as_bytes(std::span(data)).first(count); };
  for (int i = 0; i <= static_cast<int>(DType::u64); ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(dtype_from_name(dtype_name(dtype)) == dtype);
    tensors.push_back({.name = "t" + std::to_string(i),
                       .dtype = dtype,
                       .shape = {2, 4},
                       .data = first(static_cast<std::size_t>(dtype_bits(dtype)))});
  }
  const std::string odd_names[] = {"", "quote\" back\\slash", "tab\t nul" + std::string(1, '\0'),
                                   "\xc3\xbc \xe2\x82\xac", "\x7f\x01"};
  for (const std::string& name : odd_names) {
    tensors.push_back({.name = name, .dtype = DType::i16, .shape = {}, .data = first(2)});
  }
  tensors.push_back({.name = "zero", .dtype = DType::f64, .shape = {0, 5}, .data = {}});
  const Metadata metadata = {{"", "\n"}, {"k\"", ""}};
  const std::string bytes = write_to(temp / "a", tensors, metadata);
  CHECK(bytes.size() == safetensors_size(tensors, metadata));

  const SafetensorsFile file(temp / "a");
  CHECK(file.metadata() == metadata);
  CHECK(file.tensors().size() == tensors.size());
  for (const TensorView& expected : tensors) {
    CAPTURE(expected.name);
    const TensorView* found = file.find(expected.name);
    REQUIRE(found != nullptr);
    CHECK(found->dtype == expected.dtype);
    CHECK(found->shape == expected.shape);
    CHECK(found->data.size() == expected.data.size());
  }
  for (std::size_t i = 1; i < file.tensors().size(); ++i) {
    CHECK(file.tensors()[i - 1].dtype >= file.tensors()[i].dtype);
  }
}

TEST_CASE("safetensors: what can't be written is refused before a byte is") {
  TempFolder temp;
  const std::vector<float> values = {1, 2};
  const TensorView good{.name = "w", .dtype = DType::f32, .shape = {2}, .data = bytes_of(values)};
  const auto with = [&](auto change) {
    TensorView tensor = good;
    change(tensor);
    return tensor;
  };
  const struct {
    std::vector<TensorView> tensors;
    Metadata metadata;
    std::string message;
  } cases[] = {
      {{good, good}, {}, "two tensors are named 'w'"},
      {{with([](TensorView& t) { t.name = "__metadata__"; })},
       {},
       "a tensor can't be named '__metadata__'"},
      {{with([](TensorView& t) { t.shape = {3}; })},
       {},
       "tensor 'w': F32 [3] needs 12 bytes, its data has 8"},
      {{with([](TensorView& t) { t.shape = {-2}; })},
       {},
       "tensor 'w': F32 [-2] is not a whole, countable number of bytes"},
      {{with([](TensorView& t) {
         t.shape = {1LL << 62, 4};
       })},
       {},
       "tensor 'w': F32 [4611686018427387904, 4] is not a whole, countable number of bytes"},
      {{with([](TensorView& t) { t.dtype = DType::f4, t.shape = {15}; })},
       {},
       "tensor 'w': F4 [15] is not a whole, countable number of bytes"},
      {{with([](TensorView& t) { t.name = "\xff"; })}, {}, "the text '\\xff' is not UTF-8"},
      {{good}, {{"k", "\xc0\x80"}}, "the text '\\xc0\\x80' is not UTF-8"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.message);
    CHECK(message_of([&] { write_to(temp / "a", c.tensors, c.metadata); }) ==
          "cannot write safetensors: " + c.message);
    CHECK(fs::file_size(temp / "a") == 0);
    fs::remove(temp / "a");
  }
}

TEST_CASE("safetensors: what the reference accepts is accepted") {
  TempFolder temp;
  const struct {
    const char* what;
    std::string file;
    std::size_t tensors;
  } cases[] = {
      {"nothing", file_of("{}"), 0},
      {"metadata only", file_of(R"({"__metadata__":{"a":"b"}})"), 0},
      {"unpadded", file_of("{" + tensor("a", "U8", "[3]", "[0,3]") + "}", 3), 1},
      {"padded", file_of("{" + tensor("a", "U8", "[3]", "[0,3]") + "}  ", 3), 1},
      {"leading space", file_of(" {" + tensor("a", "U8", "[3]", "[0,3]") + "}", 3), 1},
      {"scalar", file_of("{" + tensor("a", "F32", "[]", "[0,4]") + "}", 4), 1},
      {"no elements", file_of("{" + tensor("a", "F32", "[0,5]", "[0,0]") + "}"), 1},
      {"empty name", file_of("{" + tensor("", "F32", "[1]", "[0,4]") + "}", 4), 1},
      {"unknown field",
       file_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":{"x":[1,{}],"y":-1.5}}})",
           1),
       1},
      {"unknown field twice",
       file_of(R"({"a":{"x":1,"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":null}})", 1), 1},
      {"unknown field nested 125 deep",
       file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":)" + nested_arrays(125) +
                   "}}",
               1),
       1},
      {"C64", file_of("{" + tensor("a", "C64", "[1]", "[0,8]") + "}", 8), 1},
      {"BOOL of byte 7", file_of("{" + tensor("a", "BOOL", "[1]", "[0,1]") + "}", 1), 1},
      {"whole F4", file_of("{" + tensor("a", "F4", "[3,2]", "[0,3]") + "}", 3), 1},
      {"names in any order",
       file_of(
           "{" + tensor("b", "U8", "[1]", "[2,3]") + "," + tensor("a", "I16", "[1]", "[0,2]") + "}",
           3),
       2},
      {"escaped name",
       file_of(R"({"\u0061\ud83d\ude00":)" + tensor("", "U8", "[0]", "[0,0]").substr(3) + "}"), 1},
  };
  for (const auto& c : cases) {
    CAPTURE(c.what);
    write_file(temp / "a", c.file);
    std::size_t count = 99;
    CHECK(message_of([&] { count = SafetensorsFile(temp / "a").tensors().size(); }) ==
          "(no error)");
    CHECK(count == c.tensors);
  }
}

TEST_CASE("safetensors: what breaks the format is refused with the reason") {
  TempFolder temp;
  const std::string u8 = tensor("a", "U8", "[3]", "[0,3]");
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets, std::size_t data) {
    return file_of("{" + tensor("a", dtype, shape, offsets) + "}", data);
  };
  const auto field = [](const std::string& json) { return file_of("{\"a\":{" + json + "}}", 1); };
  const std::string uncountable = " is not a whole, countable number of bytes";
  const struct {
    const char* what;
    std::string file;
    std::string message;
  } cases[] = {
      {"metadata value not a string", file_of(R"({"__metadata__":{"a":1}})"),
       "its header: metadata 'a': 1 where a string belongs"},
      {"metadata like a tensor",
       file_of(R"({"__metadata__":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
       "its header: metadata 'shape': an array where a string belongs"},
      {"metadata not an object", file_of(R"({"__metadata__":null})"),
       "its header: '__metadata__': null where an object belongs"},
      {"padded by NUL", file_of(std::string("{}\0\0", 4)), "its header has a NUL at byte 2"},
      {"trailing byte", one("U8", "[3]", "[0,3]", 4), "its tensors take 3 bytes, its data has 4"},
      {"short data", one("U8", "[3]", "[0,3]", 2), "its tensors take 3 bytes, its data has 2"},
      {"data without a tensor", file_of("{}", 1), "its tensors take 0 bytes, its data has 1"},
      {"hole", file_of("{" + u8 + "," + tensor("b", "U8", "[1]", "[4,5]") + "}", 5),
       "tensor 'b' has data_offsets [4, 5], expected to begin at 3"},
      {"overlap", file_of("{" + u8 + "," + tensor("b", "U8", "[3]", "[2,5]") + "}", 5),
       "tensor 'b' has data_offsets [2, 5], expected to begin at 3"},
      {"first offset not 0", one("U8", "[3]", "[1,4]", 4),
       "tensor 'a' has data_offsets [1, 4], expected to begin at 0"},
      {"end before begin", file_of("{" + u8 + "," + tensor("b", "U8", "[0]", "[3,2]") + "}", 3),
       "tensor 'b' has data_offsets [3, 2], expected to begin at 3"},
      {"negative offset", one("U8", "[3]", "[-3,0]", 3),
       "its header: tensor 'a': -3 in its data_offsets"},
      {"negative zero", one("U8", "[3]", "[-0,3]", 3),
       "its header: tensor 'a': 0 in its data_offsets"},
      {"negative dimension", one("U8", "[-3]", "[0,3]", 3),
       "its header: tensor 'a': -3 in its shape"},
      {"size mismatch", one("F32", "[3]", "[0,3]", 3),
       "tensor 'a': F32 [3] needs 12 bytes, its data_offsets [0, 3] hold 3"},
      {"unknown dtype", one("F128", "[3]", "[0,3]", 3),
       "its header: tensor 'a': unknown dtype 'F128'"},
      {"lower-case dtype", one("u8", "[3]", "[0,3]", 3),
       "its header: tensor 'a': unknown dtype 'u8'"},
      {"dtype not a string", field(R"("dtype":8,"shape":[1],"data_offsets":[0,1])"),
       "its header: tensor 'a': dtype is 8"},
      {"shape overflow", one("U8", "[4294967296,4294967296]", "[0,0]", 0),
       "tensor 'a': U8 [4294967296, 4294967296]" + uncountable},
      {"bit count overflow", one("U8", "[4611686018427387904]", "[0,0]", 0),
       "tensor 'a': U8 [4611686018427387904]" + uncountable},
      {"dimension above int64", one("U8", "[9223372036854775808,0]", "[0,0]", 0),
       "its header: tensor 'a': 9223372036854775808 in its shape"},
      {"float in the shape", one("U8", "[3.0]", "[0,3]", 3),
       "its header: tensor 'a': 3.0 in its shape"},
      {"array in the shape", one("U8", "[[3]]", "[0,3]", 3),
       "its header: tensor 'a': an array in its shape"},
      {"shape not an array", one("U8", "3", "[0,3]", 3), "its header: tensor 'a': shape is 3"},
      {"offsets an object", one("U8", "[3]", "{}", 3),
       "its header: tensor 'a': data_offsets is an object"},
      {"three offsets", one("U8", "[3]", "[0,3,3]", 3),
       "its header: tensor 'a': 3 data_offsets, expected 2"},
      {"one offset", one("U8", "[3]", "[0]", 3),
       "its header: tensor 'a': 1 data_offsets, expected 2"},
      {"odd F4", one("F4", "[3]", "[0,2]", 2), "tensor 'a': F4 [3]" + uncountable},
      {"no dtype", field(R"("shape":[1],"data_offsets":[0,1])"),
       "its header: tensor 'a': no dtype"},
      {"no shape", field(R"("dtype":"U8","data_offsets":[0,1])"),
       "its header: tensor 'a': no shape"},
      {"no offsets", field(R"("dtype":"U8","shape":[1])"),
       "its header: tensor 'a': no data_offsets"},
      {"name twice", file_of("{" + u8 + "," + u8 + "}", 3), "its header: the name 'a' twice"},
      {"name twice, written differently",
       file_of("{" + u8 + "," + replaced(u8, "\"a\"", "\"\\u0061\"") + "}", 3),
       "its header: the name 'a' twice"},
      {"field twice", field(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"),
       "its header: tensor 'a': the field 'dtype' twice"},
      {"metadata key twice", file_of(R"({"__metadata__":{"k":"1","k":"2"}})"),
       "its header: the metadata key 'k' twice"},
      {"tensor not an object", file_of(R"({"a":[1]})"),
       "its header: 'a': an array where an object belongs"},
      {"header above 100 MB", length_prefix(100'000'001) + "{}",
       "its header's length is given as 100000001 bytes, at most 100000000 are allowed"},
      {"largest length", length_prefix(std::numeric_limits<std::uint64_t>::max()) + "{}",
       "its header's length is given as 18446744073709551615 bytes, at most 100000000 are allowed"},
      {"length past the end", length_prefix(3) + "{}",
       "its header's length is given as 3 bytes, but only 2 follow"},
      {"length 0", length_prefix(0), "its header is not a JSON object"},
      {"empty file", "", "it has 0 bytes, at least 8 are needed"},
      {"7 bytes", std::string(7, '\0'), "it has 7 bytes, at least 8 are needed"},
      {"bad UTF-8", file_of("{\"\xff\":{}}"), "its header: not JSON at byte 3"},
      {"overlong UTF-8", file_of("{\"\xc0\xaf\":{}}"), "its header: not JSON at byte 3"},
      {"lone surrogate", file_of(R"({"\ud800":{}})"), "its header: not JSON at byte 9"},
      {"byte order mark", file_of("\xef\xbb\xbf{}"), "its header is not a JSON object"},
      {"array at the root", file_of("[]"), "its header is not a JSON object"},
      {"spaces only", file_of("    "), "its header is not a JSON object"},
      {"two documents", file_of("{}{}"), "its header: not JSON at byte 3"},
      {"a comment", file_of("{}//"), "its header: not JSON at byte 3"},
      {"100,000 nested arrays at the root", file_of(nested_arrays(100'000)),
       "its header is not a JSON object"},
      {"100,000 nested arrays in a field",
       field(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":)" + nested_arrays(100'000)),
       "its header: values nested too deeply"},
      {"126 nested arrays in a field",
       field(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":)" + nested_arrays(126)),
       "its header: values nested too deeply"},
      {"unfinished", file_of("{\"a\":{"), "its header: not JSON at byte 7"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.what);
    write_file(temp / "a", c.file);
    CHECK(message_of([&] { SafetensorsFile(temp / "a"); }) ==
          "'" + (temp / "a").native() + "' is not a valid safetensors file: " + c.message);
  }
}

TEST_CASE("safetensors: a header above the limit is refused though its bytes are there") {
  TempFolder temp;
  write_file(temp / "a", length_prefix(100'000'001) + "{}");
  fs::resize_file(temp / "a", 100'000'009);  // sparse
  CHECK(message_of([&] { SafetensorsFile(temp / "a"); }) ==
        "'" + (temp / "a").native() +
            "' is not a valid safetensors file: its header's length is given as 100000001 bytes, "
            "at most 100000000 are allowed");
}

TEST_CASE("safetensors: files that can execute code are known by their first bytes") {
  TempFolder temp;
  const std::string rest = "csystem\nX\5\0\0\0touch canary";
  const struct {
    std::string file;
    std::string kind;
  } cases[] = {
      {"PK\3\4" + rest, "a zip archive (a PyTorch or TorchScript file)"},
      {"\x80\2" + rest, "a Python pickle, which can execute code"},
      {"\x80\4\x95" + rest, "a Python pickle, which can execute code"},
      {"\x80\5", "a Python pickle, which can execute code"},
      {"\x93NUMPY\1" + rest, "a NumPy file"},
      {"\x89HDF\r\n\x1a\n" + rest, "an HDF5 file"},
      {"\x1f\x8b\x08" + rest, "a gzip file"},
      {"GGUF\3" + rest, "a GGUF file"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.kind);
    write_file(temp / "a", c.file);
    const auto error = error_of([&] { SafetensorsFile(temp / "a"); });
    REQUIRE(error);
    CHECK(error->what() ==
          "'" + (temp / "a").native() + "' is not a valid safetensors file: it is " + c.kind);
    CHECK(error->help() == "convert it with Python's safetensors package");
    CHECK(error->exit() == diag::Exit::failed);
  }
}

TEST_CASE("safetensors: a header whose length reads like a pickle's magic is no pickle") {
  TempFolder temp;
  std::string header = "{}";
  header.resize(0x0280, ' ');
  write_file(temp / "a", file_of(header));
  CHECK(SafetensorsFile(temp / "a").tensors().empty());
}

TEST_CASE("safetensors: a folder, a FIFO and a missing file are refused without waiting") {
  TempFolder temp;
  fs::create_directory(temp / "folder");
  REQUIRE(::mkfifo((temp / "fifo").c_str(), 0600) == 0);
  for (const char* name : {"folder", "fifo"}) {
    CHECK(message_of([&] { SafetensorsFile(temp / name); }) ==
          "'" + (temp / name).native() +
              "' is not a valid safetensors file: it is not a regular file");
  }
  CHECK(message_of([&] { SafetensorsFile(temp / "none"); }) ==
        "cannot open '" + (temp / "none").native() + "': No such file or directory");
}
