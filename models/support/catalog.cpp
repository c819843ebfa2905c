#include "models/model.h"

namespace runner::models {

const Models& all() {
  static const Models models = [] {
    Models result;
    register_all(result);
    return result;
  }();
  return models;
}

}  // namespace runner::models
