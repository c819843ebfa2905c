#include "runner/launch/write.h"

#include <fstream>
#include <system_error>

#include "runner/diag/error.h"

namespace runner::launch {

void write_whole(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(temporary, path, error);
  if (!out || error) {
    throw diag::Error(diag::Exit::machine,
                      "can't write '" + path.string() + "'" + (error ? ": " + error.message() : ""),
                      "is the disk full?");
  }
}

}  // namespace runner::launch
