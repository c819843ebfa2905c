#include <doctest/doctest.h>

#include "tests/models/model_support.h"

namespace runner::models {

TEST_CASE("mlp: parameters of each size, with and without batch norm") {
  CHECK(build_model("mlp", {1, 28, 28}, 10).parameter_count() == 785 * 128 + 129 * 10);
  CHECK(build_model("mlp", {64}, 10, {{"hidden", Value::Array{32, 16}}}).parameter_count() ==
        65 * 32 + 33 * 16 + 17 * 10);
  CHECK(build_model("mlp", {64}, 10, {{"hidden", Value::Array{}}}).parameter_count() == 65 * 10);
  const auto normed = build_model("mlp", {64}, 10, {{"batch_norm", true}});
  CHECK(normed.parameter_count() == 64 * 128 + 2 * 128 + 129 * 10);
  CHECK(normed.buffer_count() == 2 * 128 + 1);
}

TEST_CASE("mlp: the layers' order") {
  const auto graph = build_model("mlp", {4, 4}, 3,
                                 {{"hidden", Value::Array{8}},
                                  {"batch_norm", true},
                                  {"dropout", 0.5},
                                  {"activation", "gelu"}});
  std::string names;
  for (const graph::Layer& l : graph.layers()) names += l.name + " ";
  CHECK(names == "input flatten fc1 bn1 gelu1 dropout1 fc2 ");
  CHECK(std::get<graph::Dropout>(graph.layers()[5].op).p == 0.5);
}

TEST_CASE("lenet: LeNet-5's 61,706 parameters on 28x28 images, and its layers") {
  const auto graph = build_model("lenet", {1, 28, 28}, 10);
  CHECK(graph.parameter_count() ==
        (25 + 1) * 6 + (6 * 25 + 1) * 16 + (400 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10);
  CHECK(graph.parameter_count() == 61706);
  const std::vector<std::string> names = {
      "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight",
      "fc1.bias",     "fc2.weight", "fc2.bias",     "fc3.weight", "fc3.bias"};
  CHECK(tensor_names(graph) == names);
  // 32x32 is the original's size: without padding its layers are the same.
  CHECK(build_model("lenet", {1, 32, 32}, 10, {{"padding", 0}}).parameter_count() == 61706);
  CHECK(build_model("lenet", {3, 32, 32}, 10).parameter_count() ==
        (75 + 1) * 6 + (6 * 25 + 1) * 16 + (16 * 36 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10);
}

TEST_CASE("lenet: options change the layers") {
  const auto graph = build_model("lenet", {1, 28, 28}, 7,
                                 {{"channels", Value::Array{4}},
                                  {"hidden", Value::Array{30}},
                                  {"kernel", 3},
                                  {"padding", 1},
                                  {"activation", "tanh"}});
  CHECK(graph.parameter_count() == (9 + 1) * 4 + (4 * 14 * 14 + 1) * 30 + 31 * 7);
  CHECK(graph.layers()[2].name == "tanh1");
}

TEST_CASE("lenet: input that doesn't fit is told by the layer that it stops at") {
  CHECK(build_error("lenet", {1, 8, 8}, 10) ==
        "kernel | layer 'conv2' (conv2d) has a kernel of 5x5, and its input is [6, 4, 4] | a "
        "kernel of at most 4x4 fits; so would more padding, a larger image, or fewer pools and "
        "strides before it");
  CHECK(build_error("lenet", {1, 5, 5}, 10, {{"padding", 0}}) ==
        "channels[0] | layer 'pool1' (max_pool2d) has a kernel of 2x2, and its input is [6, 1, 1] "
        "| a kernel of at most 1x1 fits; so would more padding, a larger image, or fewer pools "
        "and strides before it");
  CHECK(build_error("lenet", {784}, 10) ==
        " | layer 'conv1' (conv2d) needs an image [channels, height, width], and its input is "
        "[784] | put it before any flatten, and choose a dataset of images");
}

TEST_CASE("cnn: parameters and layers of the defaults on 28x28 images") {
  const auto graph = build_model("cnn", {1, 28, 28}, 10);
  CHECK(graph.parameter_count() ==
        9 * 32 + 2 * 32 + 9 * 32 * 64 + 2 * 64 + (64 * 7 * 7 + 1) * 128 + 129 * 10);
  CHECK(graph.buffer_count() == 2 * 32 + 1 + 2 * 64 + 1);
  std::string names;
  for (const graph::Layer& l : graph.layers()) names += l.name + " ";
  CHECK(names ==
        "input conv1 bn1 relu1 pool1 conv2 bn2 relu2 pool2 flatten dropout1 fc1 relu3 dropout2 "
        "fc2 ");
}

TEST_CASE("cnn: without batch norm the convolutions have a bias") {
  const auto graph = build_model("cnn", {3, 32, 32}, 10, {{"batch_norm", false}, {"dropout", 0.0}});
  CHECK(graph.parameter_count() ==
        (27 + 1) * 32 + (9 * 32 + 1) * 64 + (64 * 8 * 8 + 1) * 128 + 129 * 10);
  CHECK(graph.buffer_count() == 0);
}

TEST_CASE("cnn: more pools than the image can halve are told") {
  CHECK(build_error("cnn", {1, 4, 4}, 10, {{"channels", Value::Array{8, 8, 8}}}) ==
        "channels[2] | layer 'pool3' (max_pool2d) has a kernel of 2x2, and its input is [8, 1, 1] "
        "| a kernel of at most 1x1 fits; so would more padding, a larger image, or fewer pools "
        "and strides before it");
}

}  // namespace runner::models
