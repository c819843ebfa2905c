#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "support.h"

namespace runner::datasets {
namespace {

using namespace test;

/// The csv dataset on the file "t.csv" with the target "y", further settings behind.
Chosen csv(std::vector<Setting> more = {}) {
  std::vector<Setting> settings = {{"path", "t.csv"}, {"target", "y"}};
  settings.insert(settings.end(), more.begin(), more.end());
  return {"csv", settings};
}
/// All rows in training, in the order of the file, as they are written.
const Setting kAllTrain = {"validation_fraction", 0.0};
const Setting kRaw = {"standardize", false};

registry::Value words(std::initializer_list<const char*> list) {
  return registry::Value::Array(list.begin(), list.end());
}

std::string csv_error(std::string_view text, const std::vector<Setting>& settings = {}) {
  const TempFolder folder;
  folder.write("t.csv", text);
  return error_of(folder,
                  [&] { static_cast<void>(csv(settings).load(folder.context(), Part::train)); });
}

TEST_CASE("csv: numbers, categories and classes are encoded column by column") {
  const TempFolder folder;
  folder.write("t.csv", "a,colour,y\n1,red,10\n2.5,blue,9\n-3e1,red,10\n");
  const Chosen chosen = csv({kAllTrain, kRaw});
  const Spec spec = chosen.describe(folder.context());
  CHECK(spec.complete);
  CHECK(spec.input == graph::Shape{3});
  CHECK(spec.class_names == std::vector<std::string>{"9", "10"});
  CHECK(spec.train_size == 3);
  const auto train = chosen.load(folder.context(), Part::train);
  CHECK(inputs(*train, 3) == std::vector<float>{1, 0, 1, 2.5, 1, 0, -30, 0, 1});
  CHECK(classes(*train) == std::vector<std::int64_t>{1, 0, 1});
  CHECK(chosen.load(folder.context(), Part::validation)->size() == 0);
}

TEST_CASE("csv: quotes, line ends, separators, marks and gzip are read as RFC 4180 writes them") {
  struct Case {
    const char* text;
    const char* separator;
  };
  const std::vector<Case> cases = {
      {"a,y\n1,p\n2,\"q, \"\"r\"\"\"\n", ","},
      {"a,y\r\n1,p\r\n2,\"q, \"\"r\"\"\"", ","},
      {"\xEF\xBB\xBF\"a\",\"y\"\n\n\"1\",p\n\n 2 ,\"q, \"\"r\"\"\"\n\n", ","},
      {"a;y\n1;p\n+2;q, \"r\"\n", ";"},
      {"a\ty\n1\tp\n2\tq, \"r\"\n", "\t"},
  };
  for (const bool gzipped : {false, true}) {
    for (const Case& c : cases) {
      CAPTURE(c.text);
      const TempFolder folder;
      gzipped ? folder.write_gzipped("t.csv", c.text) : folder.write("t.csv", c.text);
      const Chosen chosen = csv({kAllTrain, kRaw, {"separator", c.separator}});
      CHECK(chosen.describe(folder.context()).class_names ==
            std::vector<std::string>{"p", "q, \"r\""});
      CHECK(inputs(*chosen.load(folder.context(), Part::train), 1) == std::vector<float>{1, 2});
    }
  }
}

TEST_CASE("csv: a quoted cell may hold line ends, and later lines are still counted right") {
  CHECK(csv_error("a,y\n\"l\n\nl\",1\nk,1,2\n") ==
        "1: 't.csv', line 5: row 2 has 3 cells, the header has 2 columns");
}

TEST_CASE("csv: every row lands in exactly one part, the same for the same seed") {
  const TempFolder folder;
  std::string text = "a,y\n";
  for (int i = 0; i < 997; ++i) text += std::to_string(i) + "," + std::to_string(i * 2) + "\n";
  folder.write("t.csv", text);
  const auto part_of = [&](Part part, int seed) {
    const Chosen chosen = csv({{"task", "values"},
                               kRaw,
                               {"validation_fraction", 0.2},
                               {"test_fraction", 0.1},
                               {"split_seed", seed}});
    const auto samples = chosen.load(folder.context(), part);
    CHECK(samples->size() == chosen.describe(folder.context()).size(part));
    const std::vector<float> x = inputs(*samples, 1);
    const std::vector<float> y = values(*samples);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == 2 * x[i]);
    return x;
  };
  std::vector<float> rows;
  for (const Part part : {Part::train, Part::validation, Part::test}) {
    const std::vector<float> here = part_of(part, 3);
    CHECK(std::is_sorted(here.begin(), here.end()));
    rows.insert(rows.end(), here.begin(), here.end());
  }
  std::sort(rows.begin(), rows.end());
  REQUIRE(rows.size() == 997);
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK(rows[i] == static_cast<float>(i));
  CHECK(part_of(Part::validation, 3).size() == 199);
  CHECK(part_of(Part::test, 3).size() == 99);
  CHECK(part_of(Part::validation, 3) == part_of(Part::validation, 3));
  CHECK(part_of(Part::validation, 3) != part_of(Part::validation, 4));
  // Drawn from all over the file: a block of 199 neighbours would span 198.
  CHECK(part_of(Part::validation, 3).back() - part_of(Part::validation, 3).front() > 900);
}

TEST_CASE("csv: inputs are standardised by the training rows alone") {
  const TempFolder folder;
  std::string text = "a,constant,y\n";
  for (int i = 0; i < 50; ++i) {
    text += std::to_string(i * i) + ",0.1," + std::to_string(i) + "\n";
  }
  folder.write("t.csv", text);
  const Chosen chosen = csv({{"task", "values"}, {"validation_fraction", 0.3}});
  const auto train = chosen.load(folder.context(), Part::train);
  const auto validation = chosen.load(folder.context(), Part::validation);
  const std::vector<float> y = values(*train);
  double mean = 0.0;
  for (const float v : y) mean += static_cast<double>(v) * v / 35;
  double variance = 0.0;
  for (const float v : y) variance += std::pow(static_cast<double>(v) * v - mean, 2) / 35;
  REQUIRE(train->size() == 35);
  for (const Samples* part : {train.get(), validation.get()}) {
    const std::vector<float> x = inputs(*part, 2);
    const std::vector<float> targets = values(*part);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const double square = static_cast<double>(targets[i]) * targets[i];
      CHECK(x[2 * i] == doctest::Approx((square - mean) / std::sqrt(variance)).epsilon(1e-5));
      CHECK(std::abs(x[2 * i + 1]) < 1e-6);
    }
  }
}

TEST_CASE("csv: missing cells are refused, filled or dropped, as asked") {
  const std::string text = "a,c,y\n1,u,0\n,v,1\n3,NA,0\n5,u,1\n";
  CHECK(csv_error(text, {kAllTrain}) ==
        "1: 't.csv', row 2 (line 3), column 'a': the cell '' is missing");
  const TempFolder folder;
  folder.write("t.csv", text);
  const auto filled =
      csv({kAllTrain, kRaw, {"missing", "mean"}}).load(folder.context(), Part::train);
  CHECK(inputs(*filled, 3) == std::vector<float>{1, 1, 0, 3, 0, 1, 3, 0, 0, 5, 1, 0});
  const auto dropped =
      csv({kAllTrain, kRaw, {"missing", "drop_row"}}).load(folder.context(), Part::train);
  CHECK(inputs(*dropped, 2) == std::vector<float>{1, 1, 5, 1});
  CHECK(csv_error("a,y\n1,0\n2,\n", {{"missing", "mean"}}) ==
        "1: 't.csv', row 2 (line 3), column 'y': the cell '' is missing");
  CHECK(csv_error("a,y\n,0\n,1\n", {{"missing", "drop_row"}}) ==
        "2: 't.csv': every row has a missing cell, so 'drop_row' leaves none");
  CHECK(csv_error("a,b,y\n,1,0\n,2,1\n", {kAllTrain, {"missing", "mean"}}) ==
        "2: 't.csv': the column 'a' has no cell in the training rows");
  CHECK(csv_error("a,y\n?,0\n4,1\n", {kAllTrain, {"missing_values", words({"?"})}}) ==
        "1: 't.csv', row 1 (line 2), column 'a': the cell '?' is missing");
}

TEST_CASE("csv: columns and categorical choose the inputs and how they are encoded") {
  const TempFolder folder;
  folder.write("t.csv", "id,zip,a,y\nx1,10,7,0\nx2,9,8,1\nx3,10,9,1\n");
  const Chosen chosen =
      csv({kAllTrain, kRaw, {"columns", words({"a", "zip"})}, {"categorical", words({"zip"})}});
  CHECK(inputs(*chosen.load(folder.context(), Part::train), 3) ==
        std::vector<float>{7, 1, 0, 8, 0, 1, 9, 1, 0});
}

TEST_CASE("csv: a category that no training row has is all zeros") {
  const TempFolder folder;
  std::string text = "c,y\n";
  for (int i = 0; i < 20; ++i) text += "text" + std::to_string(i) + "," + std::to_string(i) + "\n";
  folder.write("t.csv", text);
  const Chosen chosen = csv({{"task", "values"}, {"validation_fraction", 0.5}});
  CHECK(chosen.describe(folder.context()).input == graph::Shape{10});
  const std::vector<float> x = inputs(*chosen.load(folder.context(), Part::validation), 10);
  CHECK(x == std::vector<float>(100, 0.0F));
}

TEST_CASE("csv: without the file the spec says that it is incomplete") {
  const TempFolder folder;
  const Spec classes = csv().describe(folder.context());
  CHECK(!classes.complete);
  CHECK(classes.target == TargetKind::classes);
  const Spec values = csv({{"task", "values"}}).describe(folder.context());
  CHECK(!values.complete);
  CHECK(values.target_values == 1);
  CHECK(error_of(folder, [&] { static_cast<void>(csv().load(folder.context(), Part::train)); }) ==
        "4: 't.csv' does not exist");
}

TEST_CASE("csv: targets of 0 and 1 are known to be binary") {
  const TempFolder folder;
  folder.write("t.csv", "a,y\n1,0\n2,1\n3,1.0\n");
  CHECK(csv({kAllTrain, {"task", "values"}}).describe(folder.context()).binary);
  folder.write("t.csv", "a,y\n1,0\n2,1\n3,2\n");
  CHECK(!csv({kAllTrain, {"task", "values"}}).describe(folder.context()).binary);
}

TEST_CASE("csv: bad files and bad options are errors that name row, line and column") {
  struct Case {
    std::string text;
    std::vector<Setting> settings;
    std::string expected;
  };
  using namespace std::string_literals;
  const std::vector<Case> cases = {
      {"", {}, "2: 't.csv': expected a header line with the names of the columns, found nothing"},
      {"a,y\n", {}, "2: 't.csv': expected rows after the header, found none"},
      {"a,,y\n1,2,3\n", {}, "2: 't.csv': column 2 has no name"},
      {"a,y,a\n1,2,3\n", {}, "2: 't.csv': two columns have the name 'a'"},
      {"a,Y\n1,2\n", {}, "2: 't.csv': 'target' names the column 'y', which does not exist"},
      {"a,y\n1,2\n3\n", {}, "1: 't.csv', line 3: row 2 has 1 cells, the header has 2 columns"},
      {"a,y\n1,\"2\n",
       {},
       "1: 't.csv', line 2: a quoted cell is not closed, or text follows its closing quote"},
      {"a,y\n\"1\"x,2\n",
       {},
       "1: 't.csv', line 2: a quoted cell is not closed, or text follows its closing quote"},
      {"a,y\n1,0\n2,1\nx,1\n",
       {kAllTrain},
       "1: 't.csv', row 3 (line 4), column 'a': expected a number, found 'x'"},
      {"a,y\n1,0\n2,1\n1e39,1\n",
       {kAllTrain},
       "1: 't.csv', row 3 (line 4), column 'a': expected a number, found '1e39'"},
      {"a,y\n1,0\n2,1\n0,1\ninf,1\n",
       {kAllTrain},
       "1: 't.csv', row 4 (line 5), column 'a': expected a number, found 'inf'"},
      {"a,y\n1,0\n2,1\n"s + "\0\xFF,1\n"s,
       {kAllTrain},
       "1: 't.csv', row 3 (line 4), column 'a': expected a number, found '\\x00\\xff'"},
      {"a,y\n1,0\n2,0.5\n",
       {kAllTrain},
       "1: 't.csv', row 2 (line 3), column 'y': expected a class label, found the number '0.5'"},
      {"a,y\n1,u\n2,3\n",
       {kAllTrain, {"task", "values"}},
       "1: 't.csv', row 1 (line 2), column 'y': expected a number, found 'u'"},
      {"a,y\n1,0\n2,0\n",
       {kAllTrain},
       "2: 't.csv': the target 'y' has the one class '0' in the training rows, expected at least "
       "2"},
      {"a,y\n1,0\n",
       {{"columns", words({"b"})}},
       "2: 't.csv': 'columns' names the column 'b', which does not exist"},
      {"a,y\n1,0\n",
       {{"columns", words({"a", "y"})}},
       "2: 't.csv': 'columns' holds the target 'y'"},
      {"a,y\n1,0\n", {{"columns", words({"a", "a"})}}, "2: 't.csv': 'columns' holds 'a' twice"},
      {"a,y\n1,0\n",
       {{"categorical", words({"y"})}},
       "2: 't.csv': 'categorical' names 'y', which is not an input column"},
      {"y\n1\n", {}, "2: 't.csv': there is no column but the target"},
      {"a,y\nu,0\nv,1\nw,1\n",
       {kAllTrain, {"max_categories", 2}},
       "2: 't.csv': the column 'a' has 3 different texts, more than the 2 of 'max_categories'"},
      {"a,y\n1,0\n", {{"path", ""}}, "2: the csv dataset needs a 'path'"},
      {"a,y\n1,0\n", {{"target", ""}}, "2: the csv dataset needs a 'target'"},
      {"a,y\n1,0\n",
       {{"separator", "ab"}},
       "2: 'separator' must be one character other than a quote or a line end, found 'ab'"},
      {"a,y\n1,0\n",
       {{"validation_fraction", 0.6}, {"test_fraction", 0.4}},
       "2: 'validation_fraction' 0.6 and 'test_fraction' 0.4 leave no rows for training"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    CHECK(csv_error(c.text, c.settings) == c.expected);
  }
}

TEST_CASE("csv: a class that only a validation row has is refused") {
  // Ten classes in ten rows: whichever two rows are drawn, their classes are in no other.
  std::string text = "a,y\n";
  for (int i = 0; i < 10; ++i) text += std::to_string(i) + ",k" + std::to_string(i) + "\n";
  const std::string error = csv_error(text, {{"validation_fraction", 0.2}});
  CAPTURE(error);
  CHECK(error.starts_with("1: 't.csv', row "));
  CHECK(error.ends_with("' is in no training row"));
}

TEST_CASE("csv: a misspelt column gets a suggestion, an unlike one the list") {
  const TempFolder folder;
  folder.write("t.csv", "height,weight,species\n1,2,3\n");
  const auto help = [&](const char* target) {
    return help_of([&] {
      static_cast<void>(csv({{"target", target}}).describe(folder.context()));
    });
  };
  CHECK(help("spesies") == "did you mean 'species'?");
  CHECK(help("q") == "the columns are height, weight or species");
}

}  // namespace
}  // namespace runner::datasets
