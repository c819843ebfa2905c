#include "datasets/dataset.h"

namespace runner::datasets {

std::string_view to_text(Part part) {
  switch (part) {
    case Part::train:
      return "train";
    case Part::validation:
      return "validation";
    case Part::test:
      return "test";
  }
  return "";
}

std::int64_t Spec::size(Part part) const {
  switch (part) {
    case Part::train:
      return train_size;
    case Part::validation:
      return validation_size;
    case Part::test:
      return test_size;
  }
  return 0;
}

const Datasets& all() {
  static const Datasets datasets = [] {
    Datasets filled;
    register_all(filled);
    return filled;
  }();
  return datasets;
}

}  // namespace runner::datasets
