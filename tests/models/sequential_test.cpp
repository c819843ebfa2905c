#include <doctest/doctest.h>

#include "models/support/layers.h"
#include "tests/models/model_support.h"

namespace runner::models {

namespace {

using Array = Value::Array;

/// All problems of the layers, each "path | message | help".
std::vector<std::string> problems_of(const Value& layers) {
  const Model& model = *all().find("sequential");
  std::vector<std::string> texts;
  for (const Problem& p : model.check(options_of(model, {{"layers", layers}}))) {
    texts.push_back(p.path + " | " + p.message + " | " + p.help);
  }
  return texts;
}

const std::string kTypes =
    "the types are linear, conv2d, batch_norm, layer_norm, max_pool2d, avg_pool2d, "
    "global_avg_pool, flatten, dropout, relu, leaky_relu, elu, gelu, silu, tanh, sigmoid, softplus";
const std::string kHow = "write [[model.layers]] with type = \"…\" and its options for each layer";

}  // namespace

TEST_CASE("sequential: lenet and mlp written out are lenet and mlp") {
  const Array lenet = {layer("conv2d", {{"out", 6}, {"kernel", 5}, {"padding", 2}}),
                       layer("relu"),
                       layer("max_pool2d"),
                       layer("conv2d", {{"out", 16}, {"kernel", Array{5, 5}}}),
                       layer("relu"),
                       layer("max_pool2d", {{"kernel", 2}, {"stride", 2}}),
                       layer("flatten"),
                       layer("linear", {{"out", 120}}),
                       layer("relu"),
                       layer("linear", {{"out", 84}}),
                       layer("relu"),
                       layer("linear", {{"out", 10}})};
  CHECK(structure(build_model("sequential", {1, 28, 28}, 10, {{"layers", lenet}})) ==
        structure(build_model("lenet", {1, 28, 28}, 10)));

  const Array mlp = {layer("linear", {{"out", 32}, {"bias", false}}), layer("batch_norm"),
                     layer("tanh"), layer("dropout", {{"p", 0.3}}), layer("linear", {{"out", 10}})};
  const Value::Table options = {
      {"hidden", Array{32}}, {"batch_norm", true}, {"activation", "tanh"}, {"dropout", 0.3}};
  CHECK(structure(build_model("sequential", {64}, 10, {{"layers", mlp}})) ==
        structure(build_model("mlp", {64}, 10, options)));
}

TEST_CASE("sequential: every option of a layer reaches it") {
  const Array layers = {layer("conv2d", {{"out", 6},
                                         {"kernel", Array{3, 1}},
                                         {"stride", Array{2, 1}},
                                         {"padding", Array{1, 0}},
                                         {"dilation", Array{1, 2}},
                                         {"groups", 2},
                                         {"bias", false}}),
                        layer("batch_norm", {{"eps", 1e-3}, {"momentum", 0.2}}),
                        layer("max_pool2d", {{"kernel", 3}, {"padding", 1}}),
                        layer("avg_pool2d", {{"kernel", Array{1, 2}}, {"stride", 1}}),
                        layer("layer_norm", {{"eps", 1e-6}}),
                        layer("dropout", {{"p", 0.25}}),
                        layer("flatten"),
                        layer("linear", {{"out", 5}, {"bias", false}})};
  const auto graph = build_model("sequential", {4, 24, 24}, 5, {{"layers", layers}});
  const auto& l = graph.layers();
  const auto& conv = std::get<graph::Conv2d>(l[1].op);
  CHECK(conv.kernel == graph::Pair{3, 1});
  CHECK(conv.stride == graph::Pair{2, 1});
  CHECK(conv.padding == graph::Pair{1, 0});
  CHECK(conv.dilation == graph::Pair{1, 2});
  CHECK(conv.groups == 2);
  CHECK_FALSE(conv.bias);
  CHECK(std::get<graph::BatchNorm>(l[2].op).eps == 1e-3);
  CHECK(std::get<graph::BatchNorm>(l[2].op).momentum == 0.2);
  const auto& max = std::get<graph::MaxPool2d>(l[3].op);
  CHECK(max.stride == graph::Pair{3, 3});  // the kernel's
  CHECK(max.padding == graph::Pair{1, 1});
  const auto& avg = std::get<graph::AvgPool2d>(l[4].op);
  CHECK(avg.kernel == graph::Pair{1, 2});
  CHECK(avg.stride == graph::Pair{1, 1});
  CHECK(std::get<graph::LayerNorm>(l[5].op).eps == 1e-6);
  CHECK(std::get<graph::Dropout>(l[6].op).p == 0.25);
  CHECK_FALSE(std::get<graph::Linear>(l[8].op).bias);
  CHECK(l[4].path == "layers[3]");
}

TEST_CASE("sequential: layers without a name get type and number, around the given names") {
  const Array layers = {layer("relu"), layer("relu", {{"name", "relu3"}}), layer("relu"),
                        layer("relu"), layer("linear", {{"out", 2}, {"name", "head.fc"}})};
  const auto graph = build_model("sequential", {4}, 2, {{"layers", layers}});
  std::string names;
  for (const graph::Layer& l : graph.layers()) names += l.name + " ";
  CHECK(names == "input relu1 relu3 relu2 relu4 head.fc ");
  CHECK(tensor_names(graph) == std::vector<std::string>{"head.fc.weight", "head.fc.bias"});
}

TEST_CASE("sequential: all that is wrong with all layers is reported at once") {
  const Array layers = {
      layer("conv2d", {{"out", 8}, {"kernal", 3}, {"stride", 0}}),
      layer("flaten"),
      layer("linear", {{"out", "ten"}}),
      Value::Table{{"out", 3}},
      Value::Table{{"type", 3}},
      "relu",
      layer("linear"),
      layer("relu", {{"p", 0.5}}),
      layer("dropout", {{"p", 1}}),
      layer("max_pool2d", {{"kernel", Array{2, 2, 2}}, {"padding", -1}, {"stride", "2"}}),
      layer("relu", {{"name", "a"}}),
      layer("relu", {{"name", "a"}}),
      layer("relu", {{"name", "input"}}),
      layer("relu", {{"name", "a/b"}}),
      layer("relu", {{"name", 1}}),
      layer("linear", {{"out", 0}}),
  };
  const std::string linear_keys = "its keys are type, name, out, bias";
  const std::vector<std::string> want = {
      "layers[0].kernal | a conv2d layer has no 'kernal' | did you mean 'kernel'? its keys are "
      "type, name, out, kernel, stride, padding, dilation, groups, bias",
      "layers[0].stride | 'stride': expected an integer or [height, width], at least 1, found 0 | ",
      "layers[1].type | unknown type of layer 'flaten' | did you mean 'flatten'? " + kTypes,
      "layers[2].out | 'out': expected an integer, at least 1, found the string \"ten\" | ",
      "layers[3] | a layer needs 'type' | " + kTypes,
      "layers[4].type | 'type': expected a string, found an integer | " + kTypes,
      "layers[5] | expected a layer's table, found a string | " + kHow,
      "layers[6] | a linear layer needs 'out' | add out = the number of its outputs",
      "layers[7].p | a relu layer has no 'p' | its keys are type, name",
      "layers[8].p | 'p': expected a number, 0 to below 1, found the integer 1 | ",
      "layers[9].kernel | 'kernel': expected an integer or [height, width], at least 1, found [2, "
      "2, 2] | ",
      "layers[9].padding | 'padding': expected an integer or [height, width], at least 0, found -1 "
      "| ",
      "layers[9].stride | 'stride': expected an integer or [height, width], at least 1, found "
      "\"2\" | ",
      "layers[13].name | 'a/b' can't name a layer | a name is made of letters, digits, '_', '-' "
      "and '.'",
      "layers[14].name | 'name': expected a string, found an integer | ",
      "layers[15].out | 'out': expected an integer, at least 1, found the integer 0 | ",
      "layers[11].name | the name 'a' is taken by layers[10] | give the layer another name",
      "layers[12].name | 'input' is the name of the model's input | give the layer another name",
  };
  const auto found = problems_of(layers);
  REQUIRE(found.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(found[i] == want[i]);
}

TEST_CASE("sequential: a model without layers is told how to write them") {
  CHECK(problems_of(Value()) ==
        std::vector<std::string>{"layers | a sequential model needs layers | " + kHow});
  CHECK(problems_of(Array{}) ==
        std::vector<std::string>{"layers | a sequential model needs layers | " + kHow});
  CHECK(problems_of(3) ==
        std::vector<std::string>{
            "layers | 'layers': expected a list of layers, found an integer | " + kHow});
}

TEST_CASE("sequential: building throws the first problem, then the first misfit at its option") {
  const auto error = [](const graph::Shape& input, const Array& layers) {
    return build_error("sequential", input, 10, {{"layers", layers}});
  };
  CHECK(error({64}, {layer("linear")}) ==
        "layers[0] | a linear layer needs 'out' | add out = the number of its outputs");
  CHECK(error({1, 8, 8}, {layer("relu"), layer("conv2d", {{"out", 8}, {"kernel", 11}})}) ==
        "layers[1].kernel | layer 'conv2d1' (conv2d) has a kernel of 11x11, and its input is [1, "
        "8, 8] | a kernel of at most 8x8 fits; so would more padding, a larger image, or fewer "
        "pools and strides before it");
  CHECK(error({64}, {layer("linear", {{"out", 7}})}) ==
        "layers[0].out | the last layer 'linear1' (linear) gives [7], and the task needs [10] | "
        "end with a linear layer of out = 10");
  CHECK(error({1, 8, 8}, {layer("conv2d", {{"out", 10}}), layer("relu", {{"name", "end"}})}) ==
        "layers[1] | the last layer 'end' (relu) gives [10, 6, 6], and the task needs [10] | end "
        "with flatten and a linear layer of out = 10");
}

}  // namespace runner::models
