#include "datasets/support/idx.h"

namespace runner::datasets {
namespace {

struct Options {
  std::string root = "/usr/share/datasets/fashion-mnist";
  std::int64_t validation_size = 5000;
  bool normalize = true;
};

constexpr auto kRows = registry::rows<Options>({
    {.name = "root",
     .member = &Options::root,
     .doc = "folder with the four IDX files, gzipped or not"},
    {.name = "validation_size",
     .member = &Options::validation_size,
     .doc = "images held out from the end of the training file for validation",
     .range = registry::between(0, 59999)},
    {.name = "normalize",
     .member = &Options::normalize,
     .doc = "subtract the mean 0.2860 and divide by the deviation 0.3530, after scaling to 0-1"},
});
static_assert(registry::covers<Options>(kRows));

IdxImages images() {
  return {.help =
              "install them with 'apt-get install dataset-fashion-mnist', or set dataset.root "
              "to the folder with the four files *-ubyte or *-ubyte.gz"};
}

Spec describe(const Options& options, const Context&) {
  Spec spec;
  spec.input = {1, 28, 28};
  spec.classes = 10;
  spec.train_size = images().train_rows - options.validation_size;
  spec.validation_size = options.validation_size;
  spec.test_size = images().test_rows;
  spec.class_names = {"t-shirt/top", "trouser", "pullover", "dress", "coat",
                      "sandal",      "shirt",   "sneaker",  "bag",   "ankle boot"};
  return spec;
}

std::unique_ptr<Samples> load(const Options& options, const Context& context, Part part) {
  const Normalization published{.mean = 0.2860F, .deviation = 0.3530F};
  return load_idx_images(images(), resolve(context.base, options.root), part,
                         options.validation_size, options.normalize ? published : Normalization{});
}

std::vector<std::filesystem::path> files(const Options& options, const Context& context) {
  return all_idx_files(resolve(context.base, options.root));
}

}  // namespace

void register_fashion_mnist(Datasets& datasets) {
  datasets.add(dataset("fashion_mnist",
                       "Fashion-MNIST: 70,000 grey images of clothes, 28x28, 10 classes", kRows,
                       describe, load, files));
}

}  // namespace runner::datasets
